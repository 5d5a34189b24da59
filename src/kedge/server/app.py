"""The ASGI application: one path for every request, so that no route can forget a check.

who asks (auth) -> which route -> the body, bounded -> typed values -> the handler -> JSON, or the error table
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from kedge.errors import (
    Invalid,
    KedgeError,
    MethodNotAllowed,
    NotJson,
    RouteNotFound,
    ShuttingDown,
    StoreUnavailable,
    TooLarge,
    WrongType,
)
from kedge.server.auth import Gate, Headers
from kedge.waiting import wait_uncancelled
from kedge.wire.limits import ERROR_CHARS_MAX, SMALL_BODY_BYTES_MAX
from kedge.wire.models import ErrorBody
from kedge.wire.openapi import RouteSpec

log = logging.getLogger("kedge.server")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

T = TypeVar("T")

#: Query parameters of one request; no route has a fifth of it. Items.
QUERY_FIELDS_MAX = 50

#: In a body: each may stand for a value to be built, and millions of empty ones take the better part of a second. In
#: base64, which makes bodies large, there are none. Commas.
VALUES_MAX = 600_000
#: Made of a reply in one go, before others have their turn: some milliseconds; and what a piece costs beside its own
#: length. Bytes.
WORK_BYTES_MAX, PIECE_BYTES = 1024 * 1024, 1000

_encode = msgspec.json.Encoder().encode


class Disconnected(Exception):
    """The client went away, and nobody waits for the reply."""


@dataclass(slots=True)
class Call:
    """One request, decoded."""

    path: dict[str, str]
    query: Any
    body: Any
    headers: Headers
    scope: Scope
    receive: Receive
    send: Send

    def header(self, name: bytes) -> str | None:
        return next((value.decode("latin-1") for key, value in self.headers if key == name), None)

    async def gone(self) -> None:
        """When the client has gone away. Nobody else tells: a handler goes on without it."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of this work, which ends with the client that asked for it."""
        loop = asyncio.get_running_loop()
        working, leaving = loop.create_task(work), loop.create_task(self.gone())
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not working.done():
                working.cancel()
                await wait_uncancelled([working])
        if working.cancelled():
            raise Disconnected
        return working.result()


class Raw(Struct, frozen=True):
    """A reply that is not JSON."""

    data: bytes
    media_type: str


class Streamed:
    """The handler has sent its reply itself."""


STREAMED = Streamed()

Handler = Callable[[Call], Awaitable[Any]]


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
    """One line of a route table; `more` goes to RouteSpec."""
    return Route(RouteSpec(method, path, summary, **more), handler, body_bytes_max)


class App:
    def __init__(
        self,
        routes: list[Route],
        gate: Gate,
        is_closing: Callable[[], bool],
        on_request: Callable[[], None] = lambda: None,
    ) -> None:
        self.routes = routes
        self._gate = gate
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
        try:
            status, reply = await self._answer(scope, receive, send)
        except Disconnected:
            return
        except KedgeError as error:
            if isinstance(error, StoreUnavailable) and self._is_closing():
                error = _leaving()  # it was under way when the store was closed
            if error.status >= 500 and error.retry_after_s is None:
                log.error("%s %s: %s", scope["method"], scope["path"], error.message)
            await _send_error(send, error)
            return
        except Exception:
            log.exception("%s %s failed in a way nobody foresaw", scope["method"], scope["path"])
            await _send_error(send, KedgeError("Internal error; the server's log has more."))
            return
        if isinstance(reply, Streamed):
            return
        if isinstance(reply, Raw):
            await _send(send, status, reply.data, reply.media_type)
        else:
            await _send(send, status, await _encoded(reply), "application/json")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> tuple[int, Any]:
        headers: Headers = scope["headers"]
        found = self._find(scope["path"])
        route = found[0].get(scope["method"]) if found else None
        # The checks come first and need to know of the route only whether it is the public one.
        public = route is not None and not route.spec.needs_token
        self._gate.check(headers, local_socket=scope.get("kedge.local_socket", False), needs_token=not public)
        if self._is_closing() and not public:
            raise _leaving()
        if found is None:
            raise RouteNotFound(f"there is nothing at {scope['path'][:200]}; /v1/openapi.json lists what there is")
        if route is None:
            allowed = tuple(sorted(found[0]))
            raise MethodNotAllowed(f"{scope['method']} is not one of {', '.join(allowed)}", allowed)
        query = _query(scope["query_string"], route)
        body = await _body(headers, receive, route)
        call = Call(found[1], query, body, headers, scope, receive, send)
        return route.spec.status, await route.handler(call)

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


def _leaving() -> ShuttingDown:
    return ShuttingDown("The server is shutting down; try again in a moment.")


def _query(given: bytes, route: Route) -> Any:
    if route.spec.query is None:
        return None
    try:
        fields = dict(parse_qsl(given.decode("ascii"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX))
        return msgspec.convert(fields, route.spec.query, strict=False)
    except msgspec.ValidationError as error:
        raise WrongType(f"query: {error}") from None
    except (UnicodeDecodeError, ValueError):
        raise Invalid("the query string cannot be read") from None


async def _body(headers: Headers, receive: Receive, route: Route) -> Any:
    if route.spec.method in ("GET", "DELETE"):
        return None
    media_type = next((value for name, value in headers if name == b"content-type"), None)
    if media_type is not None and media_type.partition(b";")[0].strip().lower() != b"application/json":
        raise NotJson("send the body as application/json")
    data = await _read(receive, route.body_bytes_max)
    if route.spec.body is None:
        return None
    if media_type is None and data:
        raise NotJson("send the body as application/json")
    if not data:
        raise Invalid("a JSON object is needed as the body")
    if len(data) > VALUES_MAX and data.count(b",") > VALUES_MAX:
        raise TooLarge(f"the body has more than {VALUES_MAX} commas; put such a text into an attachment")
    return decode(data, route.spec.body)


async def _read(receive: Receive, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        part = message.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise TooLarge(f"the body has more than {bytes_max} bytes, the most this route takes")
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def decode(data: bytes, kind: type) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise WrongType(str(error)) from None
    except RecursionError:
        raise Invalid("the JSON is nested too deeply") from None
    except UnicodeDecodeError:
        raise Invalid("the body is not UTF-8") from None
    except msgspec.DecodeError as error:
        raise Invalid(f"the body is not valid JSON: {error}") from None


async def _encoded(reply: Any) -> bytes:
    """As JSON. Lists item by item: a page of large messages must not hold up everybody else."""
    if not isinstance(reply, list | Iterator):
        return _encode(reply)
    return b"[" + b",".join(await gathered(map(_encode, reply))) + b"]"


async def gathered(pieces: Iterable[bytes]) -> list[bytes]:
    """All of them, with pauses in which others have their turn."""
    found: list[bytes] = []
    work = 0
    for piece in pieces:
        found.append(piece)
        work += PIECE_BYTES + len(piece)
        if work > WORK_BYTES_MAX:
            work = 0
            await asyncio.sleep(0)
    return found


async def _send_error(send: Send, error: KedgeError) -> None:
    body = _encode(ErrorBody(message=error.message[:ERROR_CHARS_MAX], code=error.code))
    more = [] if error.retry_after_s is None else [(b"retry-after", b"%d" % error.retry_after_s)]
    if isinstance(error, MethodNotAllowed):
        more.append((b"allow", ", ".join(error.allowed).encode()))
    await _send(send, error.status, body, "application/json", more)


async def _send(send: Send, status: int, data: bytes, media_type: str, more: Headers | None = None) -> None:
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", b"%d" % len(data)),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *(more or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})
