"""Minimal HTTP connections and event streams, so that the figures do not include an HTTP library."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from bench.server import Address, Server

#: Limit for any reply or stream event; only a hang reaches it. Seconds.
WAIT_S = 30.0

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def request(address: Address, method: str, path: str, body: object = None) -> bytes:
    content = b"" if body is None else _encode(body)
    head = f"{method} {path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nContent-Length: {len(content)}\r\n"
    if content:
        head += "Content-Type: application/json\r\n"
    if address.token:
        head += f"Authorization: Bearer {address.token}\r\n"
    return f"{head}\r\n".encode() + content


class Connection:
    """One keep-alive connection; one request at a time."""

    def __init__(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, address: Address) -> AsyncIterator[Self]:
        connection = cls(address, *await asyncio.open_connection(address.host, address.port))
        try:
            yield connection
        finally:
            connection._writer.close()
            with contextlib.suppress(OSError):
                await connection._writer.wait_closed()

    def send(self, method: str, path: str, body: object = None) -> None:
        """Write the request without waiting for the reply."""
        self._writer.write(request(self.address, method, path, body))

    async def receive(self) -> tuple[int, Any]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        lines = head.lower().split(b"\r\n")
        length = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
        return status, _decode(await self._reader.readexactly(length))

    async def call(self, method: str, path: str, body: object = None) -> Any:
        if self._reader.at_eof():  # the server closed the idle connection
            self._writer.close()
            self._reader, self._writer = await asyncio.open_connection(self.address.host, self.address.port)
        self.send(method, path, body)
        status, reply = await asyncio.wait_for(self.receive(), WAIT_S)
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {reply}")
        return reply


class Body(asyncio.Protocol):
    """The body of a chunked reply. Passes on each chunk as it arrives, without the chunk framing."""

    def __init__(self, received: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._received = received
        self._ended = ended
        self._rest = b""
        self._in_head = True

    def data_received(self, data: bytes) -> None:
        rest = self._rest + data
        if self._in_head:
            head, separator, rest = rest.partition(b"\r\n\r\n")
            if not separator:
                self._rest = head
                return
            if head.split(b" ", 2)[1] != b"200":
                raise RuntimeError(f"stream refused: {(head + rest)[:500]!r}")
            self._in_head = False
        start = 0
        while (line_end := rest.find(b"\r\n", start)) >= 0:
            end = line_end + 2 + int(rest[start:line_end], 16)
            if len(rest) < end + 2:
                break
            self._received(rest[line_end + 2 : end])
            start = end + 2
        self._rest = rest[start:]

    def connection_lost(self, error: Exception | None) -> None:
        self._ended()


@dataclass(slots=True)
class Frame:
    at: float
    type: str
    payload: Json
    position: int | None
    #: Including `id:`, `data:` and the blank line.
    size_bytes: int


@dataclass(eq=False)
class Stream:
    """An open event stream. Keeps every frame with the time of its arrival."""

    frames: list[Frame] = field(default_factory=list)
    ended: bool = False
    _rest: bytes = b""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _connected: bool = False

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, address: Address, path: str) -> AsyncIterator[Self]:
        stream = cls()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: Body(stream._take, stream._end), address.host, address.port)
        transport.write(request(address, "GET", path))
        try:
            await stream.until(lambda: stream._connected)
            yield stream
        finally:
            transport.abort()

    def _take(self, data: bytes) -> None:
        at = time.perf_counter()
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for text in events:
            self._connected = True
            id_line, _, data_line = text.rpartition(b"\n")
            if data_line.startswith(b"data: "):
                event = _decode(data_line[6:])
                position = int(id_line[4:]) if id_line else None
                self.frames.append(Frame(at, event["type"], event["payload"]["payload"], position, len(text) + 2))
        self._changed.set()

    def _end(self) -> None:
        self.ended = True
        self._changed.set()

    async def until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(WAIT_S):
            while not (value := condition()):
                if self.ended:
                    raise RuntimeError("the stream ended")
                self._changed.clear()
                await self._changed.wait()
        return value

    def find(self, kind: str, start: int = 0, **fields: Any) -> list[Frame]:
        """Return the frames of this type with these fields, beginning at index `start`."""
        return [
            frame for frame in self.frames[start:] if frame.type == kind and fields.items() <= frame.payload.items()
        ]

    async def until_delta(self, start: int) -> Frame:
        """Wait for the first delta, beginning at index `start`."""
        frames: list[Frame] = await self.until(lambda: self.find("delta", start) or self.find("run_complete", start))
        if frames[0].type != "delta":
            raise RuntimeError(f"a run ended without a delta: {frames[0].payload}")
        return frames[0]

    async def until_complete(self, run_id: str, start: int = 0) -> Frame:
        frames: list[Frame] = await self.until(lambda: self.find("run_complete", start, run_id=run_id))
        return frames[0]


class Client:
    """A client of one workspace with one connection."""

    def __init__(self, connection: Connection, workspace_id: str) -> None:
        self.connection = connection
        self.workspace_id = workspace_id

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, address: Address, server: Server) -> AsyncIterator[Self]:
        async with cls.at_directory(address, server.workspace) as client:
            yield client

    @classmethod
    @contextlib.asynccontextmanager
    async def at_directory(cls, address: Address, directory: Path) -> AsyncIterator[Self]:
        async with Connection.open(address) as connection:
            body = {"path": str(directory), "client_id": str(uuid.uuid4())}
            workspace = await connection.call("POST", "/v1/workspaces", body)
            yield cls(connection, workspace["id"])

    @property
    def at(self) -> str:
        return f"/v1/workspaces/{self.workspace_id}"

    def events(self, *more: str) -> str:
        return "&".join([f"{self.at}/events?client_id={uuid.uuid4()}&deltas=1", *more])

    def stream(self, *more: str) -> contextlib.AbstractAsyncContextManager[Stream]:
        return Stream.open(self.connection.address, self.events(*more))

    async def session(self) -> str:
        reply = await self.connection.call("POST", f"{self.at}/sessions", {"title": "bench"})
        return str(reply["id"])

    async def submit(self, session_id: str, script: str, **more: object) -> str:
        body = {"session_id": session_id, "prompt": script, "when_busy": "queue", **more}
        return str((await self.connection.call("POST", f"{self.at}/agent", body))["run_id"])

    async def cancel(self, session_id: str) -> Json:
        reply: Json = await self.connection.call("POST", f"{self.at}/agent/sessions/{session_id}/cancel")
        return reply

    async def run(self, run_id: str) -> Json:
        reply: Json = await self.connection.call("GET", f"{self.at}/agent/runs/{run_id}")
        return reply
