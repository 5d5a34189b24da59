"""The store that a server is started with, and its membership in a cluster if other servers use that store, too."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from kedge import paths
from kedge.errors import BadConfig
from kedge.server.log import flush_log
from kedge.store.base import Store
from kedge.store.memory import MemoryStore
from kedge.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from kedge.server.cluster_member import Member

log = logging.getLogger("kedge.server")

#: Set for a process that replaces one which has lost its leases: it waits for its database.
RESTARTED = "KEDGE_RESTARTED"
SECRET = "KEDGE_CLUSTER_SECRET"
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class NodeOptions(Struct, frozen=True):
    """Options of `kedge serve` about its node. Empty: the defaults."""

    name: str = ""
    #: The address of this node for other nodes.
    url: str = ""
    roots: tuple[str, ...] = ()
    #: Seconds. 0: the default.
    lease_s: float = 0.0


def open_store(url: str | None, node: NodeOptions) -> tuple[Store, Member | None]:
    """Return the store of this server, which is to be opened, and its membership if the store can be shared."""
    url = url or os.environ.get("KEDGE_STORE") or ""
    if url.startswith(("postgresql://", "postgres://")):
        member = _member(url, node)
        return member.store, member
    if node != NodeOptions():
        raise BadConfig("Only servers with a PostgreSQL store are nodes of a cluster; add --store postgresql://...")
    if url == "memory:":
        return MemoryStore(), None
    if not url:
        return SqliteStore(paths.data_dir()), None
    if url.startswith("sqlite://"):
        return SqliteStore(Path(url.removeprefix("sqlite://"))), None
    # Without the rest of the URL, which may have a password.
    scheme = url.partition(":")[0]
    raise BadConfig(
        f"Unknown store {scheme}:...; use sqlite:///directory, postgresql://user:password@host/database or memory:"
    )


def _member(url: str, node: NodeOptions) -> Member:
    try:
        from kedge.server.cluster_member import make_member  # loads asyncpg, an extra, and an HTTP client
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise BadConfig(
            "The store in PostgreSQL needs the extra: pip install 'kedge[postgres]' "
            "(in a clone: scripts/environment requirements-postgres.lock)."
        ) from None
    return make_member(url, node)


def url_of(sockets: list[socket.socket]) -> str:
    """Return the address on which other nodes reach this server; empty: on none."""
    for sock in sockets:
        if sock.family != socket.AF_UNIX:
            host, port = sock.getsockname()[:2]
            if not ipaddress.ip_address(host).is_unspecified:
                return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return ""


def host_id(data_dir: Path) -> str:
    """Return the id of the data directory, which its first server has drawn. The directory is locked."""
    path = data_dir / "host-id"
    try:
        if text := path.read_text().strip():
            return text
    except FileNotFoundError:
        pass
    text = secrets.token_hex(16)
    path.write_text(text + "\n")
    return text


def restart(reason: str) -> None:
    """Replace this process by a new server, as after a `kill -9`.

    The process keeper sees the end of its connection and kills all tools. Nothing else is cleaned up: another node may
    have taken over what this one had."""
    log.critical("%s; starting again", reason)
    flush_log()
    os.environ[RESTARTED] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
