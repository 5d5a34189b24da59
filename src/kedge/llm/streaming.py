"""One streamed reply over HTTP, in any format.

A format is an `HttpModel`, which builds the request, and a `Reply`, which reads the events. Both share this: the
connection is closed when the caller leaves the stream, a complete reply does not wait for its server, and every buffer
is bounded.
"""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

import httpx2
import msgspec

from kedge.core.records import Usage
from kedge.core.transcript import FinishReason, ToolCall
from kedge.errors import ModelFailed
from kedge.llm.base import ModelEnd, ModelPart, ModelRequest
from kedge.llm.content import Json
from kedge.llm.sse import EVENT_BYTES_MAX, EventParser, EventTooLarge
from kedge.llm.transport import NOT_JSON, TIMEOUT, ProviderEndpoint, detail_of, error_body
from kedge.slices import Slices, in_slices

#: Input of one tool call: several times a source file; beyond it a model repeats itself. Characters.
TOOL_INPUT_CHARS_MAX: Final = 1024 * 1024
#: Input of all calls of one Step: it is parsed again for each later request, and its message is one event. Characters.
TOOL_INPUTS_CHARS_MAX: Final = 4 * 1024 * 1024
#: Id of a call, and name of its tool; longer values are cut. Characters.
CALL_NAME_CHARS_MAX: Final = 256
#: Tool calls in one Step. Models make a few at once; a faulty server must not fill the memory.
TOOL_CALLS_MAX: Final = 128
#: Wait for the usage and the last event after the finish reason: the reply is complete without them.
AFTER_FINISH_S_MAX: Final = 5.0
#: Wait for the end of the body after the last event. Reading it keeps the connection for the next Step; nearly every
#: server sends it immediately.
AFTER_DONE_S_MAX: Final = 0.05
#: Some gateways send keep-alives for a model that has stopped. No model thinks that long.
KEEP_ALIVES_S_MAX: Final = 1800.0


class HttpModel(ABC):
    """One model at one provider. The client is shared and stays open; see `transport.new_client`."""

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
        self._endpoint = ProviderEndpoint(provider, base_url, api_key, timeout)
        self._client = client

    @abstractmethod
    def _url(self) -> httpx2.URL: ...

    @abstractmethod
    def _headers(self) -> dict[str, str]: ...

    @abstractmethod
    def _body(self, request: ModelRequest) -> Json: ...

    @abstractmethod
    def _reply(self, request: ModelRequest) -> Reply: ...

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        response = await self._send(request)
        async with aclosing(response), aclosing(self._parts(response, self._reply(request))) as parts:
            yield parts

    async def _send(self, request: ModelRequest) -> httpx2.Response:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            # With compression, some servers delay output until a block is full.
            "Accept-Encoding": "identity",
            **self._headers(),
        }
        url, body = self._url(), await _encoded(self._body(request))
        try:
            timeout = self._endpoint.timeout
            call = self._client.build_request("POST", url, headers=headers, content=body, timeout=timeout)
            response = await self._client.send(call, stream=True)
        except httpx2.HTTPError as error:
            raise self._endpoint.transport_failed(error) from error
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code == 200 and kind not in ("application/json", "text/html"):
            return response
        try:
            content = await error_body(response)
        finally:
            await response.aclose()
        if response.status_code != 200:
            raise self._endpoint.status_failed(response.status_code, response.headers, content, request.model)
        received = "a web page" if kind == "text/html" else self._endpoint.sanitized(detail_of(content))
        raise ModelFailed(
            f"Provider {self.provider} at {self._endpoint.shown_url} did not stream a reply (got {received}); "
            f"check base_url under [providers.{self.provider}]."
        )

    async def _parts(self, response: httpx2.Response, reply: Reply) -> AsyncGenerator[ModelPart, None]:
        # `aiter_raw` is cheaper, and correct unless the server ignores the Accept-Encoding of the request.
        reads = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
        now = asyncio.get_running_loop().time
        last = now()
        slices = Slices()  # a read that finds data in a buffer does not give other tasks a turn
        async with aclosing(reads):
            try:
                async for received in reads:
                    await slices.count(len(received))
                    for part in reply.feed(received):
                        last = now()
                        yield part
                        await slices.count()
                    if reply.finished:
                        break
                    if now() - last > KEEP_ALIVES_S_MAX:
                        raise ModelFailed(
                            f"Provider {self.provider} at {self._endpoint.shown_url} sent only keep-alives for "
                            f"{KEEP_ALIVES_S_MAX / 60:.0f} minutes; try again.",
                            retryable=True,
                        )
                else:
                    for part in reply.end():
                        yield part
            except httpx2.HTTPError as error:
                raise self._endpoint.transport_failed(error) from error
            # The reply is complete: an error from here on can lose the usage only.
            with suppress(httpx2.HTTPError, TimeoutError, ModelFailed):
                await _settle(reads, reply)
        yield reply.model_end()


