"""A real HTTP server that speaks OpenAI's chat completions and answers what the prompt's script says.

    async with ScriptedEndpoint() as endpoint:          # endpoint.url is the base_url of a provider
        ...
        await endpoint.wait_open(1)
        endpoint.release("k1")

    with HostedEndpoint() as endpoint: ...              # for tests without an event loop

    python -m kedge.testing.endpoint --port 9001        # prints: listening on http://127.0.0.1:9001/v1

`kedge.testing.script` describes the language. From another process: POST /release/KEY, GET /stats.

It is a bare `asyncio.Protocol`, not a stream server, since then a client that goes away is noticed in the same pass of
the event loop, whatever the answer is waiting for, and 200 streams at once cost little.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from kedge.testing.script import Directive, Plan, ScriptError, last_user_text, plan
from kedge.testing.waiting import Keys, Signal

#: Head of a request, in bytes; ours have a few hundred.
HEAD_BYTES_MAX: Final = 64 * 1024
#: Body of a request, in bytes: a long transcript with images.
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
#: Requests kept for tests to look at; a benchmark sends many more.
REQUESTS_KEPT_MAX: Final = 10_000
#: Tags counted. One per session of a test run.
TAGS_MAX: Final = 10_000
#: Words are gathered up to this many bytes before they are written, while there is no pause between them.
WRITE_BYTES: Final = 64 * 1024

_WORD: Final = (b'data: {"id":"scripted","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"', b'":')
_WORD_END: Final = b'},"finish_reason":null}]}\n\n'
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_encode = msgspec.json.Encoder().encode


@dataclass(eq=False, slots=True)
class EndpointRequest:
    """One request for a reply. `closed` is set when its stream is over, for whatever reason."""

    #: Counts from 1.
    number: int
    path: str
    body: dict[str, Any]
    #: Names in lower case.
    headers: dict[str, str]
    tag: str = ""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    #: The client went away before the reply was complete.
    closed_early: bool = False

    @property
    def messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.body["messages"]
        return found

    @property
    def text(self) -> str:
        """Of the last user message."""
        return last_user_text(self.messages)


class ScriptedEndpoint:
    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._signal = Signal()
        self._connections: set[_Connection] = set()
        self._keys = Keys()
        self._flaky: Counter[tuple[str, int]] = Counter()
        #: The last REQUESTS_KEPT_MAX of them, oldest first.
        self.requests: deque[EndpointRequest] = deque(maxlen=REQUESTS_KEPT_MAX)
        self.requests_count = 0
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
        # Room for hundreds of connects at once: the default backlog of 100 would make some wait for a resend.
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
        """Let every `hold KEY` go on, now and later."""
        self._keys.release(key)

    async def wait_requests(self, count: int) -> None:
        """Until so many requests have come, ever."""
        await self._signal.wait_until(lambda: self.requests_count >= count)

    async def wait_open(self, count: int) -> None:
        """Until exactly so many streams are open."""
        await self._signal.wait_until(lambda: self.open_streams == count)

    async def wait_until(self, condition: Callable[[ScriptedEndpoint], bool]) -> None:
        """Until the condition is true of this endpoint."""
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

    # What connections report.

    def opened(self, path: str, body: dict[str, Any], headers: dict[str, str], tag: str) -> EndpointRequest:
        self.requests_count += 1
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

    async def wait_released(self, key: str) -> None:
        await self._keys.wait(key)

    def fails_now(self, directive: Directive, times: int) -> bool:
        """Whether a `flaky` directive fails once more."""
        self._flaky[directive.place] += 1
        return self._flaky[directive.place] <= times


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
        if method == "POST" and path.partition("?")[0].endswith("/chat/completions"):
            try:
                asked = msgspec.json.decode(body, type=dict[str, Any])
                found = plan(asked["messages"])
            except (msgspec.DecodeError, KeyError, ScriptError) as error:
                return self.reply(400, {"error": {"message": f"scripted endpoint: {error}"}})
            if asked.get("stream") is not True:
                return self.reply(400, {"error": {"message": "scripted endpoint: only stream=true is answered"}})
            self._request = self._endpoint.opened(path, asked, headers, found.tag)
            answer = _Answer(self._endpoint, self, self._request)
            self._answering = asyncio.get_running_loop().create_task(answer.run(found))
            return self._answering.add_done_callback(self._answered)
        if method == "POST" and path.startswith("/release/"):
            key = path.removeprefix("/release/")
            self._endpoint.release(key)
            return self.reply(200, {"released": key})
        if method == "GET" and path == "/stats":
            return self.reply(200, self._endpoint.stats())
        return self.reply(404, {"error": {"message": f"scripted endpoint: there is no {method} {path}"}})

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


class _Answer:
    """One reply, word by word."""

    def __init__(self, endpoint: ScriptedEndpoint, connection: _Connection, request: EndpointRequest) -> None:
        self._endpoint = endpoint
        self._connection = connection
        self._request = request
        self._started = False
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._pause_s = 0.0
        #: By field: text and reasoning are two texts.
        self._words: Counter[str] = Counter()
        self._calls = 0
        self._finish = ""
        self._usage: tuple[int, int] | None = None

    async def run(self, plan: Plan) -> None:
        for directive in plan.directives:
            if self._calls and directive.verb != "tool":
                break  # the Step ends here; the rest is for the request that brings the results
            if await self._obey(directive):
                return
        await self._end()

    async def _obey(self, directive: Directive) -> bool:
        """True when the reply is over by this."""
        match directive.verb:
            case "say":
                await self._say("content", directive.rest.split())
            case "think":
                await self._say("reasoning_content", directive.rest.split())
            case "words":
                await self._say("content", [f"w{count + 1}" for count in range(directive.numbers(1)[0])])
            case "echo":
                await self._say("content", f"You said: {self._request.text}".split(" "))
            case "pause":
                self._pause_s = directive.numbers(1)[0] / 1000
            case "hold":
                await self._flush()
                await self._endpoint.wait_released(directive.rest)
            case "tool":
                self._call(*directive.rest.partition(" ")[::2])
            case "usage":
                spent_in, spent_out = directive.numbers(2)
                self._usage = (spent_in, spent_out)
            case "finish":
                self._finish = directive.rest
            case "fail":
                await self._fail(directive.numbers(1)[0], directive.after(1))
                return True
            case "flaky":
                times, status = directive.numbers(2)
                if self._endpoint.fails_now(directive, times):
                    await self._fail(status, directive.after(2))
                    return True
            case "cut":
                await self._flush()
                self._connection.transport.close()
                return True
            case "hang":
                await self._flush()
                await asyncio.Event().wait()
        return False

    async def _say(self, field_name: str, words: list[str]) -> None:
        before = _WORD[0] + field_name.encode() + _WORD[1]
        for word in words:
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            self._put(before + _encode(f" {word}" if self._words[field_name] else word) + _WORD_END)
            self._words[field_name] += 1
            if self._pause_s or self._waiting_bytes >= WRITE_BYTES:
                await self._flush()

    def _call(self, name: str, arguments: str) -> None:
        """The input in two pieces, as real providers cut it."""
        index, self._calls = self._calls, self._calls + 1
        half = len(arguments) // 2
        first = {"name": name, "arguments": arguments[:half]}
        head = {"index": index, "id": f"call_{self._request.number}_{index}", "type": "function", "function": first}
        for call in (head, {"index": index, "function": {"arguments": arguments[half:]}}):
            self._put_frame({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]})

    async def _fail(self, status: int, message: str) -> None:
        error = {"error": {"message": message or "scripted failure", "code": status}}
        if not self._started and not self._waiting:
            self._connection.reply(status, error, "Retry-After: 1\r\n" if status == 429 else "")
        else:
            self._put_frame(error)
            await self._flush(last=True)

    async def _end(self) -> None:
        reason = self._finish or ("tool_calls" if self._calls else "stop")
        self._put_frame({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if (self._request.body.get("stream_options") or {}).get("include_usage"):
            spent_in, spent_out = self._usage or (len(self._request.messages), self._words.total())
            usage = {"prompt_tokens": spent_in, "completion_tokens": spent_out, "total_tokens": spent_in + spent_out}
            self._put_frame({"choices": [], "usage": usage})
        self._put(b"data: [DONE]\n\n")
        await self._flush(last=True)

    def _put_frame(self, frame: object) -> None:
        self._put(b"data: " + _encode(frame) + b"\n\n")

    def _put(self, event: bytes) -> None:
        self._waiting.append(event)
        self._waiting_bytes += len(event)

    async def _flush(self, last: bool = False) -> None:
        """Write what waits, as one piece of a chunked body; before it the head, unless it is written already."""
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        pieces = [b"" if self._started or not data else _STREAM_HEAD]
        self._started = self._started or bool(data)
        if data:
            pieces += [b"%x\r\n" % len(data), data, b"\r\n"]
        if last:
            pieces.append(b"0\r\n\r\n")
        await self._connection.write(b"".join(pieces))


async def _serve(host: str, port: int) -> None:
    async with ScriptedEndpoint(port, host) as endpoint:
        print(f"listening on {endpoint.url}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kedge.testing.endpoint", description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(given.host, given.port))


if __name__ == "__main__":
    main()
