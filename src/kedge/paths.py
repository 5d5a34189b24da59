"""Where kedge keeps things on this machine. Standard library only: the client reads this at each start."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path


def config_file() -> Path:
    """The user's configuration; `KEDGE_CONFIG` names another one."""
    if given := os.environ.get("KEDGE_CONFIG"):
        return Path(given).expanduser()
    return _base("XDG_CONFIG_HOME", ".config", "Library/Application Support") / "kedge" / "config.toml"


def data_dir() -> Path:
    """Store, token and server log; `KEDGE_DATA_DIR` names another one."""
    if given := os.environ.get("KEDGE_DATA_DIR"):
        return Path(given).expanduser().absolute()
    return _base("XDG_DATA_HOME", ".local/share", "Library/Application Support") / "kedge"


def runtime_dir() -> Path:
    """A directory of this user alone for the socket. With another data directory it is in there: one server for each.

    A socket's path may have about 100 bytes: with a long data directory it is in the system's own place."""
    if os.environ.get("KEDGE_DATA_DIR"):
        inside = data_dir() / "run"
        if len(os.fsencode(inside)) < 80:
            return inside
        return Path(tempfile.gettempdir()) / f"kedge-{os.getuid()}-{_short_hash(str(data_dir()))}"
    if given := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(given) / "kedge"
    return Path(tempfile.gettempdir()) / f"kedge-{os.getuid()}"


def socket_file() -> Path:
    return runtime_dir() / f"kedge-{os.getuid()}.sock"


def default_host() -> str:
    return f"unix://{socket_file()}"


def token_file(directory: Path | None = None) -> Path:
    return (directory or data_dir()) / "token"


def server_log() -> Path:
    return data_dir() / "server.log"


def absolute_entries(search_path: str) -> str:
    """A PATH without relative entries: they lead to the current directory, which may be somebody else's repository."""
    return os.pathsep.join(entry for entry in search_path.split(os.pathsep) if os.path.isabs(entry)) or os.defpath


def _base(variable: str, unix: str, mac: str) -> Path:
    given = os.environ.get(variable)
    # The XDG standard: a relative path in these variables is to be ignored.
    if given and os.path.isabs(given):
        return Path(given)
    return Path.home() / (mac if sys.platform == "darwin" else unix)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
