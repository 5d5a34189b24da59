"""OpenAI-compatible endpoints: chat completions, streamed. Most hosted and nearly all local servers speak this format.

Servers take liberties with it, so this reader is lenient where the meaning is clear (no `[DONE]`, no blank line at the
end, `null` where nothing is due, tool calls without index or id) and fails where it is not (no end, no JSON).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final

import httpx2
import msgspec

from kedge.core.records import Usage
from kedge.core.transcript import FinishReason, ToolCall
from kedge.errors import ModelFailed
from kedge.llm.base import ModelEnd, ModelPart, ModelRequest, ReasoningDelta, TextDelta
from kedge.llm.openai_request import request_body
from kedge.llm.sse import EVENT_BYTES_MAX, EventParser, EventTooLarge
from kedge.llm.transport import NOT_JSON, TIMEOUT, Provider, detail_of, error_body, error_text

#: Of one tool call, in characters. A whole source file fits several times; beyond it a model is repeating itself.
TOOL_INPUT_CHARS_MAX: Final = 1024 * 1024
#: In one Step. Models call a handful of tools at once; a server that counts up for ever must not fill the memory.
TOOL_CALLS_MAX: Final = 128
#: After the finish reason only the usage and `[DONE]` are due; the reply is complete and does not wait for them longer.
AFTER_FINISH_S_MAX: Final = 5.0
#: After `[DONE]` the end of the body follows at once from nearly every server. Reading it keeps the connection for the
#: next Step; waiting longer for it would delay this one.
AFTER_DONE_S_MAX: Final = 0.05

_FINISH: Final[dict[str, FinishReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "content_filter",
}


# What comes back. Fields that are not named here are ignored; each may be null.


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Fragment(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Fragment | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Frame(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_frames = msgspec.json.Decoder(_Frame)


class OpenAIModel:
    """One model at one OpenAI-compatible endpoint. The client is shared and stays open; see `transport.new_client`."""

    def __init__(
        self,
        provider: str,
        name: str,
        base_url: str,
        api_key: str | None,
        client: httpx2.AsyncClient,
        timeout: httpx2.Timeout = TIMEOUT,
    ) -> None:
        self.provider = provider
        self.name = name
        self._at = Provider(provider, base_url, api_key, timeout)
        self._client = client

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        response = await self._send(request)
        async with aclosing(response), aclosing(self._parts(response)) as parts:
            yield parts

    async def _send(self, request: ModelRequest) -> httpx2.Response:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            # Compression makes some servers hold words back until a block is full.
            "Accept-Encoding": "identity",
            **self._at.checked_headers(),
        }
        url = self._at.checked_url("/chat/completions")
        body = request_body(request, f"{self.provider}/{self.name}")
        try:
            call = self._client.build_request("POST", url, headers=headers, content=body, timeout=self._at.timeout)
            response = await self._client.send(call, stream=True)
        except httpx2.HTTPError as error:
            raise self._at.transport_failed(error) from error
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code == 200 and kind not in ("application/json", "text/html"):
            return response
        try:
            said = await error_body(response)
        finally:
            await response.aclose()
        if response.status_code != 200:
            raise self._at.status_failed(response.status_code, response.headers, said, request.model)
        sent = "a web page" if kind == "text/html" else f"this: {self._at.said(detail_of(said))}"
        raise ModelFailed(
            f"Provider {self.provider} at {self._at.shown_url} streamed no reply but sent {sent}; "
            f"check base_url under [providers.{self.provider}]."
        )

    async def _parts(self, response: httpx2.Response) -> AsyncGenerator[ModelPart, None]:
        reply = _Reply(self._at)
        # `aiter_raw` is cheaper, and right unless the body is compressed though we asked that it be not.
        reads = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
        async with aclosing(reads):
            try:
                async for received in reads:
                    for part in reply.feed(received):
                        yield part
                    if reply.finished:
                        break
                else:
                    for part in reply.end():
                        yield part
            except httpx2.HTTPError as error:
                raise self._at.transport_failed(error) from error
            # The reply is whole: what goes wrong from here on can cost the usage at most.
            with suppress(httpx2.HTTPError, TimeoutError, ModelFailed):
                await _settle(reads, reply)
        yield reply.model_end()


async def _settle(reads: AsyncIterator[bytes], reply: _Reply) -> None:
    """Read what follows the finish reason, within bounds."""
    now = asyncio.get_running_loop().time
    async with asyncio.timeout(AFTER_FINISH_S_MAX) as limit:
        while True:
            if reply.done:
                # At the earliest of the two limits, however long a server goes on behind its `[DONE]`.
                limit.reschedule(min(limit.when() or 0, now() + AFTER_DONE_S_MAX))
            received = await anext(reads, None)
            for _ in reply.end() if received is None else reply.feed(received):
                pass  # nothing is said after the end
            if received is None:
                break


class _Reply:
    """One reply as it is put together from its frames."""

    def __init__(self, provider: Provider) -> None:
        self._at = provider
        self._parser = EventParser()
        self._calls: list[_OpenCall] = []
        self._finish: str | None = None
        self._usage = Usage()
        #: `[DONE]` has come. `finished`: all that was to be said has.
        self.done = False

    @property
    def finished(self) -> bool:
        return self.done or self._finish is not None

    def feed(self, received: bytes) -> Iterator[ModelPart]:
        """A generator, so that what was said before a fault in the same read is still passed on."""
        try:
            events = self._parser.feed(received)
        except EventTooLarge:
            raise ModelFailed(
                f"Provider {self._at.name} sent one event of more than {EVENT_BYTES_MAX} bytes; "
                "that is no reply of a model, check base_url."
            ) from None
        for data in events:
            if data.strip() == b"[DONE]":
                self.done = True
                continue
            try:
                frame = _frames.decode(data)
            except NOT_JSON as error:
                raise ModelFailed(
                    f"Provider {self._at.name} sent what is no frame of a chat completions stream "
                    f"({self._at.said(str(error))}); check base_url, or try again."
                ) from error
            yield from self._take(frame)

    def end(self) -> Iterator[ModelPart]:
        """The body is over."""
        rest = self._parser.end()
        if rest is not None:
            # A last event without its blank line; if it is torn, the reply is not finished, which is said below.
            with suppress(*NOT_JSON):
                if rest.strip() == b"[DONE]":
                    self.done = True
                else:
                    yield from self._take(_frames.decode(rest))
        if not self.finished:
            raise ModelFailed(f"Provider {self._at.name} ended its reply before it was complete; try again.")

    def _take(self, frame: _Frame) -> Iterator[ModelPart]:
        if frame.error is not None:
            said = self._at.said(error_text(frame.error))
            raise ModelFailed(f"Provider {self._at.name} broke off with an error ({said}); try again.")
        if frame.usage is not None:
            self._usage = Usage(frame.usage.prompt_tokens or 0, frame.usage.completion_tokens or 0)
        if not frame.choices:
            return
        choice = frame.choices[0]
        if choice.delta is not None:
            if thought := choice.delta.reasoning_content or choice.delta.reasoning:
                yield ReasoningDelta(thought)
            if choice.delta.content:
                yield TextDelta(choice.delta.content)
            for call in choice.delta.tool_calls or ():
                self._add(call)
        self._finish = choice.finish_reason or self._finish

    def _add(self, piece: _Call) -> None:
        """Calls are told apart by index; where a server leaves it out or always says 0, by a new id with a name."""
        function = piece.function or _Function()
        call = next((call for call in reversed(self._calls) if piece.index is None or call.index == piece.index), None)
        if call is None or (piece.id and function.name and call.id and piece.id != call.id):
            if len(self._calls) >= TOOL_CALLS_MAX:
                raise ModelFailed(
                    f"The model called more than {TOOL_CALLS_MAX} tools at once; ask for less in one prompt."
                )
            call = _OpenCall(piece.index)
            self._calls.append(call)
        call.id = call.id or piece.id or ""
        call.name = call.name or function.name or ""
        if function.arguments:
            call.input.append(function.arguments)
            call.input_chars += len(function.arguments)
            if call.input_chars > TOOL_INPUT_CHARS_MAX:
                raise ModelFailed(
                    f"The model called {call.name or 'a tool'} with more than {TOOL_INPUT_CHARS_MAX} characters; "
                    "ask for less at once."
                )

    def model_end(self) -> ModelEnd:
        reason = _FINISH.get(self._finish or "", "unknown")
        # A call that the limit or the filter cut off is not made: half an input may well be valid, and wrong.
        if self._calls and reason not in ("max_tokens", "content_filter"):
            return ModelEnd("tool_use", tuple(call.closed() for call in self._calls), self._usage)
        return ModelEnd("unknown" if reason == "tool_use" else reason, (), self._usage)


class _OpenCall:
    """A tool call of which pieces are still to come."""

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.input: list[str] = []
        self.input_chars = 0

    def closed(self) -> ToolCall:
        # A result finds its call by the id, so one that the server left out is made up. No input means no arguments.
        return ToolCall(self.id or f"call_{uuid.uuid4().hex}", self.name, "".join(self.input) or "{}")
