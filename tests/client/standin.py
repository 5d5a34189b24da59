"""A stand-in HTTP server that sends exact bytes, including replies that a real server never sends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


Handler = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


def answer(status: int, body: bytes, media_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {media_type}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
    return head.encode() + b"\r\n" + body


def json(status: int, body: Any) -> bytes:
    return answer(status, msgspec.json.encode(body))


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: connected\n\n"


def frame(kind: str, payload: dict[str, Any], position: int | None = None, change: str = "created") -> bytes:
    envelope = msgspec.json.encode({"type": kind, "payload": {"type": change, "payload": payload}})
    return (b"" if position is None else b"id: %d\n" % position) + b"data: " + envelope + b"\n\n"


class StandIn:
    """A server that passes each request to one handler, one per connection. `asked` lists the requests."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.asked: list[Asked] = []
        self.host = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.host = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._server
        self._server.close()
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._serving.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            method, target, _ = first.split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            path, _, query = target.partition("?")
            asked = Asked(method, path.removeprefix("/v1"), query, headers, body)
            self.asked.append(asked)
            await self._handler(asked, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client disconnected
        except asyncio.CancelledError:
            pass  # the test has ended; asyncio logs cancelled handlers
        finally:
            self._serving.discard(task)
            writer.close()


def always(reply: bytes) -> Handler:
    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        await writer.drain()

    return handler
