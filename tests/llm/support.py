"""A server that sends given bytes, and helpers for model requests."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import msgspec
import pytest

from kedge.core.transcript import Message, Part, Role, Text
from kedge.errors import ModelFailed
from kedge.llm.anthropic import AnthropicModel
from kedge.llm.base import Model, ModelEnd, ModelPart, ModelRequest, TextDelta
from kedge.llm.openai import OpenAIModel
from kedge.llm.transport import TIMEOUT

KEY = "sk-secret-0123456789"


def message(role: Role, *parts: Part | str, run_id: str = "r1", provider: str = "") -> Message:
    content = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    return Message("m", "s", role, content, 0, 0, run_id, provider=provider)


def asking(*messages: Message | str, **more: Any) -> ModelRequest:
    history = tuple(message("user", item) if isinstance(item, str) else item for item in messages)
    return ModelRequest("fake-large", history, **more)


class RawServer:
    """Answers every request with the same bytes, then closes, hangs or resets the connection."""

    def __init__(self, pieces: Iterable[bytes], then: str = "close") -> None:
        self._pieces = list(pieces)
        self._then = then
        self._writers: list[asyncio.StreamWriter] = []
        self.requests = 0

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        await reader.readexactly(int(length.group(1)) if length else 0)
        self.requests += 1
        try:
            for piece in self._pieces:
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            return  # the client has closed the connection
        if self._then == "close":
            writer.close()
        elif self._then == "reset":
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


def http(body: bytes, status: str = "200 OK", kind: str = "text/event-stream", more: str = "") -> bytes:
    """A response that ends with the connection."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}Connection: close\r\n\r\n".encode() + body


def chunked(pieces: Iterable[bytes], end: bool = True) -> bytes:
    """A chunked response. The client reads each piece separately, independent of the network."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + (b"0\r\n\r\n" if end else b"")


class Bench:
    """The environment of one model: the client, a model for an address, and raw servers."""

    def __init__(self, client: httpx2.AsyncClient, stack: AsyncExitStack) -> None:
        self.client = client
        self._stack = stack

    def model(self, url: str, key: str | None = KEY, timeout: httpx2.Timeout = TIMEOUT) -> OpenAIModel:
        return OpenAIModel("local", "fake-large", url, key, self.client, timeout)

    def claude(
        self, url: str, key: str | None = KEY, timeout: httpx2.Timeout = TIMEOUT, name: str = "fake-large"
    ) -> AnthropicModel:
        return AnthropicModel("claude", name, url, key, self.client, timeout)

    async def raw(self, *pieces: bytes, then: str = "close") -> OpenAIModel:
        """A model whose server sends these bytes."""
        return self.model(await self.raw_url(*pieces, then=then))

    async def raw_claude(self, *pieces: bytes, then: str = "close") -> AnthropicModel:
        return self.claude(await self.raw_url(*pieces, then=then))

    async def raw_url(self, *pieces: bytes, then: str = "close") -> str:
        return (await self._stack.enter_async_context(RawServer(pieces, then))).url


async def parts_of(model: Model, request: ModelRequest) -> list[ModelPart]:
    async with model.stream(request) as parts:
        return [part async for part in parts]


async def failed(model: Model, request: ModelRequest) -> ModelFailed:
    """The error of the request."""
    with pytest.raises(ModelFailed) as caught:
        await parts_of(model, request)
    return caught.value


def text_of(parts: list[ModelPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextDelta))


def end_of(parts: list[ModelPart]) -> ModelEnd:
    assert isinstance(parts[-1], ModelEnd)
    return parts[-1]


def frame(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + msgspec.json.encode({"choices": [choice]}) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def event(kind: str, **fields: Any) -> bytes:
    """An event of an Anthropic stream."""
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode({"type": kind, **fields}) + b"\n\n"


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> bytes:
    """A complete content block of an Anthropic stream."""
    return b"".join(
        [
            event("content_block_start", index=index, content_block=start),
            *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
            event("content_block_stop", index=index),
        ]
    )


def text_block(index: int, *pieces: str) -> bytes:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def ending(reason: str | None = "end_turn", **usage: int) -> bytes:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return event("message_delta", delta=delta, usage=usage) + event("message_stop")


START = event(
    "message_start", message={"id": "msg_1", "role": "assistant", "content": [], "usage": {"input_tokens": 7}}
)
