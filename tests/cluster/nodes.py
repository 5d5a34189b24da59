"""Real nodes of a cluster: `kedge serve` processes with a data directory each, and one PostgreSQL database."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2

from tests.conformance.harness import Json, Peer, Server, open_http, unique
from tests.polling import PAUSE_S
from tests.postgres_server import free_port

#: Short, so that tests need not wait for long. Seconds.
LEASE_S = 2.0


class Nodes:
    def __init__(self, home: Path, postgres_url: str, endpoint_url: str, lease_s: float = LEASE_S) -> None:
        self._home = home
        self._lease_s = lease_s
        separator = "&" if "?" in postgres_url else "?"
        self.store = f"{postgres_url}{separator}schema={unique('cluster').replace('-', '_')}"
        self._endpoint_url = endpoint_url
        self.secret = secrets.token_hex(32)
        self.token = secrets.token_hex(16)
        self._started: list[Server] = []

    def add(
        self,
        name: str,
        *roots: Path,
        config: str = "",
        secret: str | None = None,
        home: Path | None = None,
        plain: bool = False,
        options: tuple[str, ...] = (),
        port: int = 0,
    ) -> Server:
        """Start a node, which serves all directories or those below `roots`. `plain`: with the default settings.
        `options`: more of them; the last value of an option counts."""
        node = Server(home or self._home / name, self._endpoint_url, config)
        if plain:
            (node.home / "config.toml").write_text("")
        node.options = ("--store", self.store, "--node", name, "--lease", str(self._lease_s))
        node.options += tuple(part for root in roots for part in ("--workspace-root", str(root)))
        node.options += options
        node.variables = {"KEDGE_CLUSTER_SECRET": self.secret if secret is None else secret}
        self._started.append(node)
        return node.start(port or free_port(), self.token)

    def stop(self) -> None:
        for node in self._started:
            node.stop()

    @contextlib.asynccontextmanager
    async def peer(self, node: Server, directory: Path, *, at: Peer | None = None) -> AsyncIterator[Peer]:
        """A client of one node. `at`: in the workspace of this one, and with its id, as if a balancer had chosen."""
        async with open_http(node.url, self.token) as http:
            if at is None:
                yield await Peer(http, directory).open()
            else:
                yield Peer(http, directory, at.client_id, at.workspace)


async def until_moved(peer: Peer) -> None:
    """Wait until the node of this client can serve the workspace again, after another node was lost."""
    body = {"path": str(peer.directory), "client_id": peer.client_id}
    await until_status(peer, "POST", "/workspaces", 200, body=body)


async def until_status(peer: Peer, method: str, path: str, *codes: int, body: Json | None = None) -> None:
    """Repeat a request until its status is one of these. The timeout of the test ends a hang."""
    status = 0
    while status not in codes:
        with contextlib.suppress(httpx2.TransportError):  # the node starts again
            status = (await peer.reply(method, path, body)).status_code
        await asyncio.sleep(PAUSE_S)
