"""The paths that kedge uses on this machine. Standard library only: the client imports this at each start."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

#: The kernel's limit for the path of a Unix socket. Bytes.
SOCKET_PATH_BYTES_MAX = 103 if sys.platform == "darwin" else 107


def config_file() -> Path:
    """Return the user's configuration file; `KEDGE_CONFIG` overrides it."""
    if path := os.environ.get("KEDGE_CONFIG"):
        return Path(path).expanduser()
    return _base("XDG_CONFIG_HOME", ".config", "Library/Application Support") / "kedge" / "config.toml"


def protected_config_path() -> Path:
    """Return the directory of the configuration; with `KEDGE_CONFIG` only the file, since its directory is not ours."""
    return config_file().absolute() if os.environ.get("KEDGE_CONFIG") else config_file().parent


def data_dir() -> Path:
    """Return the directory of the store, the token and the server log; `KEDGE_DATA_DIR` overrides it."""
    if path := os.environ.get("KEDGE_DATA_DIR"):
        return Path(path).expanduser().absolute()
    return _base("XDG_DATA_HOME", ".local/share", "Library/Application Support") / "kedge"


def runtime_dir() -> Path:
    """Return the private directory of the socket. Inside `KEDGE_DATA_DIR` if that is set.

    Never below a temporary directory, where sandboxed commands can write and could replace the socket."""
    directories = [data_dir() / "run"]
    path = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.environ.get("KEDGE_DATA_DIR") and os.path.isabs(path) and not _is_temporary(path):
        directories.insert(0, Path(path) / "kedge")
    name = _server_file("sock")
    short = [one for one in directories if len(os.fsencode(one / name)) <= SOCKET_PATH_BYTES_MAX]
    return short[0] if short else Path.home() / ".kedge"


def socket_file() -> Path:
    return runtime_dir() / _server_file("sock")


def server_record() -> Path:
    """Return the file that identifies the process of the server (`kedge.wire.server_record`)."""
    return runtime_dir() / _server_file("pid")


def start_lock() -> Path:
    """Return the file that a client keeps locked while it starts the server."""
    return runtime_dir() / _server_file("lock")


def lock_file() -> Path:
    """Return the file that the server of the data directory keeps locked (`kedge.store.data_directory`)."""
    return data_dir() / "kedge.lock"


def default_host() -> str:
    return f"unix://{socket_file()}"


def token_file(directory: Path | None = None) -> Path:
    return (directory or data_dir()) / "token"


def mcp_token_file() -> Path:
    """Return the token of `kedge mcp serve --http`. It is not the server's: its holder can do less."""
    return data_dir() / "mcp-token"


def server_log() -> Path:
    return data_dir() / "server.log"


def program() -> tuple[str, ...]:
    """Return the directories of the program: its package, Python, its environment, and the launcher of a clone."""
    package = Path(__file__).parent
    scripts = package.parents[1] / "scripts"
    launcher = (str(scripts),) if (scripts / "kedge").exists() else ()
    return (str(package), sys.prefix, sys.base_prefix, *launcher)


def absolute_entries(search_path: str) -> str:
    """Remove relative entries from a PATH: they lead to the current directory, which may be an untrusted repository."""
    return os.pathsep.join(entry for entry in search_path.split(os.pathsep) if os.path.isabs(entry)) or os.defpath


def _base(variable: str, unix: str, mac: str) -> Path:
    path = os.environ.get(variable)
    # XDG Base Directory Specification: relative paths in these variables are ignored.
    if path and os.path.isabs(path):
        return Path(path)
    return Path.home() / (mac if sys.platform == "darwin" else unix)


def _server_file(suffix: str) -> str:
    """Return the name of a file of the data directory's server: users with several homes have several servers."""
    return f"{hashlib.sha256(os.fsencode(os.path.realpath(data_dir()))).hexdigest()[:12]}.{suffix}"


def _is_temporary(path: str) -> bool:
    real = os.path.realpath(path)
    temporary = {os.path.realpath(directory) for directory in ("/tmp", "/var/tmp", os.environ.get("TMPDIR") or "/tmp")}
    return any(os.path.commonpath((real, directory)) == directory for directory in temporary)