async def _encoded(body: Json) -> bytes:
    """Encode as JSON, message by message: a history of many megabytes must not block the event loop."""
    encoded = map(msgspec.json.encode, body["messages"])
    messages = [msgspec.Raw(message) async for message in in_slices(encoded, len)]
    return msgspec.json.encode({**body, "messages": messages})


async def _settle(reads: AsyncIterator[bytes], reply: Reply) -> None:
    """Read the rest after the finish reason, for a limited time."""
    now, slices = asyncio.get_running_loop().time, Slices()
    async with asyncio.timeout(AFTER_FINISH_S_MAX) as limit:
        while True:
            if reply.done:
                # The earlier of the two deadlines, whatever the server sends after its last event.
                limit.reschedule(min(limit.when() or 0, now() + AFTER_DONE_S_MAX))
            received = await anext(reads, None)
            for _ in reply.end() if received is None else reply.feed(received):
                pass  # parts after the finish reason are dropped
            if received is None:
                break
            await slices.count(len(received))


class Reply(ABC):
    """A reply, assembled from its events."""

    #: For error messages.
    format_name: str
    #: Finish reason of the format -> ours.
    finish_names: dict[str, FinishReason]

    def __init__(self, endpoint: ProviderEndpoint, model: str) -> None:
        self._endpoint = endpoint
        self._model = model
        self._parser = EventParser()
        self._calls: list[OpenCall] = []
        self._inputs_chars = 0
        self._finish: str | None = None
        self._usage = Usage()
        #: The last event has arrived. `finished`: the content is complete.
        self.done = False

    @property
    def finished(self) -> bool:
        return self.done or self._finish is not None

    @abstractmethod
    def _take(self, data: bytes) -> Iterator[ModelPart]:
        """Process one event. Raise one of NOT_JSON if it is not valid in this format."""
        ...

    def feed(self, received: bytes) -> Iterator[ModelPart]:
        """Yield the parts; a generator, so that the parts before an error in the same read are delivered."""
        try:
            events = self._parser.feed(received)
        except EventTooLarge:
            raise ModelFailed(
                f"Provider {self._endpoint.name} sent an event of more than {EVENT_BYTES_MAX} bytes; check base_url."
            ) from None
        for data in events:
            try:
                yield from self._take(data)
            except NOT_JSON as error:
                raise ModelFailed(
                    f"Provider {self._endpoint.name} sent an invalid event of a {self.format_name} stream "
                    f"({self._endpoint.sanitized(str(error))}); check base_url, or try again."
                ) from error

    def end(self) -> Iterator[ModelPart]:
        """Process the end of the body."""
        rest = self._parser.end()
        if rest is not None:
            # A last event without its blank line. If it is incomplete, the reply is not finished.
            with suppress(*NOT_JSON):
                yield from self._take(rest)
        if not self.finished:
            raise ModelFailed(
                f"Provider {self._endpoint.name} ended its reply before it was complete; try again.", retryable=True
            )

    def _open_call(self, index: int | None) -> OpenCall:
        if len(self._calls) >= TOOL_CALLS_MAX:
            raise self._too_many_calls()
        self._calls.append(OpenCall(index))
        return self._calls[-1]

    def _too_many_calls(self) -> ModelFailed:
        return ModelFailed(f"The model called more than {TOOL_CALLS_MAX} tools at once; ask for less in one prompt.")

    def _add_input(self, call: OpenCall, piece: str) -> None:
        call.add(piece)
        self._inputs_chars += len(piece)
        if self._inputs_chars > TOOL_INPUTS_CHARS_MAX:
            raise ModelFailed(
                f"The model sent more than {TOOL_INPUTS_CHARS_MAX} characters of tool input; ask for less at once."
            )

    def model_end(self) -> ModelEnd:
        reason = self.finish_names.get(self._finish or "", "unknown")
        # A call that the limit or the filter cut off is dropped: half an input may be valid JSON, and wrong.
        if self._calls and reason not in ("max_tokens", "content_filter"):
            return ModelEnd("tool_use", tuple(call.closed() for call in self._calls), self._usage)
        return ModelEnd("unknown" if reason == "tool_use" else reason, (), self._usage)


class OpenCall:
    """A tool call that is still incomplete."""

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self._input: list[str] = []
        self._input_chars = 0

    def add(self, piece: str) -> None:
        self._input.append(piece)
        self._input_chars += len(piece)
        if self._input_chars > TOOL_INPUT_CHARS_MAX:
            raise ModelFailed(
                f"The model sent more than {TOOL_INPUT_CHARS_MAX} characters of input for {self.name or 'a tool'}; "
                "ask for less in one prompt."
            )

    def closed(self) -> ToolCall:
        # A result refers to its call by id: generate a missing one. An empty input means no arguments.
        return ToolCall(self.id or f"call_{uuid.uuid4().hex}", self.name, "".join(self._input) or "{}")
