"""The ASGI application. Every request takes the same path, so no route can skip a check:

authenticate -> find the route -> read the body, bounded -> decode -> call the handler -> encode the reply or the error

A GET outside of /v1 returns a file of the web page, which is public.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, MutableMapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from kedge.errors import (
    Forbidden,
    Invalid,
    KedgeError,
    MethodNotAllowed,
    NotJson,
    RouteNotFound,
    ServedElsewhere,
    ShuttingDown,
    StoreUnavailable,
    TooLarge,
    WrongType,
)
from kedge.server.auth import OWNER, Asker, Gate, Headers
from kedge.slices import in_slices
from kedge.store.leases import NodeInfo
from kedge.waiting import wait_uncancelled
from kedge.wire.limits import ERROR_CHARS_MAX, SMALL_BODY_BYTES_MAX
from kedge.wire.models import ErrorBody
from kedge.wire.openapi import RouteSpec

log = logging.getLogger("kedge.server")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

T = TypeVar("T")

#: Query parameters of one request; five times what any route has. Items.
QUERY_FIELDS_MAX = 50

#: Commas in a body. Each can separate two values, and decoding millions of empty values blocks the event loop for half
#: a second. The base64 of attachments, which makes bodies large, contains no commas. Items.
COMMAS_MAX = 600_000
#: Pieces of a reply are joined up to this size before they are sent: a write costs more than a short piece. Bytes.
PIECE_BYTES = 64 * 1024

_encode = msgspec.json.Encoder().encode


class Disconnected(Exception):
    """The client disconnected before the reply."""


@dataclass(slots=True)
class HttpRequest:
    """One request, decoded."""

    path: dict[str, str]
    query: Any
    body: Any
    headers: Headers
    scope: Scope
    receive: Receive
    send: Send
    asker: Asker = OWNER

    def header(self, name: bytes) -> str | None:
        return next((value.decode("latin-1") for key, value in self.headers if key == name), None)

    async def wait_disconnected(self) -> None:
        """Return when the client disconnects. A handler is not cancelled by that."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, which is cancelled when the client disconnects."""
        loop = asyncio.get_running_loop()
        task, disconnected = loop.create_task(work), loop.create_task(self.wait_disconnected())
        try:
            await asyncio.wait({task, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnected.cancel()
            if not task.done():
                task.cancel()
                await wait_uncancelled([task])
        if task.cancelled():
            raise Disconnected
        return task.result()


class Accepted(Struct, frozen=True):
    """A reply with status 202: the request has effect, and is not recorded yet."""

    body: Any


class Raw(Struct, frozen=True):
    """A reply that is not JSON."""

    data: bytes
    media_type: str
    status: int = 200
    headers: Headers = []
    cache: str = "no-store"


class WithHeaders(Struct, frozen=True):
    """A reply with further headers."""

    body: Any
    headers: Headers


class Pieces(Struct, frozen=True):
    """A reply of any length, made while it is sent: each piece is made when the client has read most of those before.

    An error after the first piece drops the connection, so that the client does not take the reply for complete."""

    pieces: AsyncGenerator[bytes, None]
    media_type: str


class Streamed:
    """The reply of a handler that sent its own response."""


STREAMED = Streamed()

Handler = Callable[[HttpRequest], Awaitable[Any]]


class Route(Struct, frozen=True):
    spec: RouteSpec
    handler: Handler
    body_bytes_max: int = SMALL_BODY_BYTES_MAX


def route(
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    *,
    body_bytes_max: int = SMALL_BODY_BYTES_MAX,
    **more: Any,
) -> Route:
    """Return a row of a route table. `more` are fields of RouteSpec."""
    return Route(RouteSpec(method, path, summary, **more), handler, body_bytes_max)


class Page(Protocol):
    """The files of the web page."""

    def may_have(self, path: str) -> bool:
        """Return whether a file of the page can have this path. Its requests need no token."""

    async def file(self, path: str, headers: Headers) -> Raw: ...


class Cluster(Protocol):
    """The other nodes, to which requests are forwarded (`server/forwarding.py`)."""

    async def serving(self, spec: RouteSpec, path: dict[str, str]) -> NodeInfo | None:
        """Return the other node that has to serve a request; None: this one."""
        ...

    def guarded(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that drops the connection once another node may serve the workspace."""
        ...

    async def named(self, name: str) -> NodeInfo:
        """Return another live node."""
        ...

    async def forward(self, request: HttpRequest, node: NodeInfo, body: bytes) -> Streamed: ...

    async def merged(self, request: HttpRequest, spec: RouteSpec, reply: Any) -> Any:
        """Send a request to all other nodes, and return the reply with theirs."""
        ...


#: Refuses a request of a browser that concerns another session than the browser's.
CheckSession = Callable[[HttpRequest, RouteSpec], Awaitable[None]]


class App:
    def __init__(
        self,
        routes: list[Route],
        gate: Gate,
        is_closing: Callable[[], bool],
        page: Page,
        check_session: CheckSession,
        on_request: Callable[[], None] = lambda: None,
        cluster: Cluster | None = None,
    ) -> None:
        self.routes = routes
        self._cluster = cluster
        self._gate = gate
        self._page = page
        self._check_session = check_session
        self._is_closing = is_closing
        self._on_request = on_request
        self._tree: dict[str, Any] = {}
        for route in routes:
            node = self._tree
            for part in ("v1" + route.spec.path).split("/"):
                node = node.setdefault("{}" if part.startswith("{") else part, {})
            node.setdefault("", {})[route.spec.method] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise AssertionError(f"unexpected ASGI scope {scope['type']}")
        self._on_request()
        with ExitStack() as connection:
            await self._reply(scope, receive, send, connection)

    async def _reply(self, scope: Scope, receive: Receive, send: Send, connection: ExitStack) -> None:
        try:
            status, reply = await self._answer(scope, receive, send, connection)
            if isinstance(reply, Pieces):
                request = HttpRequest({}, None, None, scope["headers"], scope, receive, send)
                await _send_pieces(request, reply)
                return
        except Disconnected:
            return
        except KedgeError as error:
            if isinstance(error, StoreUnavailable) and self._is_closing():
                error = _shutting_down()  # the store was closed during the request
            if error.status >= 500 and error.retry_after_s is None:
                log.error("%s %s: %s", scope["method"], scope["path"], error.message)
            await _send_error(send, error)
            return
        except Exception:
            log.exception("unexpected error in %s %s", scope["method"], scope["path"])
            await _send_error(send, KedgeError("Internal error; see the server's log."))
            return
        if isinstance(reply, Streamed):
            return
        if isinstance(reply, Raw):
            await _send(send, status, reply.data, reply.media_type, reply.headers, reply.cache)
        elif isinstance(reply, WithHeaders):
            await _send(send, status, await _encoded(reply.body), "application/json", reply.headers)
        else:
            await _send(send, status, await _encoded(reply), "application/json")

    async def _answer(self, scope: Scope, receive: Receive, send: Send, connection: ExitStack) -> tuple[int, Any]:
        headers: Headers = scope["headers"]
        if scope["method"] in ("GET", "HEAD") and self._page.may_have(scope["path"]):
            self._gate.check_page_source(headers)
            page = await self._page.file(scope["path"], headers)
            return page.status, page
        match = self._find(scope["path"])
        route = match[0].get(scope["method"]) if match else None
        # Authenticate before anything else. Of the route, only its access is needed.
        public = route is not None and not route.spec.needs_token
        spec = route.spec if route is not None else None
        asker = await self._gate.check(
            headers,
            local_socket=scope.get("kedge.local_socket", False),
            spec=spec,
            method=scope["method"],
            target=target_of(scope),
        )
        if asker is not OWNER:
            connection.enter_context(self._gate.while_allowed(asker, scope["kedge.abort"]))
        if self._is_closing() and not public:
            raise _shutting_down()
        if match is None:
            raise RouteNotFound(f"No route {scope['path'][:200]}. All routes are listed in /v1/openapi.json.")
        if route is None:
            allowed = tuple(sorted(match[0]))
            raise MethodNotAllowed(f"Method {scope['method']} is not allowed; use {' or '.join(allowed)}.", allowed)
        query = _query(scope["query_string"], route)
        if self._cluster is not None:
            send = self._cluster.guarded(scope, send)
        request = HttpRequest(match[1], query, None, headers, scope, receive, send, asker)
        cluster = None if public or asker.node else self._cluster  # a request is forwarded once
        if cluster is not None and (node := await cluster.serving(route.spec, match[1])):
            _check_whole_server(asker)
            return 200, await cluster.forward(request, node, await _read(receive, route.body_bytes_max))
        request.body = await _body(headers, receive, route)
        if asker.browser is not None and asker.browser.session_id:
            await self._check_session(request, route.spec)
        try:
            reply = await route.handler(request)
        except ServedElsewhere as error:
            if cluster is None:
                raise
            _check_whole_server(asker)
            data = b"" if request.body is None else _encode(request.body)
            return 200, await cluster.forward(request, await cluster.named(error.node), data)
        if cluster is not None and (route.spec.merged_by or route.spec.for_all_nodes):
            reply = await cluster.merged(request, route.spec, reply)
        return (202, reply.body) if isinstance(reply, Accepted) else (route.spec.status, reply)

    def _find(self, path: str) -> tuple[dict[str, Route], dict[str, str]] | None:
        node = self._tree
        values: list[str] = []
        for part in path.removeprefix("/").split("/"):
            if part in node and part not in ("", "{}"):
                node = node[part]
            elif "{}" in node and part:
                values.append(part)
                node = node["{}"]
            else:
                return None
        routes: dict[str, Route] | None = node.get("")
        if routes is None:
            return None
        any_route = next(iter(routes.values()))
        names = [part[1:-1] for part in any_route.spec.path.split("/") if part.startswith("{")]
        return routes, dict(zip(names, values, strict=True))


def target_of(scope: Scope) -> str:
    """Return path and query as they were sent. A simulated network has no raw path."""
    path = scope.get("raw_path") or scope["path"].encode()
    return bytes(path + b"?" + scope["query_string"] if scope["query_string"] else path).decode("latin-1")


def _check_whole_server(asker: Asker) -> None:
    """Refuse to forward requests of a browser that reaches one session: only the node of the session can check them."""
    if asker.browser is not None and asker.browser.session_id:
        raise Forbidden("Another node serves this session now. Get a new link from that node, with: kedge web")


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("The server is shutting down; try again in a moment.")


def _query(query_string: bytes, route: Route) -> Any:
    if route.spec.query is None:
        return None
    try:
        fields = dict(parse_qsl(query_string.decode("ascii"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX))
        return msgspec.convert(fields, route.spec.query, strict=False)
    except msgspec.ValidationError as error:
        raise WrongType(f"query: {error}") from None
    except (UnicodeDecodeError, ValueError):
        raise Invalid("The query string is not valid: expected ASCII name=value pairs joined by &.") from None


async def _body(headers: Headers, receive: Receive, route: Route) -> Any:
    if route.spec.method in ("GET", "DELETE"):
        return None
    data = await _read(receive, route.body_bytes_max)
    media_type = next((value for name, value in headers if name == b"content-type"), b"")
    # Without data the type means nothing: `curl -d ""`, for example, sends that of a form.
    if data and media_type.partition(b";")[0].strip().lower() != b"application/json":
        raise NotJson("Send the body with Content-Type: application/json.")
    if route.spec.body is None:
        return None
    if not data:
        raise Invalid("The body is empty; send a JSON object.")
    return decode(data, route.spec.body)


async def _read(receive: Receive, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = commas = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        part = message.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise TooLarge(f"The body has more than {bytes_max} bytes, the limit of this route.")
        commas += part.count(b",")  # part by part: in 16 MB at once, it would take 15 ms
        if commas > COMMAS_MAX:
            raise TooLarge(f"The body has more than {COMMAS_MAX} commas; send such a text as an attachment.")
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def decode(data: bytes, kind: type) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise WrongType(str(error)) from None
    except RecursionError:
        raise Invalid("The JSON is nested too deeply.") from None
    except UnicodeDecodeError:
        raise Invalid("The body is not valid UTF-8.") from None
    except msgspec.DecodeError as error:
        raise Invalid(f"The body is not valid JSON: {error}") from None


async def _encoded(reply: Any) -> bytes:
    """Encode as JSON. A list is encoded item by item: a page of large messages must not block the event loop."""
    if not isinstance(reply, list | Iterator):
        return _encode(reply)
    return b"[" + b",".join([item async for item in in_slices(map(_encode, reply), len)]) + b"]"


async def _send_pieces(request: HttpRequest, reply: Pieces) -> None:
    """Send the pieces as fast as the client reads them. An error before the first bytes are sent is raised."""
    is_started = False

    async def send(body: bytes, *, more_body: bool) -> None:
        nonlocal is_started
        if not is_started:
            is_started = True
            headers = _headers(reply.media_type)
            await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        await request.send({"type": "http.response.body", "body": body, "more_body": more_body})

    async def send_all() -> None:
        unsent: list[bytes] = []
        size = 0
        async with aclosing(reply.pieces) as pieces:
            async for piece in pieces:
                unsent.append(piece)
                size += len(piece)
                if size >= PIECE_BYTES:
                    await send(b"".join(unsent), more_body=True)
                    unsent.clear()
                    size = 0
        await send(b"".join(unsent), more_body=False)

    try:
        await request.while_connected(send_all())
    except Exception as error:
        if not is_started or isinstance(error, Disconnected):
            raise
        # The status has been sent: the only way left to report an error is to drop the connection.
        is_known = isinstance(error, KedgeError)
        log.error("%s aborted: %s", request.scope["path"], error, exc_info=None if is_known else error)
        request.scope["kedge.abort"]()


async def _send_error(send: Send, error: KedgeError) -> None:
    body = _encode(ErrorBody(message=error.message[:ERROR_CHARS_MAX], code=error.code))
    more = [] if error.retry_after_s is None else [(b"retry-after", b"%d" % error.retry_after_s)]
    if isinstance(error, MethodNotAllowed):
        more.append((b"allow", ", ".join(error.allowed).encode()))
    await _send(send, error.status, body, "application/json", more)


async def _send(
    send: Send, status: int, data: bytes, media_type: str, more: Headers | None = None, cache: str = "no-store"
) -> None:
    headers = [*_headers(media_type, cache), (b"content-length", b"%d" % len(data)), *(more or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


def _headers(media_type: str, cache: str = "no-store") -> Headers:
    return [
        (b"content-type", media_type.encode()),
        (b"cache-control", cache.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    ]
