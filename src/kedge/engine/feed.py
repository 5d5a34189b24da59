"""The feed: the events of one workspace, delivered to any number of readers.

Theory of operation
===================

All readers share one ring of frames, encoded once. A reader is an index into the ring and the Position it has reached;
reading joins the frames from there on. The publisher never waits and keeps no queue per reader. A reader that is too
slow finds that the ring has moved on; it then reads the log from the store, from its own Position, until it meets the
ring again. So durable events are never dropped, a stuck reader costs a few dozen bytes, and another reader costs one
more write.

Deltas have no Position and are not in the log. A reader that joins the ring first receives each streaming message
complete, and its Deltas from then on. Between two flushes the Deltas of a message are merged into one frame: the first
is sent at once, later ones at an imperceptible delay. Readers without Deltas receive the complete message instead, less
often.

Publishing out of order, or a hole after an append with an unknown result, is not an error: the ring is emptied and all
readers read the log, which is always in order.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal, Protocol

from kedge.core.records import Record, RecordKind, Records, SessionRecord, SessionView, WorkspaceRecord
from kedge.engine.draft import Draft
from kedge.engine.ports import Clock, Encoder
from kedge.store.base import LogEntry, Store

#: Frames kept for readers that lag: seconds of a busy stream. A single larger frame is also kept. Bytes.
RING_BYTES_MAX = 1024 * 1024
#: The cost of a frame beside its data, so that empty frames are evicted, too. Bytes.
FRAME_BYTES = 200
#: The result of one read, within a frame: the memory that a reader holds while its socket is full. Bytes.
READ_BYTES_MAX = 256 * 1024
#: Entries that a lagging reader fetches from the log at once. Items.
PAGE_ENTRIES_MAX = 100
#: The interval of Deltas: imperceptible, and one write per reader each. More readers, fewer writes. Seconds.
FLUSH_S, FLUSH_S_PER_READER, FLUSH_S_MAX = 0.010, 0.0005, 0.060
#: The interval of complete streaming messages, for readers without Deltas: each costs its length. Seconds.
SNAPSHOT_S = 1 / 30
#: Their rate, so that a message of megabytes does not take all of the loop's time. Bytes per second.
SNAPSHOT_BYTES_PER_S = 20_000_000

Audience = Literal["all", "deltas", "snapshots"]


@dataclass(slots=True)
class Frame:
    position: int | None
    #: Empty: for the readers of every session.
    session_id: str
    audience: Audience
    data: bytes


class SessionViews(Protocol):
    def view(self, session: SessionRecord) -> SessionView: ...


class Feed:
    def __init__(
        self, workspace: WorkspaceRecord, head: int, store: Store, encoder: Encoder, clock: Clock, views: SessionViews
    ) -> None:
        self.workspace_id = workspace.id
        self._base = workspace.base
        self.store = store
        self.encoder = encoder
        self.closed = False
        self.ring_bytes_max = RING_BYTES_MAX
        self.view = views.view
        self._clock = clock
        self._head = head
        #: Every durable frame with a higher Position is in the ring.
        self._floor = head
        self._frames: list[Frame] = []
        self._first = 0  # number of self._frames[0], counted from the start of the feed
        self._bytes = 0
        self._drafts: dict[str, Draft] = {}
        self._unsent: dict[str, Draft] = {}
        self._unsent_snapshots: dict[str, Draft] = {}
        self._snapshots: dict[str, Frame] = {}
        self._flush_timer: asyncio.TimerHandle | None = None
        self._snapshot_timer: asyncio.TimerHandle | None = None
        self._flushed_at = self._snapshot_at = float("-inf")
        self._readers: set[Reader] = set()
        self._left = asyncio.Event()
        #: The current state of the workspace that is in no log: sent to each reader that joins the ring.
        self._notice = b""
        self._without_deltas: set[Reader] = set()  # these receive complete messages instead
        self._waiting: dict[Reader, None] = {}  # an ordered set

    # --- publishing ----------------------------------------------------------------------------------------------

    @property
    def has_readers(self) -> bool:
        return bool(self._readers)

    @property
    def head(self) -> int:
        return self._head

    @property
    def end(self) -> int:
        """The number of the next frame."""
        return self._first + len(self._frames)

    def publish(self, first: int, frames: list[Frame]) -> None:
        """Publish durable frames with consecutive Positions from `first` on."""
        last = first + len(frames) - 1
        if last <= self._head:
            return  # readers already have these from the log
        self._flush()
        if first == self._head + 1:
            for frame in frames:
                self._push(frame)
        else:
            self._empty_ring(last)
        self._head = last
        self._wake()

    def skip(self, last: int) -> None:
        """Advance to `last` without frames: readers take the events from the log."""
        if last > self._head:
            self._head = last
            self._empty_ring(last)
            self._wake()

    def stream(self, draft: Draft) -> None:
        self._drafts[draft.id] = draft

    def stream_ended(self, draft: Draft) -> None:
        """End a stream: the durable frame with the complete message follows at once."""
        for register in (self._drafts, self._unsent, self._unsent_snapshots):
            register.pop(draft.id, None)
        self._drop_snapshot(draft.id)

    def text_added(self, draft: Draft) -> None:
        """Schedule the new text of a draft."""
        if not self._readers or draft.id not in self._drafts:
            return
        self._unsent[draft.id] = self._unsent_snapshots[draft.id] = draft
        loop = asyncio.get_running_loop()
        if self._flush_timer is None:
            pace = min(FLUSH_S + FLUSH_S_PER_READER * len(self._readers), FLUSH_S_MAX)
            self._flush_timer = loop.call_at(max(loop.time(), self._flushed_at + pace), self._flush)
        if self._snapshot_timer is None and self._without_deltas:
            self._snapshot_timer = loop.call_at(max(loop.time(), self._snapshot_at + SNAPSHOT_S), self._send_snapshots)

    def send_transient(self, session_id: str, data: bytes) -> None:
        """Send a transient frame to readers with Deltas: it is not stored and may be dropped."""
        if len(self._readers) > len(self._without_deltas):
            self._push(Frame(None, session_id, "deltas", data))
            self._wake()

    def announce(self, data: bytes) -> None:
        """Send a state of the workspace to all readers, including later ones."""
        self._notice = data
        if self._readers:
            self._push(Frame(None, "", "all", data))
            self._wake()

    def streaming(self, message_id: str) -> Draft | None:
        return self._drafts.get(message_id)

    def close(self) -> None:
        """End all readers after they have received the ring."""
        self.closed = True
        self._flush()
        if self._snapshot_timer is not None:
            self._snapshot_timer.cancel()
        self._wake()

    def _flush(self) -> None:
        """Send the collected Deltas."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if not self._unsent:
            return
        self._flushed_at = asyncio.get_running_loop().time()
        has_delta_readers = len(self._readers) > len(self._without_deltas)
        for draft in self._unsent.values():
            for part, kind, text in draft.take_unsent():
                if has_delta_readers:
                    data = self.encoder.delta(draft.id, part, text, kind)
                    self._push(Frame(None, draft.session_id, "deltas", data))
        self._unsent.clear()
        self._wake()

    def _send_snapshots(self) -> None:
        """Send the complete streaming messages to readers without Deltas."""
        self._snapshot_timer = None
        self._snapshot_at = asyncio.get_running_loop().time()
        now = self._clock.now_ms()
        for draft in self._unsent_snapshots.values():
            # A newer snapshot replaces the older one: the ring holds one per streaming message.
            self._drop_snapshot(draft.id)
            data = self.encoder.snapshot(draft.message(now))
            frame = self._snapshots[draft.id] = Frame(None, draft.session_id, "snapshots", data)
            self._push(frame)
            self._snapshot_at += len(data) / SNAPSHOT_BYTES_PER_S
        self._unsent_snapshots.clear()
        self._wake()

    def _drop_snapshot(self, message_id: str) -> None:
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
        # One more than there were, so that readers at the end notice, too.
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
        """Return a reader from this Position on; 0: from the start; None: from now."""
        floor, head = await self.store.bounds(self.workspace_id)
        gap = b""
        if after is None:
            after = head
        elif after == 0:
            gap = self.encoder.gap("evicted", floor) if floor > self._base else b""
            after = floor
        elif not floor <= after <= head:
            trimmed = self._base <= after < floor
            gap = self.encoder.gap("evicted" if trimmed else "epoch", head)
            after = head
        reader = Reader(self, after, session_id, deltas, gap)
        self._readers.add(reader)
        if not deltas:
            self._without_deltas.add(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        self._readers.discard(reader)
        self._without_deltas.discard(reader)
        self._waiting.pop(reader, None)
        if not self._readers:
            self._left.set()

    async def wait_left(self) -> None:
        """Wait until the last reader of a closed feed has left."""
        if self._readers:
            self._left.clear()
            await self._left.wait()

    def _follow(self, reader: Reader, number: int) -> tuple[bytes, int]:
        """Return the reader's frames from `number` on, joined, and the next number."""
        parts: list[bytes] = []
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
                parts.append(frame.data)
                size += len(frame.data)
        return b"".join(parts), number

    def _join(self, reader: Reader) -> tuple[bytes, int]:
        """Return the durable frames that the reader lacks, then each streaming message complete.

        From then on the reader follows the ring. The ring must hold all that the reader lacks, with no Deltas left to
        flush: those would push it out."""
        parts: list[bytes] = []
        for frame in self._frames:
            if frame.position is not None and frame.position > reader.position:
                reader.position = frame.position
                if reader.session_id in (None, frame.session_id):
                    parts.append(frame.data)
        now = self._clock.now_ms()
        for draft in self._drafts.values():
            draft.take_unsent()  # collected without readers; the snapshot has it
            # An empty one, too: a client that has read the message elsewhere may now add the Deltas that follow.
            if reader.session_id in (None, draft.session_id):
                parts.append(self.encoder.snapshot(draft.message(now)))
        return b"".join([*parts, self._notice]), self.end

    async def encode_entry(self, entry: LogEntry) -> bytes:
        """Return a log entry as a frame, with its record as it is now."""
        named = self.encoder.record_of(entry.event)
        record = await self._record(*named) if named else None
        records: Records = {named[0]: {named[1]: record}} if named and record else {}
        return self.encoder.encode(entry.position, entry.session_id, entry.event, records)

    async def _record(self, kind: RecordKind, record_id: str) -> Record | None:
        match kind:
            case "session":
                session = await self.store.session(self.workspace_id, record_id)
                return self.view(session) if session else None
            case "run":
                return await self.store.run(self.workspace_id, record_id)
            case "message":
                return await self.store.message(self.workspace_id, record_id)
            case "ask":
                return await self.store.ask(self.workspace_id, record_id)


class Reader:
    """The position of one client in the feed."""

    def __init__(self, feed: Feed, position: int, session_id: str | None, deltas: bool, gap: bytes) -> None:
        self.feed = feed
        self.position = position
        self.session_id = session_id
        self.deltas = deltas
        self._gap = gap
        #: Pending Asks, for a client that connected after they were put.
        self.pending = b""
        #: The number of the next frame in the ring; None while reading the log.
        self._next: int | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def take_gap(self) -> bytes:
        """Return the gap frame, if this reader could not resume. It comes first."""
        gap, self._gap = self._gap, b""
        return gap

    async def read(self, wait_s: float) -> bytes | None:
        """Return the next frames, joined; empty if none came in time; None at the end of the feed.

        Must not be cancelled: frames taken from the log but not returned would be lost to this reader."""
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
                self._timer = loop.call_at(deadline, self._check_deadline)
            await self._waiter
        return None

    def _check_deadline(self) -> None:
        """Wake at the deadline of the latest read.

        Most reads end long before theirs, and a timer per read would cost more than the frames: this one is set again
        when it fires."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._check_deadline)
        else:
            self._timer = None
            self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Detach a client that is gone: `read` returns None soon."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.feed.leave(self)
        self.wake()

    async def _catch_up(self) -> bytes:
        """Return a page of the log, or join the ring once it has everything that follows."""
        feed = self.feed
        if self.position >= feed._floor:
            feed._flush()
        if self.position >= feed._floor:  # checked again: the flush may have evicted what this reader lacks
            data, self._next = feed._join(self)
            return data
        parts: list[bytes] = []
        size = 0
        entries = await feed.store.read(feed.workspace_id, self.position, PAGE_ENTRIES_MAX)
        if entries and entries[0].position > self.position + 1:  # trimmed meanwhile, up to this entry
            self.position = entries[0].position - 1
            return feed.encoder.gap("evicted", self.position)
        for entry in entries:
            if self.session_id in (None, entry.session_id):
                data = await feed.encode_entry(entry)
                parts.append(data)
                size += len(data)
            self.position = entry.position
            if size >= READ_BYTES_MAX:
                break
        if not entries:  # trimmed meanwhile
            self.position = feed._floor
            return feed.encoder.gap("evicted", self.position)
        return b"".join(parts)
