"""One streamed reply over HTTP, whatever the format: the request goes out, parts come back, and every way it can end.

A format is an `HttpModel` that says where to post what, and a `Reply` that reads the events. What they share is here:
the connection is closed when the stream is left, a reply that has said all is not kept waiting by what its server still
does, and nothing grows without limit.
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
from kedge.llm.transport import NOT_JSON, TIMEOUT, Provider, detail_of, error_body

#: Of one tool call, in characters. A whole source file fits several times; beyond it a model is repeating itself.
TOOL_INPUT_CHARS_MAX: Final = 1024 * 1024
#: Of all calls of one Step, in characters: they are parsed again for each later request.
TOOL_INPUTS_CHARS_MAX: Final = 4 * 1024 * 1024
#: Of a call's id, and of the name of its tool, in characters: what is longer is cut, and no tool has such a name.
CALL_NAME_CHARS_MAX: Final = 256
#: In one Step. Models call a handful of tools at once; a server that counts up for ever must not fill the memory.
TOOL_CALLS_MAX: Final = 128
#: Of a request, encoded in one go: some milliseconds. Bytes.
ENCODED_BYTES_MAX: Final = 1024 * 1024
#: After the finish reason only the usage and the last event are due; the reply is complete and waits no longer than
#: this for them.
AFTER_FINISH_S_MAX: Final = 5.0
#: After the last event the end of the body follows at once from nearly every server. Reading it keeps the connection
#: for the next Step; waiting longer for it would delay this one.
AFTER_DONE_S_MAX: Final = 0.05
#: Some gateways keep a connection alive on which their model says nothing any more. The longest thought is shorter.
WORDLESS_S_MAX: Final = 1800.0


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
        self._at = Provider(provider, base_url, api_key, timeout)
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
            # Compression makes some servers hold words back until a block is full.
            "Accept-Encoding": "identity",
            **self._headers(),
        }
        url, body = self._url(), await _encoded(self._body(request))
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

    async def _parts(self, response: httpx2.Response, reply: Reply) -> AsyncGenerator[ModelPart, None]:
        # `aiter_raw` is cheaper, and right unless the body is compressed though we asked that it be not.
        reads = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
        now = asyncio.get_running_loop().time
        last = now()
        async with aclosing(reads):
            try:
                async for received in reads:
                    for part in reply.feed(received):
                        last = now()
                        yield part
                    if reply.finished:
                        break
                    if now() - last > WORDLESS_S_MAX:
                        raise ModelFailed(
                            f"Provider {self.provider} at {self._at.shown_url} sent signs of life and not a word for "
                            f"{WORDLESS_S_MAX / 60:.0f} minutes.",
                            retryable=True,
                        )
                else:
                    for part in reply.end():
                        yield part
            except httpx2.HTTPError as error:
                raise self._at.transport_failed(error) from error
            # The reply is whole: what goes wrong from here on can cost the usage at most.
            with suppress(httpx2.HTTPError, TimeoutError, ModelFailed):
                await _settle(reads, reply)
        yield reply.model_end()


async def _encoded(body: Json) -> bytes:
    """As JSON. Message by message: a history of many megabytes must not hold up everybody else."""
    messages: list[msgspec.Raw] = []
    size = 0
    for message in body["messages"]:
        messages.append(msgspec.Raw(msgspec.json.encode(message)))
        size += len(messages[-1])
        if size > ENCODED_BYTES_MAX:
            size = 0
            await asyncio.sleep(0)
    return msgspec.json.encode({**body, "messages": messages})


async def _settle(reads: AsyncIterator[bytes], reply: Reply) -> None:
    """Read what follows the finish reason, within bounds."""
    now = asyncio.get_running_loop().time
    async with asyncio.timeout(AFTER_FINISH_S_MAX) as limit:
        while True:
            if reply.done:
                # At the earliest of the two limits, however long a server goes on behind its last event.
                limit.reschedule(min(limit.when() or 0, now() + AFTER_DONE_S_MAX))
            received = await anext(reads, None)
            for _ in reply.end() if received is None else reply.feed(received):
                pass  # nothing is said after the end
            if received is None:
                break


class Reply(ABC):
    """One reply as it is put together from its events."""

    #: What people call the format, for the sentence about a stream that is none.
    format_name: str
    #: The format's finish reasons in our words.
    finish_names: dict[str, FinishReason]

    def __init__(self, provider: Provider, model: str) -> None:
        self._at = provider
        self._model = model
        self._parser = EventParser()
        self._calls: list[OpenCall] = []
        self._inputs_chars = 0
        self._finish: str | None = None
        self._usage = Usage()
        #: The last event has come. `finished`: all that was to be said has.
        self.done = False

    @property
    def finished(self) -> bool:
        return self.done or self._finish is not None

    @abstractmethod
    def _take(self, data: bytes) -> Iterator[ModelPart]:
        """One event. Raises one of NOT_JSON when it is none of this format."""
        ...

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
            try:
                yield from self._take(data)
            except NOT_JSON as error:
                raise ModelFailed(
                    f"Provider {self._at.name} sent what is no frame of a {self.format_name} stream "
                    f"({self._at.said(str(error))}); check base_url, or try again."
                ) from error

    def end(self) -> Iterator[ModelPart]:
        """The body is over."""
        rest = self._parser.end()
        if rest is not None:
            # A last event without its blank line; if it is torn, the reply is not finished, which is said below.
            with suppress(*NOT_JSON):
                yield from self._take(rest)
        if not self.finished:
            raise ModelFailed(
                f"Provider {self._at.name} ended its reply before it was complete; try again.", retryable=True
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
                f"The model called its tools with more than {TOOL_INPUTS_CHARS_MAX} characters; ask for less at once."
            )

    def model_end(self) -> ModelEnd:
        reason = self.finish_names.get(self._finish or "", "unknown")
        # A call that the limit or the filter cut off is not made: half an input may well be valid, and wrong.
        if self._calls and reason not in ("max_tokens", "content_filter"):
            return ModelEnd("tool_use", tuple(call.closed() for call in self._calls), self._usage)
        return ModelEnd("unknown" if reason == "tool_use" else reason, (), self._usage)


class OpenCall:
    """A tool call of which pieces are still to come."""

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
                f"The model called {self.name or 'a tool'} with more than {TOOL_INPUT_CHARS_MAX} characters; "
                "ask for less at once."
            )

    def closed(self) -> ToolCall:
        # A result finds its call by the id, so one that the server left out is made up. No input means no arguments.
        return ToolCall(self.id or f"call_{uuid.uuid4().hex}", self.name, "".join(self._input) or "{}")
