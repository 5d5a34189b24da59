"""The last listings of MCP servers, and the tools that the user approved. One file per server.

Tools of a server can be offered before it is started. A damaged file counts as missing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from kedge.bridge.mcp_messages import McpListing
from kedge.config.repository import read_regular

DIRECTORY = "mcp"
#: Files, the oldest removed first: more servers than a user has. Items.
FILES_MAX = 200
#: Size of a file: some hundred tools with large schemas. Bytes.
FILE_BYTES_MAX = 8 * 1024 * 1024


class CachedServer(Struct):
    listing: McpListing | None = None
    #: Tool -> the digest of its description and schema when it was last approved.
    approved: dict[str, str] = {}
    #: Why the last start failed; empty: it did not.
    error: str = ""


class McpCache:
    """All methods block. `key`: a digest of the configuration of the server."""

    def __init__(self, data_dir: Path) -> None:
        self._directory = data_dir / DIRECTORY

    def read(self, key: str) -> CachedServer:
        try:
            content = read_regular(self._file(key), FILE_BYTES_MAX + 1)
            if content is None or len(content) > FILE_BYTES_MAX:
                return CachedServer()
            return msgspec.json.decode(content, type=CachedServer)
        except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
            return CachedServer()

    def write(self, key: str, server: CachedServer) -> None:
        """Write the file. A failure is ignored: the server is listed again at its next start."""
        content = msgspec.json.encode(server)
        if len(content) > FILE_BYTES_MAX:
            content = msgspec.json.encode(CachedServer(None, server.approved, server.error))
        file = self._file(key)
        new = file.with_name(f"{key}.{os.getpid()}")
        with suppress(OSError):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as opened:
                opened.write(content)
            os.replace(new, file)
            self._remove_old()

    def _remove_old(self) -> None:
        files = sorted(self._directory.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for file in files[:-FILES_MAX]:
            file.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self._directory / f"{key}.json"
