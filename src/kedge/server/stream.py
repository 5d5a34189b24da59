"""The event stream: frames from the feed to one client, in as few writes as possible.

The next slice is made when the connection has sent the last one. A client that does not read costs one slice, and the
connection drops it (`protocol.py`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self, TypeVar

from msgspec import Struct

from kedge.core.ids import check_client_id
from kedge.engine.engine import Engine
from kedge.engine.feed import Reader
from kedge.engine.workspace import Workspace
from kedge.errors import BadPosition, KedgeError, TooManyStreams
from kedge.server.asgi import STREAMED, Disconnected, HttpRequest, Route, Streamed, route
from kedge.waiting import wait_uncancelled
from kedge.wire.frames import HEARTBEAT
from kedge.wire.limits import STREAMS_MAX

log = logging.getLogger("kedge.server")

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]
#: The largest Position that a client may send: every JSON parser reads integers up to this one exactly.
_POSITION_MAX = 2**53

T = TypeVar("T")


class EventsQuery(Struct):
    client_id: str = ""
    session_id: str | None = None
    deltas: bool = False
    after: str | None = None


class Subscription(Struct, frozen=True):
    """The query of a client for events."""

    client_id: str
    after: int | None
    session_id: str | None
    deltas: bool

    @classmethod
    def of(cls, request: HttpRequest) -> Subscription:
        query: EventsQuery = request.query
        client_id = check_client_id(query.client_id)
        after = _position(request.header(b"last-event-id") or query.after)
        return cls(client_id, after, query.session_id, query.deltas)


class StreamReply:
    """The response to one client: the frames of one reader, or of several in sequence."""

    def __init__(self, request: HttpRequest, heartbeat_s: float) -> None:
        self._request = request
        self._heartbeat_s = heartbeat_s
        self._reader: Reader | None = None
        #: The status and the headers were sent.
        self.is_started = False
        #: The client has disconnected, or the connection was dropped.
        self.is_over = False

    async def __aenter__(self) -> Self:
        self._gone = asyncio.get_running_loop().create_task(self._until_gone())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gone.cancel()

    async def _until_gone(self) -> None:
        await self._request.wait_disconnected()
        self.is_over = True
        if self._reader is not None:
            self._reader.close()

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, which is cancelled when the client disconnects."""
        task = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait({task, self._gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await wait_uncancelled([task])
        if task.cancelled():
            raise Disconnected
        return task.result()

    async def follow(self, reader: Reader, head: bytes = b"") -> None:
        """Send `head` and the frames of the reader until its feed ends or the client has disconnected."""
        self._reader = reader
        if self.is_over:
            return
        drain = self._request.scope["kedge.drain"]
        try:
            if not self.is_started:
                self.is_started = True
                await self._request.send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            # Send the start Position at once, so that a stream that is lost before its first event can be resumed. The
            # gap comes first: a client that has the Position also has the gap.
            data: bytes | None = head + reader.take_gap() + b": connected\nid: %d\n\n" % reader.position
            while data is not None:
                await self._request.send({"type": "http.response.body", "body": data or HEARTBEAT, "more_body": True})
                data = None  # the connection has its own copy
                await drain()
                data = await reader.read(self._heartbeat_s)
        except KedgeError as error:
            # The status line has been sent; the only way left to report an error is to drop the connection.
            log.error("event stream aborted: %s", error.message)
            self.is_over = True
            self._request.scope["kedge.abort"]()

    async def end(self) -> None:
        if not self.is_over:
            await self._request.send({"type": "http.response.body", "body": b""})


class EventRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_id = 0
        self.open_streams = 0

    async def events(self, request: HttpRequest) -> Streamed:
        subscription = Subscription.of(request)
        workspace = self._engine.workspaces.get(request.path["id"])
        with self.counted():
            async with self.reader(workspace, subscription) as reader, self.stream(request) as stream:
                await stream.follow(reader)
                await stream.end()
        return STREAMED

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count an open stream within this block. TooManyStreams if the limit is reached."""
        if self.open_streams >= STREAMS_MAX:
            raise TooManyStreams(f"{self.open_streams} streams are open, the limit of this server; close some.")
        self.open_streams += 1
        try:
            yield
        finally:
            self.open_streams -= 1

    def stream(self, request: HttpRequest) -> StreamReply:
        return StreamReply(request, self._engine.config.server.heartbeat_s)

    def new_id(self) -> str:
        self._next_id += 1
        return str(self._next_id)

    @asynccontextmanager
    async def reader(self, workspace: Workspace, subscription: Subscription) -> AsyncIterator[Reader]:
        """Return a reader of a workspace of this node. The client holds the workspace until the end of the block."""
        workspaces, stream_id = self._engine.workspaces, self.new_id()
        # Claim the workspace before the first await: otherwise it could be closed while the reader is created.
        workspaces.stream_opened(workspace, subscription.client_id, stream_id)
        try:
            reader = await workspaces.read_events(
                workspace, subscription.after, subscription.session_id, deltas=subscription.deltas
            )
            try:
                yield reader
            finally:
                reader.close()
        finally:
            if not self._engine.is_closing:
                workspaces.stream_closed(workspace, subscription.client_id, stream_id)

    def routes(self) -> list[Route]:
        return [
            route(
                "GET",
                "/workspaces/{id}/events",
                self.events,
                "Stream the events of a workspace",
                query=EventsQuery,
                media_type="text/event-stream",
                declared_session="query",
            )
        ]


def _position(text: str | None) -> int | None:
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 16 or int(text) > _POSITION_MAX:
        raise BadPosition("Last-Event-ID and after take a Position: the id of an event, or 0 for the first event.")
    return int(text)
