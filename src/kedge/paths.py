"""Where kedge keeps things on this machine. Standard library only: the client reads this at each start."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

#: What the kernel takes for the path of a socket. Bytes.
SOCKET_PATH_BYTES_MAX = 103 if sys.platform == "darwin" else 107


def config_file() -> Path:
    """The user's configuration; `KEDGE_CONFIG` names another one."""
    if given := os.environ.get("KEDGE_CONFIG"):
        return Path(given).expanduser()
    return _base("XDG_CONFIG_HOME", ".config", "Library/Application Support") / "kedge" / "config.toml"


def config_place() -> Path:
    """The directory of the configuration; the file alone if `KEDGE_CONFIG` names it, for its directory is not ours."""
    return config_file().absolute() if os.environ.get("KEDGE_CONFIG") else config_file().parent


def data_dir() -> Path:
    """Store, token and server log; `KEDGE_DATA_DIR` names another one."""
    if given := os.environ.get("KEDGE_DATA_DIR"):
        return Path(given).expanduser().absolute()
    return _base("XDG_DATA_HOME", ".local/share", "Library/Application Support") / "kedge"


def runtime_dir() -> Path:
    """A directory of this user alone for the socket. With another data directory it is in there: one server for each.

    It is never below a temporary directory, where sandboxed commands may write and could replace the socket."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.environ.get("KEDGE_DATA_DIR") and os.path.isabs(given) and not _is_temporary(given):
        return Path(given) / "kedge"
    inside = data_dir() / "run"
    if len(os.fsencode(inside / _socket_name())) <= SOCKET_PATH_BYTES_MAX:
        return inside
    return Path.home() / ".kedge" / _short_hash(str(data_dir()))


def socket_file() -> Path:
    return runtime_dir() / _socket_name()


def server_record() -> Path:
    """Which process is the server on the socket (`kedge.wire.identity`). In the data directory: tools may write to the
    temporary directory, and a user may have chosen a runtime directory in there."""
    return data_dir() / "server.pid"


def default_host() -> str:
    return f"unix://{socket_file()}"


def token_file(directory: Path | None = None) -> Path:
    return (directory or data_dir()) / "token"


def server_log() -> Path:
    return data_dir() / "server.log"


def program() -> tuple[str, ...]:
    """The directories that kedge is run from: its package, Python, its environment, and the launcher of a clone."""
    package = Path(__file__).parent
    scripts = package.parents[1] / "scripts"
    launcher = (str(scripts),) if (scripts / "kedge").exists() else ()
    return (str(package), sys.prefix, sys.base_prefix, *launcher)


def absolute_entries(search_path: str) -> str:
    """A PATH without relative entries: they lead to the current directory, which may be an untrusted repository."""
    return os.pathsep.join(entry for entry in search_path.split(os.pathsep) if os.path.isabs(entry)) or os.defpath


def _base(variable: str, unix: str, mac: str) -> Path:
    given = os.environ.get(variable)
    # The XDG standard: a relative path in these variables is to be ignored.
    if given and os.path.isabs(given):
        return Path(given)
    return Path.home() / (mac if sys.platform == "darwin" else unix)


def _socket_name() -> str:
    return f"kedge-{os.getuid()}.sock"


def _is_temporary(path: str) -> bool:
    real = os.path.realpath(path)
    temporary = {os.path.realpath(place) for place in ("/tmp", "/var/tmp", os.environ.get("TMPDIR") or "/tmp")}
    return any(os.path.commonpath((real, place)) == place for place in temporary)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
