"""The feed: what happens in one workspace, on its way to any number of readers.

Theory of operation
===================

All readers share one ring of frames, encoded once. A reader is an index into it and the Position it has reached;
reading is joining the frames from there on. The publisher never waits and holds nothing for anybody: a reader that is
too slow finds that the ring has moved on, and then reads the log from the store, from its own Position, until it meets
the ring again. So durable events are never dropped, a stuck reader costs a few dozen bytes, an extra reader a write.

Deltas have no Position and are not in the log. A reader that (re)joins the ring gets each streaming message whole
first, and its Deltas from there on. Between two flushes the Deltas of a message run together into one frame: the first
goes out at once, those behind it at a pace that no eye can tell from at once. Readers without Deltas get the whole
message instead, less often.

Publishing out of order, or a hole after an append whose end was unknown, is not an error here: the ring is emptied and
everybody reads the log, which is always in order.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal, Protocol

from kedge.core.approvals import Ask
from kedge.core.events import Event
from kedge.core.records import RunRecord, SessionRecord, SessionView
from kedge.core.transcript import Message
from kedge.engine.draft import Draft
from kedge.engine.ports import Clock, Encoder
from kedge.store.base import LogEntry, Store

#: Frames kept for readers that are a little late: seconds of a busy stream. One larger frame alone is kept too. Bytes.
RING_BYTES_MAX = 1024 * 1024
#: What a frame costs beside its data: empty ones, too, must run out some day. Bytes.
FRAME_BYTES = 200
#: What one read returns at the most, give or take a frame: the memory a reader holds while its socket is full. Bytes.
READ_BYTES_MAX = 256 * 1024
#: Entries fetched from the log at once by a reader that is behind. Items.
PAGE_ENTRIES_MAX = 100
#: Pace of Deltas: below what an eye can see, and a write per reader each. More readers, fewer writes. Seconds.
FLUSH_S, FLUSH_S_PER_READER, FLUSH_S_MAX = 0.010, 0.0005, 0.060
#: Pace of whole streaming messages, for readers without Deltas: each costs its length. Seconds.
SNAPSHOT_S = 1 / 30
#: Of them, at most, so that a message of megabytes does not take all of the loop's time. Bytes per second.
SNAPSHOT_BYTES_PER_S = 20_000_000

Audience = Literal["all", "deltas", "snapshots"]
StoredRecord = SessionRecord | RunRecord | Message | Ask


@dataclass(slots=True)
class Frame:
    position: int | None
    #: Empty: it is for the readers of every session.
    session_id: str
    audience: Audience
    data: bytes


class SessionViews(Protocol):
    def view(self, session: SessionRecord) -> SessionView: ...


class Feed:
    def __init__(
        self, workspace_id: str, head: int, store: Store, encoder: Encoder, clock: Clock, views: SessionViews
    ) -> None:
        self.workspace_id = workspace_id
        self.store = store
        self.encoder = encoder
        self.closed = False
        self.ring_bytes_max = RING_BYTES_MAX
        self._views = views
        self._clock = clock
        self._head = head
        #: Every durable frame with a higher Position is in the ring.
        self._floor = head
        self._frames: list[Frame] = []
        self._first = 0  # number of self._frames[0], counted since the feed began
        self._bytes = 0
        self._drafts: dict[str, Draft] = {}
        self._unsent: dict[str, Draft] = {}
        self._unshown: dict[str, Draft] = {}
        self._snapshots: dict[str, Frame] = {}
        self._flush_timer: asyncio.TimerHandle | None = None
        self._show_timer: asyncio.TimerHandle | None = None
        self._flushed_at = self._shown_at = float("-inf")
        self._readers: set[Reader] = set()
        self._left = asyncio.Event()
        #: What holds for the whole workspace right now, and is in no log: each reader that joins the ring gets it.
        self._notice = b""
        self._without_deltas: set[Reader] = set()  # those of them that get whole messages instead
        self._waiting: dict[Reader, None] = {}  # a set that keeps its order

    # --- publishing ----------------------------------------------------------------------------------------------

    @property
    def has_readers(self) -> bool:
        return bool(self._readers)

    @property
    def end(self) -> int:
        """The number of the frame that comes next."""
        return self._first + len(self._frames)

    def publish(self, first: int, frames: list[Frame]) -> None:
        """Durable frames with consecutive Positions from `first` on."""
        last = first + len(frames) - 1
        if last <= self._head:
            return  # readers have these from the log already
        self._flush()
        if first == self._head + 1:
            for frame in frames:
                self._push(frame)
        else:
            self._empty_ring(last)
        self._head = last
        self._wake()

    def skip(self, last: int) -> None:
        """Events up to `last` happened while nobody was reading: whoever comes reads them from the log."""
        if last > self._head:
            self._head = last
            self._empty_ring(last)
            self._wake()

    def stream(self, draft: Draft) -> None:
        self._drafts[draft.id] = draft

    def stream_ended(self, draft: Draft) -> None:
        """The message is whole; its durable frame, which holds everything, follows at once."""
        for register in (self._drafts, self._unsent, self._unshown):
            register.pop(draft.id, None)
        self._forget_snapshot(draft.id)

    def grew(self, draft: Draft) -> None:
        """The draft has more text."""
        if not self._readers or draft.id not in self._drafts:
            return
        self._unsent[draft.id] = self._unshown[draft.id] = draft
        loop = asyncio.get_running_loop()
        if self._flush_timer is None:
            pace = min(FLUSH_S + FLUSH_S_PER_READER * len(self._readers), FLUSH_S_MAX)
            self._flush_timer = loop.call_at(max(loop.time(), self._flushed_at + pace), self._flush)
        if self._show_timer is None and self._without_deltas:
            self._show_timer = loop.call_at(max(loop.time(), self._shown_at + SNAPSHOT_S), self._show)

    def send_transient(self, session_id: str, data: bytes) -> None:
        """Something of the moment, for readers that take Deltas: it is not kept, and losing it loses nothing."""
        if len(self._readers) > len(self._without_deltas):
            self._push(Frame(None, session_id, "deltas", data))
            self._wake()

    def announce(self, data: bytes) -> None:
        """What holds for the whole workspace from now on, for all readers, and for those that come later."""
        self._notice = data
        if self._readers:
            self._push(Frame(None, "", "all", data))
            self._wake()

    def streaming(self, message_id: str) -> Draft | None:
        return self._drafts.get(message_id)

    def close(self) -> None:
        """Readers get what is in the ring, and then their end."""
        self.closed = True
        self._flush()
        if self._show_timer is not None:
            self._show_timer.cancel()
        self._wake()

    def _flush(self) -> None:
        """Send the Deltas that have gathered."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if not self._unsent:
            return
        self._flushed_at = asyncio.get_running_loop().time()
        wanted = len(self._readers) > len(self._without_deltas)
        for draft in self._unsent.values():
            for part, kind, text in draft.take_unsent():
                if wanted:
                    data = self.encoder.delta(draft.id, part, text, kind)
                    self._push(Frame(None, draft.session_id, "deltas", data))
        self._unsent.clear()
        self._wake()

    def _show(self) -> None:
        """Send the streaming messages whole, to those who do not take Deltas."""
        self._show_timer = None
        self._shown_at = asyncio.get_running_loop().time()
        now = self._clock.now_ms()
        for draft in self._unshown.values():
            # A newer snapshot makes the older one worthless: the ring holds one per streaming message.
            self._forget_snapshot(draft.id)
            data = self.encoder.snapshot(draft.message(now))
            frame = self._snapshots[draft.id] = Frame(None, draft.session_id, "snapshots", data)
            self._push(frame)
            self._shown_at += len(data) / SNAPSHOT_BYTES_PER_S
        self._unshown.clear()
        self._wake()

    def _forget_snapshot(self, message_id: str) -> None:
        if frame := self._snapshots.pop(message_id, None):
            self._bytes -= len(frame.data)  # its place in the ring is still counted
            frame.data = b""

    def _push(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._bytes += FRAME_BYTES + len(frame.data)
        evicted = 0
        while self._bytes > self.ring_bytes_max and evicted < len(self._frames) - 1:
            old = self._frames[evicted]
            self._bytes -= FRAME_BYTES + len(old.data)
            old.data = b""
            if old.position is not None:
                self._floor = old.position
            evicted += 1
        if evicted:
            del self._frames[:evicted]
            self._first += evicted

    def _empty_ring(self, floor: int) -> None:
        # One more than there were, so that readers at the very end notice too.
        self._first += len(self._frames) + 1
        self._frames.clear()
        self._snapshots.clear()
        self._bytes = 0
        self._floor = floor

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for reader in waiting:
            reader.wake()

    # --- reading -------------------------------------------------------------------------------------------------

    async def reader(self, after: int | None, session_id: str | None, *, deltas: bool) -> Reader:
        """A reader from this Position on; 0: from the beginning; None: from the present."""
        floor, head = await self.store.bounds(self.workspace_id)
        gap = b""
        if after is None:
            after = head
        elif after == 0:
            gap = self.encoder.gap("evicted", floor) if floor > await self._base() else b""
            after = floor
        elif not floor <= after <= head:
            trimmed = await self._base() <= after < floor
            gap = self.encoder.gap("evicted" if trimmed else "epoch", head)
            after = head
        reader = Reader(self, after, session_id, deltas, gap)
        self._readers.add(reader)
        if not deltas:
            self._without_deltas.add(reader)
        return reader

    async def _base(self) -> int:
        return next(record.base for record in await self.store.workspaces() if record.id == self.workspace_id)

    def leave(self, reader: Reader) -> None:
        self._readers.discard(reader)
        self._without_deltas.discard(reader)
        self._waiting.pop(reader, None)
        if not self._readers:
            self._left.set()

    async def wait_left(self) -> None:
        """Until the last reader of a closed feed has gone."""
        if self._readers:
            self._left.clear()
            await self._left.wait()

    def _follow(self, reader: Reader, number: int) -> tuple[bytes, int]:
        """What this reader wants of the ring from frame `number` on, and the number to go on with."""
        wanted: list[bytes] = []
        size = 0
        mode = "deltas" if reader.deltas else "snapshots"
        for frame in self._frames[number - self._first :]:
            if size >= READ_BYTES_MAX:
                break
            number += 1
            if frame.position is not None:
                if frame.position <= reader.position:
                    continue
                reader.position = frame.position
            if frame.audience in ("all", mode) and reader.session_id in (None, frame.session_id or reader.session_id):
                wanted.append(frame.data)
                size += len(frame.data)
        return b"".join(wanted), number

    def _join(self, reader: Reader) -> tuple[bytes, int]:
        """Everything durable the reader lacks, then each streaming message whole; from then on it follows the ring.

        The ring must hold all that the reader lacks, with no Deltas left to flush: those would push it out."""
        parts: list[bytes] = []
        for frame in self._frames:
            if frame.position is not None and frame.position > reader.position:
                reader.position = frame.position
                if reader.session_id in (None, frame.session_id):
                    parts.append(frame.data)
        now = self._clock.now_ms()
        for draft in self._drafts.values():
            draft.take_unsent()  # gathered while nobody was reading; the snapshot has it
            # One without a word yet, too: whoever has read it elsewhere may now add the Deltas that follow.
            if reader.session_id in (None, draft.session_id):
                parts.append(self.encoder.snapshot(draft.message(now)))
        return b"".join([*parts, self._notice]), self.end

    async def encode_entry(self, entry: LogEntry) -> bytes:
        """Return a log entry as a frame, with its record as it is now."""
        record: StoredRecord | None = None
        match self.encoder.record_of(entry.event):
            case ("session", session_id):
                record = await self.store.session(self.workspace_id, session_id)
            case ("run", run_id):
                record = await self.store.run(self.workspace_id, run_id)
            case ("message", message_id):
                record = await self.store.message(self.workspace_id, message_id)
            case ("ask", ask_id):
                record = await self.store.ask(self.workspace_id, ask_id)
        return self.encode(entry.position, entry.session_id, entry.event, record)

    def encode(self, position: int, session_id: str, event: Event, record: StoredRecord | None) -> bytes:
        shown = self._views.view(record) if isinstance(record, SessionRecord) else record
        return self.encoder.encode(position, session_id, event, shown)


class Reader:
    """One client's place in the feed."""

    def __init__(self, feed: Feed, position: int, session_id: str | None, deltas: bool, gap: bytes) -> None:
        self.feed = feed
        self.position = position
        self.session_id = session_id
        self.deltas = deltas
        self._gap = gap
        #: Asks that wait for an answer, for a client that was not there when they were put.
        self.pending = b""
        #: Number of the next frame in the ring; None while it reads the log.
        self._next: int | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def take_gap(self) -> bytes:
        """The frame that says where this reader could not resume, if so. It comes before everything else."""
        gap, self._gap = self._gap, b""
        return gap

    async def read(self, wait_s: float) -> bytes | None:
        """The next frames, joined; empty when none came in this time. None: this is the end, everything was read.

        Do not cancel it: frames taken from the log but not returned would be lost to this reader."""
        feed = self.feed
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while not self._closed:
            if self._next is not None and self._next < feed._first:
                self._next = None  # too slow for the ring
            if self._next is None:
                data = await self._catch_up()
            else:
                data, self._next = feed._follow(self, self._next)
            if data:
                return data
            if self._next != feed.end:
                continue
            if feed.closed:
                return None
            if loop.time() >= deadline:
                return b""
            self._waiter = loop.create_future()
            feed._waiting[self] = None
            self._deadline = deadline
            if self._timer is None:
                self._timer = loop.call_at(deadline, self._look_at_time)
            await self._waiter
        return None

    def _look_at_time(self) -> None:
        """Wakes at the deadline of the latest read. Most reads end long before theirs, and a timer set and cancelled
        for each would cost more than the frames: this one is set again when it fires."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._look_at_time)
        else:
            self._timer = None
            self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """The client is gone: `read` returns None soon."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.feed.leave(self)
        self.wake()

    async def _catch_up(self) -> bytes:
        """A page of the log, or, once the ring has all that follows, the step over into it."""
        feed = self.feed
        if self.position >= feed._floor:
            feed._flush()
        if self.position >= feed._floor:  # asked again: what was flushed may have pushed out what this reader lacks
            data, self._next = feed._join(self)
            return data
        parts: list[bytes] = []
        size = 0
        entries = await feed.store.read(feed.workspace_id, self.position, PAGE_ENTRIES_MAX)
        for entry in entries:
            if self.session_id in (None, entry.session_id):
                data = await feed.encode_entry(entry)
                parts.append(data)
                size += len(data)
            self.position = entry.position
            if size >= READ_BYTES_MAX:
                break
        if not entries:  # trimmed while it was away
            self.position = feed._floor
            return feed.encoder.gap("evicted", self.position)
        return b"".join(parts)
