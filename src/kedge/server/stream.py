"""The event stream: frames from the feed to one client, in as few writes as possible."""

from __future__ import annotations

import asyncio
import logging

from msgspec import Struct

from kedge.core.ids import check_client_id
from kedge.engine.engine import Engine
from kedge.engine.feed import Reader
from kedge.errors import BadPosition, KedgeError, TooManyStreams
from kedge.server.app import STREAMED, Call, Streamed
from kedge.wire.frames import HEARTBEAT
from kedge.wire.limits import STREAMS_MAX

log = logging.getLogger("kedge.server")

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
#: Largest Position a reader may name: what JSON readers hold exactly.
_POSITION_MAX = 2**53


class EventsQuery(Struct):
    client_id: str = ""
    session_id: str | None = None
    deltas: bool = False
    after: str | None = None


class Streams:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_id = 0
        self.open = 0

    async def events(self, call: Call) -> Streamed:
        query: EventsQuery = call.query
        client_id = check_client_id(query.client_id)
        workspace = self._engine.workspaces.get(call.path["id"])
        after = _position(call.header(b"last-event-id") or query.after)
        if self.open >= STREAMS_MAX:
            raise TooManyStreams(f"{self.open} streams are open, the most this server takes; close some")
        self.open += 1
        self._next_id += 1
        stream_id = str(self._next_id)
        try:
            # The claim first: the workspace must not be let go while the reader is made.
            self._engine.workspaces.stream_opened(workspace, client_id, stream_id)
            try:
                reader = await self._engine.workspaces.read_events(
                    workspace, after, query.session_id, deltas=query.deltas
                )
                try:
                    await self._follow(reader, call)
                finally:
                    reader.close()
            finally:
                if not self._engine.is_closing:
                    self._engine.workspaces.stream_closed(workspace, client_id, stream_id)
        finally:
            self.open -= 1
        return STREAMED

    async def _follow(self, reader: Reader, call: Call) -> None:
        server = self._engine.config.server
        stall = _Stall(server.stall_s, call)
        gone = asyncio.get_running_loop().create_task(_notice_leaving(call, reader))
        try:
            await call.send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            # The Position it starts from, at once: a stream that is lost before its first event can still be resumed.
            # Behind a gap, so that a client never takes this Position without being told of the gap.
            data: bytes | None = reader.take_gap() + b": connected\nid: %d\n\n" % reader.position + reader.pending
            while data is not None:
                stall.begin()
                await call.send({"type": "http.response.body", "body": data or HEARTBEAT, "more_body": True})
                stall.end()
                data = await reader.read(server.heartbeat_s)
            await call.send({"type": "http.response.body", "body": b""})
        except KedgeError as error:
            # The reply has begun: all that can be said now is the end of the stream.
            log.error("a stream broke off: %s", error.message)
            call.scope["kedge.abort"]()
        finally:
            stall.close()
            gone.cancel()


class _Stall:
    """Drops a client that takes nothing for `stall_s`, not even heartbeats. Closing politely would wait for it again;
    once the connection is gone, `send` returns and the leaving is noticed.

    One timer for the whole stream, set again when it fires: one for each send would cost more than the send."""

    def __init__(self, stall_s: float, call: Call) -> None:
        self._stall_s = stall_s
        self._call = call
        self._loop = asyncio.get_running_loop()
        #: When the send began that is under way.
        self._since: float | None = None
        self._timer = self._loop.call_later(stall_s, self._look)

    def begin(self) -> None:
        self._since = self._loop.time()

    def end(self) -> None:
        self._since = None

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        due = (now if self._since is None else self._since) + self._stall_s
        if due > now:
            self._timer = self._loop.call_at(due, self._look)
        else:
            self._call.scope["kedge.abort"]()


async def _notice_leaving(call: Call, reader: Reader) -> None:
    await call.gone()
    reader.close()


def _position(given: str | None) -> int | None:
    if given is None or given == "":
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 16 or int(given) > _POSITION_MAX:
        raise BadPosition("Last-Event-ID and after take a Position: the id of an event, or 0 for the beginning")
    return int(given)
