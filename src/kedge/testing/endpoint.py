"""An HTTP server with OpenAI's chat completions and Anthropic's messages, which follows the script in the prompt. It
refuses requests that those providers would refuse (see `kedge.testing.provider_rules`).

    async with ScriptedEndpoint() as endpoint:          # endpoint.url is the base_url of a provider of either kind
        ...
        await endpoint.wait_open(1)
        endpoint.release("k1")

    with HostedEndpoint() as endpoint: ...              # for tests without an event loop

    python -m kedge.testing.endpoint --port 9001        # prints: listening on http://127.0.0.1:9001/v1

`kedge.testing.script` describes the script language. From another process: POST /release/KEY, GET /stats.

It is an `asyncio.Protocol`, not a stream server: a disconnect is noticed in the same pass of the event loop, and 200
concurrent streams cost little.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

import msgspec

from kedge.testing.reply_formats import AnthropicFormat, OpenAIFormat, ReplyFormat
from kedge.testing.script import Directive, ScriptError, ScriptPlan, last_user_text, plan, text_of
from kedge.testing.scripted_reply import ScriptedReply
from kedge.testing.signals import Keys, Signal

#: Head of a request; kedge's have a few hundred. Bytes.
HEAD_BYTES_MAX: Final = 64 * 1024
#: Body of a request: a long transcript with images. Bytes.
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
#: Requests kept for tests; a benchmark sends many more. Items.
REQUESTS_KEPT_MAX: Final = 10_000
#: Tags counted: one per session of a test run. Items.
TAGS_MAX: Final = 10_000
#: Refusals kept for tests. Items.
REFUSALS_KEPT_MAX: Final = 1000

#: The format of each path, by its end.
_FORMATS: Final[dict[str, type[ReplyFormat]]] = {"/chat/completions": OpenAIFormat, "/v1/messages": AnthropicFormat}
_encode = msgspec.json.Encoder().encode


@dataclass(eq=False, slots=True)
class EndpointRequest:
    """One request for a reply. `closed` is set when its stream has ended, for any reason."""

    #: Counts from 1.
    number: int
    path: str
    body: dict[str, Any]
    #: Names in lower case.
    headers: dict[str, str]
    tag: str = ""
    #: "title" or "summary" for a request that is not part of a Run; see `kedge.testing.script`.
    aside: str = ""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    #: The client disconnected before the reply was complete.
    closed_early: bool = False

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages as they were sent, in the format of the request."""
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages

    @property
    def text(self) -> str:
        """The text of the last user message."""
        return last_user_text((_format_at(self.path) or OpenAIFormat).messages(self.body))


