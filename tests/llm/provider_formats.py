"""A server with prepared replies, and the stream formats of OpenAI's responses API and of Google."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec


class Server:
    """A server that answers each request with its next reply, and repeats the last one."""

    def __init__(self) -> None:
        self.replies: list[bytes] = []
        #: Keep the connection open after the reply until the client closes it.
        self.hangs = False
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[str] = []
        self.written = asyncio.Event()
        self.disconnected = asyncio.Event()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"content-length: (\d+)", head.lower())
            body = await reader.readexactly(int(length.group(1)) if length else 0)
            self.paths.append(head.split()[1])
            self.headers.append(head)
            self.bodies.append(msgspec.json.decode(body))
            writer.write(self.replies[min(len(self.bodies), len(self.replies)) - 1])
            await writer.drain()
            self.written.set()
            if self.hangs:
                await reader.read()  # returns at the end of the connection
                self.disconnected.set()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.disconnected.set()
        finally:
            writer.close()


def answer(body: bytes, status: str = "200 OK", kind: str = "text/event-stream", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}Connection: close\r\n\r\n".encode() + body


# --- The format of OpenAI's responses API ----------------------------------------------------------------------------

USAGE = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 20},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 37,
}


def response(status: str, **more: Any) -> dict[str, Any]:
    base = {"id": "resp_1", "object": "response", "created_at": 1, "model": "large", "output": [], "tools": []}
    return {**base, "parallel_tool_calls": True, "tool_choice": "auto", "status": status, **more}


def events(*items: dict[str, Any]) -> bytes:
    lines = []
    for number, event in enumerate(items):
        numbered = {**event, "sequence_number": number}
        lines.append(f"event: {event['type']}\ndata: {msgspec.json.encode(numbered).decode()}\n\n")
    return "".join(lines).encode()


CREATED = {"type": "response.created", "response": response("in_progress")}
DONE = {"type": "response.completed", "response": response("completed", usage=USAGE)}


def text_items(*words: str) -> list[dict[str, Any]]:
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    at = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    return [
        {"type": "response.output_item.added", "output_index": 1, "item": item},
        {"type": "response.content_part.added", **at, "part": part},
        *({"type": "response.output_text.delta", **at, "delta": word, "logprobs": []} for word in words),
    ]


def call_items(*pieces: str, call_id: str = "call_7", index: int = 2) -> list[dict[str, Any]]:
    item = {"id": f"fc_{index}", "type": "function_call", "call_id": call_id, "name": "read", "arguments": ""}
    completed = {**item, "arguments": "".join(pieces), "status": "completed"}
    deltas = [
        {
            "type": "response.function_call_arguments.delta",
            "item_id": f"fc_{index}",
            "output_index": index,
            "delta": piece,
        }
        for piece in pieces
    ]
    return [
        {"type": "response.output_item.added", "output_index": index, "item": {**item, "status": "in_progress"}},
        *deltas,
        {"type": "response.output_item.done", "output_index": index, "item": completed},
    ]


def reasoning_items(*words: str) -> list[dict[str, Any]]:
    item: dict[str, Any] = {"id": "rs_1", "type": "reasoning", "summary": []}
    at = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
    text = {"type": "summary_text", "text": "".join(words)}
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.reasoning_summary_part.added", **at, "part": {"type": "summary_text", "text": ""}},
        *({"type": "response.reasoning_summary_text.delta", **at, "delta": word} for word in words),
        {"type": "response.reasoning_summary_part.done", **at, "part": text},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {**item, "summary": [text], "encrypted_content": "sealed"},
        },
    ]


# --- The format of Google --------------------------------------------------------------------------------------------


def google_events(*items: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + msgspec.json.encode(event) + b"\r\n\r\n" for event in items)


def candidate(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {"candidates": [{**choice, **({"finishReason": finish} if finish else {})}], "modelVersion": "g", **more}


GOOGLE_USAGE = {
    "promptTokenCount": 30,
    "cachedContentTokenCount": 20,
    "candidatesTokenCount": 5,
    "thoughtsTokenCount": 2,
    "totalTokenCount": 37,
}
