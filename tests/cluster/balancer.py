"""A small balancer: each connection goes to the next node that accepts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import count

#: Bytes per read of a connection.
READ_BYTES = 64 * 1024


class Balancer:
    """`ports` returns the ports of the nodes on this machine."""

    def __init__(self, ports: Callable[[], list[int]]) -> None:
        self._ports = ports
        self._numbers = count()
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        opened: int = self._server.sockets[0].getsockname()[1]
        return opened

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            node = await self._connect()
            if node is not None:
                await asyncio.gather(_copy(reader, node[1]), _copy(node[0], writer))
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        ports = self._ports()
        first = next(self._numbers)
        for index in range(len(ports)):
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", ports[(first + index) % len(ports)])
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.close()
