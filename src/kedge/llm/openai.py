"""OpenAI-compatible endpoints: streamed chat completions, the format of most hosted and nearly all local servers.

Servers take liberties with it, so this reader is lenient where the meaning is clear (no `[DONE]`, no blank line at the
end, `null` where nothing is due, tool calls without index or id) and fails where it is not (no end, no JSON).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import httpx2
import msgspec
from msgspec.structs import astuple

from kedge.core.records import Usage
from kedge.core.transcript import FinishReason
from kedge.llm.base import ModelPart, ModelRequest, ReasoningDelta, TextDelta
from kedge.llm.content import Json
from kedge.llm.openai_request import REASONING_FIELD, request_body
from kedge.llm.streaming import CALL_NAME_CHARS_MAX, TOOL_CALLS_MAX, HttpModel, Reply
from kedge.llm.transport import error_in

_FINISH: Final[dict[str, FinishReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "content_filter",
}


# The events. Other fields are ignored; each field may be null.


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


#: Items that are decoded of an array: an event of megabytes may hold a million. One more than the limit shows that it
#: was exceeded.
_Calls: Any = msgspec.defstruct(
    "_Calls", [(f"call_{number}", _Call | None, None) for number in range(TOOL_CALLS_MAX + 1)], array_like=True
)


class _Fragment(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: _Calls | None = None


class _Choice(msgspec.Struct):
    delta: _Fragment | None = None
    finish_reason: str | None = None


class _Choices(msgspec.Struct, array_like=True):
    """An array of which only the first item is used."""

    first: _Choice | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Frame(msgspec.Struct):
    choices: _Choices | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_frames = msgspec.json.Decoder(_Frame)


class OpenAIModel(HttpModel):
    """A model at an OpenAI-compatible endpoint."""

    def _url(self) -> httpx2.URL:
        return self._endpoint.checked_url("/chat/completions")

    def _headers(self) -> dict[str, str]:
        key = self._endpoint.checked_key()
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _body(self, request: ModelRequest) -> Json:
        # OpenAI renamed the limit; most other servers support the old name only.
        limit = "max_completion_tokens" if self._url().host.endswith("openai.com") else "max_tokens"
        return request_body(request, f"{self.provider}/{self.name}", limit)

    def _reply(self, request: ModelRequest) -> Reply:
        return _CompletionsReply(self._endpoint, request.model)


class _CompletionsReply(Reply):
    format_name = "chat completions"
    finish_names = _FINISH
    #: The current thought arrived in the field that the provider requires back.
    _wants_it_back = False

    def _take(self, data: bytes) -> Iterator[ModelPart]:
        if data.strip() == b"[DONE]":
            self.done = True
            return
        frame = _frames.decode(data)
        if (error := error_in(frame.error)) is not None:
            raise self._endpoint.stream_failed(error, self._model)
        if frame.usage is not None:
            self._usage = _spent(frame.usage)
        choice = frame.choices.first if frame.choices else None
        if choice is None:
            return
        if choice.delta is not None:
            if thought := choice.delta.reasoning_content or choice.delta.reasoning:
                self._wants_it_back = bool(choice.delta.reasoning_content)
                yield ReasoningDelta(thought)
            elif self._wants_it_back and (choice.delta.content or choice.delta.tool_calls):
                self._wants_it_back = False
                yield ReasoningDelta("", REASONING_FIELD)
            if choice.delta.content:
                yield TextDelta(choice.delta.content)
            calls = astuple(choice.delta.tool_calls) if choice.delta.tool_calls else (None,)
            if calls[-1] is not None:
                raise self._too_many_calls()
            for call in calls:
                if call is not None:
                    self._add(call)
        self._finish = choice.finish_reason or self._finish

    def _add(self, piece: _Call) -> None:
        """Find the call by its index; by a new id with a name, if the server omits the index or always sends 0."""
        function = piece.function or _Function()
        call_id, name = (piece.id or "")[:CALL_NAME_CHARS_MAX], (function.name or "")[:CALL_NAME_CHARS_MAX]
        call = next((call for call in reversed(self._calls) if piece.index is None or call.index == piece.index), None)
        if call is None or (call_id and name and call.id and call_id != call.id):
            call = self._open_call(piece.index)
        call.id = call.id or call_id
        call.name = call.name or name
        if function.arguments:
            self._add_input(call, function.arguments)


def _spent(usage: _Usage) -> Usage:
    cached = usage.prompt_tokens_details or _Cached()
    return Usage(usage.prompt_tokens or 0, usage.completion_tokens or 0, cache_read_tokens=cached.cached_tokens or 0)
