"""The logins to remote MCP servers: one file per server in the user's data directory, which no tool can read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from kedge.config.repository import UntrustedFile, read_regular
from kedge.core.mcp_login import McpLogin
from kedge.errors import BadConfig

DIRECTORY = "mcp-logins"
#: Size of a file: tokens have some kilobytes. Bytes.
FILE_BYTES_MAX = 256 * 1024


class _LoginFile(Struct):
    #: The configured name of the server.
    name: str
    login: McpLogin


class McpLogins(Struct, frozen=True):
    """All methods block. A damaged file counts as missing: the user logs in again."""

    data_dir: Path

    def read(self, name: str, url: str) -> McpLogin | None:
        """Return the login to the server with this name and exactly this URL."""
        stored = _read(self.file(name, url))
        return stored.login if stored is not None and (stored.name, stored.login.url) == (name, url) else None

    def write(self, name: str, login: McpLogin) -> None:
        content = msgspec.json.encode(_LoginFile(name, login))
        if len(content) > FILE_BYTES_MAX:
            raise BadConfig(f"The tokens of the MCP server {name} are larger than {FILE_BYTES_MAX // 1024} kB.")
        file = self.file(name, login.url)
        new = file.with_name(f"{file.name}.{os.getpid()}")
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.unlink(missing_ok=True)  # otherwise an old file would keep its permissions
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as opened:
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())  # the authorization server may accept only the newest refresh token
            os.replace(new, file)
        except OSError as error:
            raise BadConfig(f"{file} cannot be written: {error.strerror}.") from None

    def remove(self, name: str) -> int:
        """Remove the logins to servers with this name, whatever their URLs are. Returns their number."""
        files = [file for file in (self.data_dir / DIRECTORY).glob("*.json") if _is_of(file, name)]
        for file in files:
            file.unlink(missing_ok=True)
        return len(files)

    def file(self, name: str, url: str) -> Path:
        digest = hashlib.sha256(msgspec.json.encode([name, url])).hexdigest()[:32]
        return self.data_dir / DIRECTORY / f"{digest}.json"


def _is_of(file: Path, name: str) -> bool:
    stored = _read(file)
    return stored is not None and stored.name == name


def _read(file: Path) -> _LoginFile | None:
    try:
        content = read_regular(file, FILE_BYTES_MAX, frozenset({os.getuid()}))
        return None if content is None else msgspec.json.decode(content, type=_LoginFile)
    except (OSError, UntrustedFile, msgspec.DecodeError, UnicodeError, RecursionError):
        return None
