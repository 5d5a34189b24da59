"""The event stream: frames from the feed to one client, in as few writes as possible.

The next slice is made when the connection has sent the last one. A client that does not read costs one slice, and the
connection drops it (`protocol.py`)."""

from __future__ import annotations

import asyncio
import logging

from msgspec import Struct

from kedge.core.ids import check_client_id
from kedge.engine.engine import Engine
from kedge.engine.feed import Reader
from kedge.errors import BadPosition, KedgeError, TooManyStreams
from kedge.server.asgi import STREAMED, HttpRequest, Route, Streamed, route
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


class EventsQuery(Struct):
    client_id: str = ""
    session_id: str | None = None
    deltas: bool = False
    after: str | None = None


class EventRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_id = 0
        self.open_streams = 0

    async def events(self, request: HttpRequest) -> Streamed:
        query: EventsQuery = request.query
        client_id = check_client_id(query.client_id)
        workspace = self._engine.workspaces.get(request.path["id"])
        after = _position(request.header(b"last-event-id") or query.after)
        if self.open_streams >= STREAMS_MAX:
            raise TooManyStreams(f"{self.open_streams} streams are open, the limit of this server; close some.")
        self.open_streams += 1
        self._next_id += 1
        stream_id = str(self._next_id)
        try:
            # Claim the workspace before the first await: otherwise it could be closed while the reader is created.
            self._engine.workspaces.stream_opened(workspace, client_id, stream_id)
            try:
                reader = await self._engine.workspaces.read_events(
                    workspace, after, query.session_id, deltas=query.deltas
                )
                try:
                    await self._follow(reader, request)
                finally:
                    reader.close()
            finally:
                if not self._engine.is_closing:
                    self._engine.workspaces.stream_closed(workspace, client_id, stream_id)
        finally:
            self.open_streams -= 1
        return STREAMED

    async def _follow(self, reader: Reader, request: HttpRequest) -> None:
        heartbeat_s = self._engine.config.server.heartbeat_s
        drain = request.scope["kedge.drain"]
        disconnect = asyncio.get_running_loop().create_task(_close_on_disconnect(request, reader))
        try:
            await request.send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            # Send the start Position at once, so that a stream that is lost before its first event can be resumed. The
            # gap comes first: a client that has the Position also has the gap.
            data: bytes | None = reader.take_gap() + b": connected\nid: %d\n\n" % reader.position
            while data is not None:
                await request.send({"type": "http.response.body", "body": data or HEARTBEAT, "more_body": True})
                data = None  # the connection has its own copy
                await drain()
                data = await reader.read(heartbeat_s)
            await request.send({"type": "http.response.body", "body": b""})
        except KedgeError as error:
            # The status line has been sent; the only way left to report an error is to drop the connection.
            log.error("event stream aborted: %s", error.message)
            request.scope["kedge.abort"]()
        finally:
            disconnect.cancel()

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


async def _close_on_disconnect(request: HttpRequest, reader: Reader) -> None:
    await request.wait_disconnected()
    reader.close()


def _position(text: str | None) -> int | None:
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 16 or int(text) > _POSITION_MAX:
        raise BadPosition("Last-Event-ID and after take a Position: the id of an event, or 0 for the first event.")
    return int(text)