class ScriptedEndpoint:
    def __init__(
        self, port: int = 0, host: str = "127.0.0.1", scripts: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        #: By prompt: the script that it stands for. For pictures, whose prompts are plain sentences.
        self._scripts = scripts
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._signal = Signal()
        self._connections: set[_Connection] = set()
        self._keys = Keys()
        self._reached: Counter[tuple[str, int]] = Counter()
        #: The last REQUESTS_KEPT_MAX requests, oldest first.
        self.requests: deque[EndpointRequest] = deque(maxlen=REQUESTS_KEPT_MAX)
        self.requests_count = 0
        #: Requests for titles and summaries. They are not among `requests` and not counted as open streams.
        self.asides: deque[EndpointRequest] = deque(maxlen=REQUESTS_KEPT_MAX)
        self.asides_count = 0
        #: The reasons of refused requests; a test may assert that it is empty.
        self.refusals: deque[str] = deque(maxlen=REFUSALS_KEPT_MAX)
        self.connections_count = 0
        self.open_streams = 0
        self.open_streams_max = 0
        self.closed_early = 0
        self.open_by_tag: Counter[str] = Counter()
        self.open_max_by_tag: dict[str, int] = {}

    @property
    def url(self) -> str:
        """The base_url to configure."""
        return f"{self.origin}/v1"

    @property
    def origin(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        # For hundreds of simultaneous connects: with the default backlog of 100 some would wait for a resend.
        self._server = await loop.create_server(lambda: _Connection(self), self._host, self._port, backlog=1024)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        await self._signal.wait_until(lambda: not self._connections)
        await self._server.wait_closed()

    def release(self, key: str) -> None:
        """Release every `hold KEY`, now and later."""
        self._keys.release(key)

    async def wait_requests(self, count: int) -> None:
        """Wait until so many requests have arrived in total."""
        await self._signal.wait_until(lambda: self.requests_count >= count)

    async def wait_asides(self, count: int) -> None:
        """Wait until so many requests for titles and summaries have arrived in total."""
        await self._signal.wait_until(lambda: self.asides_count >= count)

    async def wait_open(self, count: int) -> None:
        """Wait until exactly so many streams are open."""
        await self._signal.wait_until(lambda: self.open_streams == count)

    async def wait_until(self, condition: Callable[[ScriptedEndpoint], bool]) -> None:
        """Wait until the condition is true for this endpoint."""
        await self._signal.wait_until(lambda: condition(self))

    def stats(self) -> dict[str, Any]:
        return {
            "requests": self.requests_count,
            "open": self.open_streams,
            "open_max": self.open_streams_max,
            "closed_early": self.closed_early,
            "open_by_tag": dict(self.open_by_tag),
            "open_max_by_tag": self.open_max_by_tag,
        }

    # Called by connections.

    def opened(self, path: str, body: dict[str, Any], headers: dict[str, str], plan: ScriptPlan) -> EndpointRequest:
        if plan.aside:
            self.asides_count += 1
            request = EndpointRequest(self.asides_count, path, body, headers, "", plan.aside)
            self.asides.append(request)
            self._signal.notify()
            return request
        self.requests_count += 1
        tag = plan.tag
        request = EndpointRequest(self.requests_count, path, body, headers, tag)
        self.requests.append(request)
        self.open_streams += 1
        self.open_streams_max = max(self.open_streams_max, self.open_streams)
        if tag and (tag in self.open_max_by_tag or len(self.open_max_by_tag) < TAGS_MAX):
            self.open_by_tag[tag] += 1
            self.open_max_by_tag[tag] = max(self.open_max_by_tag.get(tag, 0), self.open_by_tag[tag])
        self._signal.notify()
        return request

    def ended(self, request: EndpointRequest, early: bool) -> None:
        if request.closed.is_set():
            return
        request.closed_early = early
        request.closed.set()
        if request.aside:
            self._signal.notify()
            return
        self.closed_early += early
        self.open_streams -= 1
        if request.tag in self.open_by_tag:
            self.open_by_tag[request.tag] -= 1
        self._signal.notify()

    def connected(self, connection: _Connection) -> None:
        self._connections.add(connection)
        self.connections_count += 1

    def disconnected(self, connection: _Connection) -> None:
        """The client is gone and the answer to it has stopped."""
        self._connections.discard(connection)
        self._signal.notify()

    def scripted(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Replace each prompt that stands for a script by its script."""
        return [
            {**message, "content": self._scripts[text]}
            if message.get("role") == "user" and (text := text_of(message)) in self._scripts
            else message
            for message in messages
        ]

    async def wait_released(self, key: str) -> None:
        await self._keys.wait(key)

    def takes_effect(self, directive: Directive, times: int | None) -> bool:
        """Count a directive with times=N. Return False after N times; without a number, always True."""
        if times is None:
            return True
        self._reached[directive.location] += 1
        return self._reached[directive.location] <= times


class _Connection(asyncio.Protocol):
    """One client's connection: HTTP/1.1 with keep-alive, one request at a time."""

    transport: asyncio.Transport

    def __init__(self, endpoint: ScriptedEndpoint) -> None:
        self._endpoint = endpoint
        self._received = bytearray()
        self._answering: asyncio.Task[None] | None = None
        self._request: EndpointRequest | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._endpoint.connected(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        if self._answering is None or self._request is None:
            self._endpoint.disconnected(self)
        else:
            # An answer that is done was complete, or dropped the connection itself.
            self._endpoint.ended(self._request, early=not self._answering.done())
            self._answering.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def write(self, data: bytes) -> None:
        self.transport.write(data)
        await self._writable.wait()

    def hang_up(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._read_requests()

    def _read_requests(self) -> None:
        while self._answering is None and self._received and self._read_request():
            pass

    def _read_request(self) -> bool:
        """Take one whole request from what was received, if there is one."""
        head_end = self._received.find(b"\r\n\r\n")
        if not self._received[:1].isupper():
            self._refuse(400, "this is not HTTP")
            return False
        if head_end < 0:
            if len(self._received) > HEAD_BYTES_MAX:
                self._refuse(431, "the head of the request is too large")
            return False
        lines = self._received[:head_end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = headers.get("content-length", "0")
        if not length.isdigit() or "transfer-encoding" in headers:
            self._refuse(411, "the request needs a Content-Length")
            return False
        if int(length) > BODY_BYTES_MAX:
            self._refuse(413, f"the body has more than {BODY_BYTES_MAX} bytes")
            return False
        end = head_end + 4 + int(length)
        if len(self._received) < end:
            return False
        body = bytes(self._received[head_end + 4 : end])
        del self._received[:end]
        method, _, target = lines[0].partition(" ")
        self._answer(method, target.partition(" ")[0], headers, body)
        return True

    def _answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        if method == "POST" and (reply_format := _format_at(path)):
            return self._answer_model(reply_format, path, headers, body)
        if method == "POST" and path.startswith("/release/"):
            key = path.removeprefix("/release/")
            self._endpoint.release(key)
            return self.reply(200, {"released": key})
        if method == "GET" and path == "/stats":
            return self.reply(200, self._endpoint.stats())
        return self.reply(404, {"error": {"message": f"scripted endpoint: {method} {path} not found"}})

    def _answer_model(self, reply_format: type[ReplyFormat], path: str, headers: dict[str, str], body: bytes) -> None:
        try:
            decoded = msgspec.json.decode(body, type=dict[str, Any])
            reason = reply_format.refusal(decoded, headers)
            if reason is None and decoded.get("stream") is not True:
                reason = "stream=true is required"
            script_plan = ScriptPlan(()) if reason else plan(self._endpoint.scripted(reply_format.messages(decoded)))
        # A malformed request raises one of these, wherever it is read.
        except (msgspec.DecodeError, KeyError, IndexError, TypeError, AttributeError, ScriptError) as error:
            reason = f"{type(error).__name__}: {error}"
        if reason:
            self._endpoint.refusals.append(reason)
            return self.reply(400, reply_format.error(400, f"scripted endpoint: {reason}", "invalid_request_error"))
        request = self._request = self._endpoint.opened(path, decoded, headers, script_plan)
        writer = reply_format(request.number, decoded)
        reply = ScriptedReply(self._endpoint, self, writer, script_plan, request.text, len(request.messages))
        self._answering = asyncio.get_running_loop().create_task(reply.run())
        return self._answering.add_done_callback(self._answered)

    def _answered(self, answering: asyncio.Task[None]) -> None:
        assert self._request is not None
        self._endpoint.ended(self._request, early=False)
        self._request = self._answering = None
        if self._lost:
            self._endpoint.disconnected(self)
        if not answering.cancelled() and answering.exception() is not None:
            self.abort()
            answering.result()  # raises: the event loop's handler shows it
        if not self.transport.is_closing():
            self._read_requests()

    def reply(self, status: int, body: object, extra: str = "") -> None:
        payload = _encode(body)
        head = (
            f"HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n{extra}"
        )
        self.transport.write(head.encode() + b"\r\n" + payload)

    def _refuse(self, status: int, message: str) -> None:
        self._received.clear()
        self.reply(status, {"error": {"message": f"scripted endpoint: {message}"}}, "Connection: close\r\n")
        self.transport.close()


def _format_at(path: str) -> type[ReplyFormat] | None:
    """Return the format of a path for replies, or None."""
    path = path.partition("?")[0]
    return next((reply_format for end, reply_format in _FORMATS.items() if path.endswith(end)), None)


async def _serve(host: str, port: int) -> None:
    async with ScriptedEndpoint(port, host) as endpoint:
        print(f"listening on {endpoint.url}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kedge.testing.endpoint", description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(options.host, options.port))


if __name__ == "__main__":
    main()
