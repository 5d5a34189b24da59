"""HTTP without a client library: odd headers, unread replies, aborted connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from tests.conformance.harness import WAIT_S


def request(
    method: str,
    path: str,
    *,
    headers: Iterable[tuple[str, bytes]] = (),
    body: bytes = b"",
    host: str | None = "localhost",
) -> bytes:
    """Return the bytes of one request. `host=None` omits the Host header."""
    lines = [f"{method} {path} HTTP/1.1".encode()]
    lines += [b"Host: " + host.encode()] if host is not None else []
    lines += [name.encode() + b": " + value for name, value in headers]
    lines += [b"Content-Length: %d" % len(body)] if body else []
    return b"\r\n".join([*lines, b"", body])


def submit(token: str, workspace: str, fields: dict[str, Any]) -> bytes:
    headers = [("Authorization", b"Bearer " + token.encode()), ("Content-Type", b"application/json")]
    return request("POST", f"/v1/workspaces/{workspace}/agent", headers=headers, body=json.dumps(fields).encode())


class RawConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def reply(self) -> tuple[int, Any]:
        """Return the status and the JSON body of the next reply."""
        async with asyncio.timeout(WAIT_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            lengths = [line.partition(":")[2] for line in head if line.lower().startswith("content-length:")]
            body = await self._reader.readexactly(int(lengths[0])) if lengths else await self._reader.read()
        return int(head[0].split()[1]), json.loads(body)

    async def read(self) -> bytes:
        """Read to the end of the connection."""
        return await self._reader.read()

    def abort(self) -> None:
        """Close the connection abruptly, as the kernel does for a killed process."""
        self._writer.transport.abort()


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[RawConnection]:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
