"""Streamed Anthropic messages: the endpoint of Anthropic and compatible ones.

As lenient and as strict as the reader of chat completions: unknown events and blocks are passed over, since the format
promises to grow; a stream without its end, or one that is something else, is a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import httpx2
import msgspec

from kedge.core.records import Usage
from kedge.core.transcript import FinishReason
from kedge.errors import ModelFailed
from kedge.llm.anthropic_request import request_body
from kedge.llm.base import REDACTED, ModelPart, ModelRequest, ReasoningDelta, TextDelta
from kedge.llm.content import Json
from kedge.llm.streaming import CALL_NAME_CHARS_MAX, HttpModel, OpenCall, Reply
from kedge.llm.transport import error_in

#: The version of the format.
FORMAT_VERSION: Final = "2023-06-01"
#: Signature of one thought. It grows with the thought, to some ten thousand characters.
SIGNATURE_CHARS_MAX: Final = 1024 * 1024

_FINISH: Final[dict[str, FinishReason]] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "tool_use": "tool_use",
    "refusal": "content_filter",
}


# The events. Other fields are ignored; each field may be null.


class _Block(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _Delta(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _Message(msgspec.Struct):
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    type: str | None = None
    index: int | None = None
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_events = msgspec.json.Decoder(_Event)


class AnthropicModel(HttpModel):
    """A model at an endpoint with the format of Anthropic."""

    def _url(self) -> httpx2.URL:
        # The configured address may include the version. The path of a bare host is a slash.
        url = self._endpoint.checked_url("")
        return url.copy_with(path=url.path.rstrip("/").removesuffix("/v1") + "/v1/messages")

    def _headers(self) -> dict[str, str]:
        key = self._endpoint.checked_key()
        return {"anthropic-version": FORMAT_VERSION, **({"x-api-key": key} if key else {})}

    def _body(self, request: ModelRequest) -> Json:
        return request_body(request, self.provider)

    def _reply(self, request: ModelRequest) -> Reply:
        return _MessagesReply(self._endpoint, request.model)


class _MessagesReply(Reply):
    format_name = "messages"
    finish_names = _FINISH

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._spent = _Usage()
        #: Pieces of the signature of the current thought.
        self._signature: list[str] = []
        self._signature_chars = 0

    def _take(self, data: bytes) -> Iterator[ModelPart]:
        event = _events.decode(data)
        error = error_in(event.error)
        if error is not None or event.type == "error":
            raise self._endpoint.stream_failed(error, self._model)
        match event.type:
            case None:
                raise msgspec.ValidationError("an event without type")
            case "message_start":
                self._count(event.message.usage if event.message else None)
            case "content_block_start":
                yield from self._begin(event.index, event.content_block or _Block())
            case "content_block_delta":
                yield from self._go_on(event.index, event.delta or _Delta())
            case "content_block_stop":
                if self._signature:
                    yield ReasoningDelta("", "".join(self._signature))
                    self._signature = []
                    self._signature_chars = 0
            case "message_delta":
                self._count(event.usage)
                self._finish = (event.delta.stop_reason if event.delta else None) or self._finish
            case "message_stop":
                self.done = True
            case _:
                pass  # a ping, or a future event type

    def _begin(self, index: int | None, block: _Block) -> Iterator[ModelPart]:
        match block.type:
            case "tool_use":
                call = self._open_call(index)
                call.id = (block.id or "")[:CALL_NAME_CHARS_MAX]
                call.name = (block.name or "")[:CALL_NAME_CHARS_MAX]
                # Empty in the format, where deltas hold the input; some other servers send the complete input.
                if bytes(block.input) not in (b"{}", b"null"):
                    self._add_input(call, bytes(block.input).decode())
            case "redacted_thinking" if block.data:
                yield ReasoningDelta("", REDACTED + block.data)
            case "text" | "thinking":
                yield from self._go_on(index, _Delta("", block.text, block.thinking, block.signature))
            case _:
                pass

    def _go_on(self, index: int | None, delta: _Delta) -> Iterator[ModelPart]:
        if delta.thinking:
            yield ReasoningDelta(delta.thinking)
        if delta.text:
            yield TextDelta(delta.text)
        if delta.signature:
            self._signature.append(delta.signature)
            self._signature_chars += len(delta.signature)
            if self._signature_chars > SIGNATURE_CHARS_MAX:
                raise ModelFailed(
                    f"Provider {self._endpoint.name} sent a signature of more than {SIGNATURE_CHARS_MAX} characters; "
                    "this is not a reply of a model; check base_url."
                )
        if delta.partial_json and (call := self._call(index)):
            self._add_input(call, delta.partial_json)

    def _call(self, index: int | None) -> OpenCall | None:
        """Return the call; None for input of a tool that the provider runs."""
        return next((call for call in reversed(self._calls) if call.index == index), None)

    def _count(self, usage: _Usage | None) -> None:
        """Take the latest numbers: those at the end are totals of the reply."""
        if usage is None:
            return
        spent = self._spent
        for name in _Usage.__struct_fields__:
            if (count := getattr(usage, name)) is not None:
                setattr(spent, name, count)
        read, written = spent.cache_read_input_tokens or 0, spent.cache_creation_input_tokens or 0
        self._usage = Usage(
            (spent.input_tokens or 0) + read + written,
            spent.output_tokens or 0,
            cache_read_tokens=read,
            cache_write_tokens=written,
        )
