"""A TCP proxy that cuts, holds up or half-closes its connections."""

from __future__ import annotations

import asyncio
import contextlib

_READ_BYTES = 65_536


class TcpProxy:
    """Forwards `port` to a port of this machine."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Cleared: bytes to the server, or from it, wait. The connection stays open.
        self.to_server, self.from_server = asyncio.Event(), asyncio.Event()
        self.to_server.set()
        self.from_server.set()
        #: Set when bytes have been read that wait.
        self.is_holding = asyncio.Event()
        self.port = 0
        #: Connections that were accepted so far. False: further ones are refused.
        self.accepted = 0
        self.is_accepting = True

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """End all connections without a farewell."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def half_close(self) -> None:
        """End the direction to the clients: they read the end of the stream, and can still write."""
        for writer in self._writers:
            with contextlib.suppress(OSError):
                writer.write_eof()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            if not self.is_accepting:
                raise ConnectionRefusedError
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, server_writer}
        for task in (
            asyncio.create_task(self._pump(reader, server_writer, self.to_server)),
            asyncio.create_task(self._pump(server_reader, writer, self.from_server)),
        ):
            self._tasks.add(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_open: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                if not is_open.is_set():
                    self.is_holding.set()
                    await is_open.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
