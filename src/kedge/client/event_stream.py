"""The event stream of a workspace: one iterator that survives lost connections and server restarts.

- It resumes at the Position of the last durable event that it returned and drops older ones, so that every durable
  event is returned once.
- Deltas have no Position. After a reconnect the server first sends the current text of streaming messages, which
  replaces the reader's text.
- Where the server cannot resume, or no Position is known yet, the reader receives a `gap` and must reread the state.
- A silent connection is closed (the server sends heartbeats). A server that is unreachable for
  `give_up_s` raises an error.
"""

from __future__ import annotations

import random
from asyncio import sleep
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx2
import msgspec
from msgspec import Struct

from kedge.client.http_transport import Transport
from kedge.client.retry import GIVE_UP_S, RETRY_S_MAX, RETRY_S_MIN, loop_time
from kedge.errors import Busy, KedgeError, TooLarge, Unavailable, Unreachable, WorkspaceClosing, WorkspaceNotFound
from kedge.waiting import backoff_s
from kedge.wire.limits import BODY_BYTES_MAX
from kedge.wire.models import Change, Envelope

#: One event is at most one message: text and tool inputs of a Step, each character escaped at worst, or a result with
#: pictures. Bytes.
EVENT_BYTES_MAX = 4 * BODY_BYTES_MAX
#: The loss of a connection that lasted this long restarts the backoff and `give_up_s`. Seconds.
STEADY_S = 5.0

_decode = msgspec.json.Decoder(Envelope).decode
_encode = msgspec.json.Encoder().encode

#: Errors that are probably temporary.
_TRANSIENT = (Unreachable, Busy, Unavailable, WorkspaceClosing)


class StreamEvent(Struct, frozen=True):
    """One envelope of the stream. `position` is None for frames that are not durable: Deltas, snapshots and gaps."""

    type: str
    change: str
    payload: dict[str, Any]
    position: int | None = None

    def envelope(self) -> bytes:
        """Return the wire form, without a line break."""
        change: Any = self.change
        return _encode(Envelope(type=self.type, payload=Change(type=change, payload=self.payload)))


class EventStream:
    """An async iterator of StreamEvents. `async with` connects first, so that the body misses no event."""

    def __init__(
        self,
        transport: Transport,
        workspace_id: str,
        params: dict[str, Any],
        *,
        reopen: Callable[[str], Awaitable[str]],
        after: int | None = None,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self.workspace_id = workspace_id
        #: The last durable Position returned. A reader may set it to its starting point before one is known.
        self.position = self._after = after
        #: Number of connections so far.
        self.connects = 0
        self._transport = transport
        self._params = params
        self._reopen = reopen
        self._give_up_s = give_up_s
        self._response: httpx2.Response | None = None
        self._frames: AsyncIterator[httpx2.ServerSentEvent] | None = None
        self._connected_at = 0.0
        self._failing_since: float | None = None
        self._delays = backoff_s(RETRY_S_MIN, RETRY_S_MAX)
        #: The parser repeats the last id for frames without one. Compared with this to detect a new id.
        self._frame_id = ""
        #: Called with True after each connect, and with False after each failure.
        self.on_connected: Callable[[bool], None] = lambda connected: None

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while True:
            if self._frames is None:
                may_have_missed = self.connects > 0 and self.position is None
                await self.connect()
                if may_have_missed:
                    return StreamEvent("gap", "created", {"reason": "unknown", "position": 0})
            frame = await self._next_frame()
            event = self._event(frame) if frame else None
            if event:
                return event

    async def connect(self) -> None:
        """Subscribe. The first connect is not retried; a reconnect is, for `give_up_s`."""
        reopened = False
        while self._frames is None:
            try:
                await self._open()
            except WorkspaceNotFound as error:
                # The server was restarted, or has closed the workspace.
                if reopened:
                    await self._back_off(error)
                reopened = True
                await self._reopen_workspace()
            except _TRANSIENT as error:
                await self._back_off(error)

    async def aclose(self) -> None:
        frames, self._frames = self._frames, None
        response, self._response = self._response, None
        if isinstance(frames, AsyncGenerator):
            await frames.aclose()
        if response is not None:
            await response.aclose()

    async def _open(self) -> None:
        params, headers = self._params, {}
        if self.position is not None and self.position == self._after:
            params = params | {"after": self._after}
        elif self.position is not None:
            headers["last-event-id"] = str(self.position)
        path = f"/workspaces/{quote(self.workspace_id, safe='')}/events"
        self._response = await self._transport.open_stream(path, params, headers)
        source = httpx2.EventSource(self._response, max_event_size=EVENT_BYTES_MAX)
        self._frames = source.__aiter__()
        self._frame_id = ""
        self._connected_at = loop_time()
        self.connects += 1
        self.on_connected(True)

    async def _reopen_workspace(self) -> None:
        try:
            self.workspace_id = await self._reopen(self.workspace_id)
        except _TRANSIENT as error:
            await self._back_off(error)

    async def _next_frame(self) -> httpx2.ServerSentEvent | None:
        """Return the next frame, or close a connection that ended or broke and return None."""
        assert self._frames is not None
        try:
            return await anext(self._frames)
        except StopAsyncIteration:
            lost: KedgeError = Unreachable(f"The server at {self._transport.address.host} ended the stream.")
        except httpx2.SSEError as error:
            # A retry would get the same frame, or the same page that is not a stream.
            await self.aclose()
            raise TooLarge(f"Cannot read the event stream: {error}") from error
        except httpx2.TransportError as error:
            lost = self._transport.unreachable(error)
        await self.aclose()
        if loop_time() - self._connected_at >= STEADY_S:
            self._reset_backoff()
        await self._back_off(lost)
        return None

    async def _back_off(self, error: KedgeError) -> None:
        """Sleep before the next attempt, or raise the error after `give_up_s`."""
        if self.connects == 0:
            raise error
        self.on_connected(False)
        now = loop_time()
        self._failing_since = self._failing_since or now
        left = self._failing_since + self._give_up_s - now
        if left <= 0:
            raise error
        # Jitter: many clients do not reconnect at the same moment.
        await sleep(min(next(self._delays) * random.uniform(0.5, 1.0), left))

    def _reset_backoff(self) -> None:
        self._failing_since, self._delays = None, backoff_s(RETRY_S_MIN, RETRY_S_MAX)

    def _event(self, frame: httpx2.ServerSentEvent) -> StreamEvent | None:
        position: int | None = None
        if frame.id != self._frame_id:
            self._frame_id = frame.id
            position = int(frame.id) if frame.id.isdecimal() else None
        if not frame.data:
            # An id alone: the Position at which reading began.
            self.position = self.position if position is None else position
            return None
        try:
            envelope = _decode(frame.data)
        except msgspec.DecodeError as error:
            raise KedgeError(f"Cannot decode an event ({error}). Is the server another version of kedge?") from error
        payload = envelope.payload.payload
        if envelope.type == "gap":
            # Earlier Positions are void: they may belong to another log, and be higher.
            self.position = payload.get("position")
        elif position is not None:
            if self.position is not None and position <= self.position:
                return None
            self.position = position
            self._reset_backoff()  # only for durable events: a connection may break right after its first frames
        return StreamEvent(envelope.type, envelope.payload.type, payload, position)
