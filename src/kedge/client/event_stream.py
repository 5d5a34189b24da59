"""The event stream as a client sees it: one iterator that outlives connections and server restarts.

Rules it keeps:
- the Position of the last durable event that was handed out is where it resumes; older ones are dropped, so that every
  durable event is handed out once;
- Deltas have no Position: after a reconnect the server first sends the current text of streaming messages, which
  replaces what the reader has;
- where the server cannot resume, and where no Position is known yet, the reader gets a `gap` and reads the state again;
- a silent connection is dropped (the server sends heartbeats), and a server that stays away for `give_up_s` is gone.
"""

from __future__ import annotations

import random
from asyncio import get_running_loop, sleep
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx2
import msgspec
from msgspec import Struct

from kedge.client.http_transport import Transport
from kedge.errors import Busy, KedgeError, TooLarge, Unavailable, Unreachable, WorkspaceClosing, WorkspaceNotFound
from kedge.wire.limits import BODY_BYTES_MAX
from kedge.wire.models import Change, Envelope

#: One event is at most one message: a prompt with the largest attachments, each byte escaped at worst. Bytes.
EVENT_BYTES_MAX = 4 * BODY_BYTES_MAX
#: A server that is started again is back within a few seconds; a person waits about this long. Seconds.
GIVE_UP_S = 30.0
#: Waits between attempts double from the first to the second, each shortened at random so that clients spread. Seconds.
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 2.0
#: A connection that lasted this long was a good one: its loss begins a new count of `give_up_s`. Seconds.
STEADY_S = 5.0

_decode = msgspec.json.Decoder(Envelope).decode
_encode = msgspec.json.Encoder().encode

#: The server may be back, or have room, in a moment.
_PASSING = (Unreachable, Busy, Unavailable, WorkspaceClosing)


def loop_time() -> float:
    """The clock that waits go by: the event loop's own, which a simulation makes up."""
    return get_running_loop().time()


class StreamEvent(Struct, frozen=True):
    """One envelope of the stream. `position` is None for what is not durable: Deltas, snapshots and gaps."""

    type: str
    change: str
    payload: dict[str, Any]
    position: int | None = None

    def envelope(self) -> bytes:
        """As it was on the wire, without a line break."""
        change: Any = self.change
        return _encode(Envelope(type=self.type, payload=Change(type=change, payload=self.payload)))


class EventStream:
    """Async iterator of StreamEvents. `async with` connects before its body runs: what happens from then on is seen."""

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
        #: The last durable Position handed out. It may be set before one is known, to where reading began.
        self.position = self._after = after
        #: Connections made so far.
        self.connects = 0
        self._transport = transport
        self._params = params
        self._reopen = reopen
        self._give_up_s = give_up_s
        self._response: httpx2.Response | None = None
        self._frames: AsyncIterator[httpx2.ServerSentEvent] | None = None
        self._connected_at = 0.0
        self._failing_since: float | None = None
        self._failures = 0
        #: The parser repeats the last id for frames that have none; this tells the two apart.
        self._frame_id = ""
        #: Told whenever the connection is lost, and when there is one again.
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
                lost_place = self.connects > 0 and self.position is None
                await self.connect()
                if lost_place:
                    return StreamEvent("gap", "created", {"reason": "unknown", "position": 0})
            frame = await self._next_frame()
            event = self._event(frame) if frame else None
            if event:
                return event

    async def connect(self) -> None:
        """Be subscribed. The first attempt fails at once; later ones are repeated until `give_up_s` have passed."""
        reopened = False
        while self._frames is None:
            try:
                await self._open()
            except WorkspaceNotFound as error:
                # The server was started again, or has closed the workspace since.
                if reopened:
                    await self._pause(error)
                reopened = True
                await self._reopen_workspace()
            except _PASSING as error:
                await self._pause(error)

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
        except _PASSING as error:
            await self._pause(error)

    async def _next_frame(self) -> httpx2.ServerSentEvent | None:
        """The next frame; None when the connection ended or broke, which is then closed."""
        assert self._frames is not None
        try:
            return await anext(self._frames)
        except StopAsyncIteration:
            lost: KedgeError = Unreachable(f"the server at {self._transport.address.host} ended the stream")
        except httpx2.SSEError as error:
            # Asking again would bring the same frame, or the same page that is no stream.
            await self.aclose()
            raise TooLarge(f"the event stream cannot be read: {error}") from error
        except httpx2.TransportError as error:
            lost = self._transport.unreachable(error)
        await self.aclose()
        if loop_time() - self._connected_at >= STEADY_S:
            self._steady()
        await self._pause(lost)
        return None

    async def _pause(self, error: KedgeError) -> None:
        """Wait before the next attempt, or raise the error when there should be none."""
        if self.connects == 0:
            raise error
        self.on_connected(False)
        now = loop_time()
        self._failing_since = self._failing_since or now
        left = self._failing_since + self._give_up_s - now
        if left <= 0:
            raise error
        pause = min(PAUSE_S_MIN * 2**self._failures, PAUSE_S_MAX) * random.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 16)
        await sleep(min(pause, left))

    def _steady(self) -> None:
        self._failing_since, self._failures = None, 0

    def _event(self, frame: httpx2.ServerSentEvent) -> StreamEvent | None:
        position: int | None = None
        if frame.id != self._frame_id:
            self._frame_id = frame.id
            position = int(frame.id) if frame.id.isdecimal() else None
        if not frame.data:
            # An id alone: the place where reading began.
            self.position = self.position if position is None else position
            return None
        try:
            envelope = _decode(frame.data)
        except msgspec.DecodeError as error:
            raise KedgeError(f"the server sent an event that cannot be understood ({error}): other version?") from error
        payload = envelope.payload.payload
        if envelope.type == "gap":
            # Earlier Positions mean nothing from here on: they may be of another log, and higher.
            self.position = payload.get("position")
        elif position is not None:
            if self.position is not None and position <= self.position:
                return None
            self.position = position
            self._steady()  # not for what every connection begins with: some break off right behind that
        return StreamEvent(envelope.type, envelope.payload.type, payload, position)
