"""The feed: the events of one workspace, delivered to any number of readers.

Theory of operation
===================

All readers share one ring of frames, encoded once. A reader is an index into the ring and the Position it has reached;
reading joins the frames from there on. The publisher never waits and keeps no queue per reader. A reader that is too
slow finds that the ring has moved on; it then reads the log from the store, from its own Position, until it meets the
ring again. So durable events are never dropped, and another reader costs one more write.

A read returns a slice of at most READ_BYTES_MAX, and the server makes the next one only when the socket has taken the
last. In between a reader holds references to frames that all readers share: those of the ring, the blocks of a
streaming message (see `draft.py`), or a large entry of the log. A stuck reader costs its slice, not the frame.

Deltas have no Position and are not in the log. A reader that joins the ring first receives each streaming message
complete, and its Deltas from then on. The join is one moment: the references to all snapshots and the index of the next
frame are taken together, so that exactly the Deltas that follow these versions are the frames from that index on,
however long the reader takes for the slices. If the ring has moved beyond the index by then, the reader is treated like
any other one that is too slow: it reads the log and joins again, with newer snapshots, which replace the older ones at
the client. It never receives a Delta of another version.

Between two flushes the Deltas of a message are merged into one frame: the first is sent at once, later ones at an
imperceptible delay. Readers without Deltas receive the complete message instead, the less often the longer it is: the
ring has a mark, at which each reader takes the newest version.

Publishing out of order, or a hole after an append with an unknown result, is not an error: the ring is emptied and all
readers read the log, which is always in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Literal
from weakref import WeakValueDictionary

from kedge.core.records import WorkspaceRecord
from kedge.engine.draft import Draft
from kedge.engine.log_frames import LogFrames, SessionViews
from kedge.engine.ports import Clock, Encoder
from kedge.store.base import Store

#: Frames kept for readers that lag: seconds of a busy stream. A single larger frame is also kept. Bytes.
RING_BYTES_MAX = 1024 * 1024
#: The cost of a frame beside its data, so that empty frames are evicted, too. Bytes.
FRAME_BYTES = 200
#: The result of one read: the memory that a reader holds while its socket is full. 2,000 stuck readers hold 64 MB, and
#: a larger write would not be faster. Bytes.
READ_BYTES_MAX = 32 * 1024
#: Entries that a lagging reader fetches from the log at once. Items.
PAGE_ENTRIES_MAX = 100
#: Readers that fetch from the log at the same time: each may hold a record of 10 MB until it is encoded. Items.
LOG_READERS_MAX = 4
#: The interval of Deltas: imperceptible, and one write per reader each. More readers, fewer writes. Seconds.
FLUSH_S, FLUSH_S_PER_READER, FLUSH_S_MAX = 0.010, 0.0005, 0.060
#: The shortest interval of complete streaming messages, for readers without Deltas: short ones appear live. Seconds.
SNAPSHOT_S = 1 / 30
#: The rate of one streaming message for one such reader, once it is longer than 33 kB. Bytes per second.
SNAPSHOT_BYTES_PER_S = 1_000_000

Audience = Literal["all", "deltas", "snapshots"]
#: A frame or a part of it. A memoryview is shared by readers.
Piece = bytes | memoryview


@dataclass(slots=True)
class Frame:
    position: int | None
    #: Empty: for the readers of every session.
    session_id: str
    audience: Audience
    data: bytes
    #: For readers without Deltas: they take the message in its newest version.
    draft: Draft | None = None
    #: Set: the frame marks where this reader receives its next mark, see `Feed.mark`.
    marked: Reader | None = None


class Feed:
    def __init__(
        self, workspace: WorkspaceRecord, head: int, store: Store, encoder: Encoder, clock: Clock, views: SessionViews
    ) -> None:
        self.workspace_id = workspace.id
        self._base = workspace.base
        self.log = LogFrames(workspace.id, store, encoder, views)
        self.encoder = encoder
        self.closed = False
        self.ring_bytes_max = RING_BYTES_MAX
        self.read_bytes_max = READ_BYTES_MAX
        self.flush_s = FLUSH_S
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
        #: The newest mark of each streaming message in the ring, and the time from which on the next may be sent.
        self._snapshots: dict[str, Frame] = {}
        self._snapshots_due: dict[str, float] = {}
        self._flush_timer: asyncio.TimerHandle | None = None
        self._snapshot_timer: asyncio.TimerHandle | None = None
        self._snapshots_at = 0.0
        self._flush_at = self._flushed_at = float("-inf")
        self._readers: set[Reader] = set()
        self._left = asyncio.Event()
        #: The current state of the workspace that is in no log: sent to each reader that joins the ring.
        self._notice = b""
        self._without_deltas: set[Reader] = set()  # these receive complete messages instead
        self._waiting: dict[Reader, None] = {}  # an ordered set
        #: The large frames that readers hold.
        self._shared: WeakValueDictionary[int | str, memoryview] = WeakValueDictionary()
        self._log_readers = asyncio.Semaphore(LOG_READERS_MAX)

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

    def rejoin(self) -> None:
        """Send each streaming message in full to all readers: later Deltas may not fit the text that they have."""
        self._empty_ring(self._head)
        self._wake()

    def stream(self, draft: Draft) -> None:
        self._drafts[draft.id] = draft

    def stream_ended(self, draft: Draft) -> None:
        """End a stream: the durable frame with the complete message follows at once."""
        for register in (self._drafts, self._unsent, self._unsent_snapshots, self._snapshots, self._snapshots_due):
            register.pop(draft.id, None)

    def text_added(self, draft: Draft) -> None:
        """Schedule the new text of a draft."""
        if not self._readers or draft.id not in self._drafts:
            return
        self._unsent[draft.id] = self._unsent_snapshots[draft.id] = draft
        loop = asyncio.get_running_loop()
        if self._flush_timer is None:
            pace = min(self.flush_s + FLUSH_S_PER_READER * len(self._readers), FLUSH_S_MAX)
            self._flush_at = max(loop.time(), self._flushed_at + pace)
            self._flush_timer = loop.call_at(self._flush_at, self._flush)
        if self._without_deltas:
            self._schedule_snapshots(self._snapshots_due.get(draft.id, 0.0))

    def send_transient(self, session_id: str, data: bytes) -> None:
        """Send a transient frame to readers with Deltas: it is not stored and may be dropped."""
        if len(self._readers) > len(self._without_deltas):
            self._push(Frame(None, session_id, "deltas", data))
            self._wake()

    def announce(self, data: bytes, *, to_later: bool = True) -> None:
        """Send a state of the workspace to all readers; `to_later`: including later ones."""
        self._notice = data if to_later else self._notice
        if self._readers:
            self._push(Frame(None, "", "all", data))
            self._wake()

    def mark(self, reader: Reader, data: bytes) -> None:
        """Send `data` to one reader, after everything that was added before, including unsent text."""
        self._flush()
        reader.marks.append(data)
        self._push(Frame(None, "", "all", b"", marked=reader))
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

    def _schedule_snapshots(self, due: float) -> None:
        if self._snapshot_timer is not None:
            if self._snapshots_at <= due:
                return
            self._snapshot_timer.cancel()
        self._snapshots_at = due
        self._snapshot_timer = asyncio.get_running_loop().call_at(due, self._send_snapshots)

    def _send_snapshots(self) -> None:
        """Send the streaming messages that are due to readers without Deltas."""
        self._snapshot_timer = None
        now = asyncio.get_running_loop().time()
        for draft in list(self._unsent_snapshots.values()):
            if self._snapshots_due.get(draft.id, 0.0) > now:
                continue
            del self._unsent_snapshots[draft.id]
            mark = self._snapshots[draft.id] = Frame(None, draft.session_id, "snapshots", b"", draft)
            self._push(mark)
            size = sum(map(len, self._snapshot(draft)))
            self._snapshots_due[draft.id] = now + max(SNAPSHOT_S, size / SNAPSHOT_BYTES_PER_S)
        if self._unsent_snapshots:
            self._schedule_snapshots(min(self._snapshots_due[message_id] for message_id in self._unsent_snapshots))
        self._wake()

    def _snapshot(self, draft: Draft) -> tuple[bytes, ...]:
        return draft.snapshot(self.encoder, self._clock.now_ms())

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
        floor, head = await self.log.bounds()
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

    def _follow(self, reader: Reader, number: int) -> int:
        """Give the reader its frames from `number` on, up to a slice, and return the next number."""
        size = 0
        mode = "deltas" if reader.deltas else "snapshots"
        for frame in self._frames[number - self._first :]:
            if size >= self.read_bytes_max:
                break
            number += 1
            if frame.position is not None:
                if frame.position <= reader.position:
                    continue
                reader.position = frame.position
            if frame.marked is not None:
                size += reader.hold(reader.marks.popleft()) if frame.marked is reader and reader.marks else 0
            elif frame.audience in ("all", mode) and reader.session_id in (None, frame.session_id or reader.session_id):
                if frame.draft is None:
                    size += reader.hold(frame.data)
                elif self._snapshots.get(frame.draft.id) is frame:
                    size += reader.hold(*self._snapshot(frame.draft))
        return number

    def _join(self, reader: Reader) -> int | None:
        """Give the reader the durable frames that it lacks, up to a slice; then each streaming message complete.

        Return the number of the next frame: from then on the reader follows the ring. None if it lacks more durable
        frames. The ring must hold all that the reader lacks, with no Deltas left to flush: those would push it out."""
        size = 0
        for frame in self._frames:
            if frame.position is not None and frame.position > reader.position:
                if size >= self.read_bytes_max:
                    return None
                reader.position = frame.position
                if reader.session_id in (None, frame.session_id):
                    size += reader.hold(frame.data)
        for draft in self._drafts.values():
            draft.take_unsent()  # collected without readers; the snapshot has it
            # An empty one, too: a client that has read the message elsewhere may now add the Deltas that follow.
            if reader.session_id in (None, draft.session_id):
                reader.hold(*self._snapshot(draft))
        reader.hold(self._notice, *reader.marks)
        reader.marks.clear()
        return self.end

    def shared(self, key: int | str, data: bytes) -> Piece:
        """Return the same object for equal frames: a large one is in memory once, however many readers hold it."""
        if len(data) <= self.read_bytes_max:
            return data
        held = self._shared.get(key)
        if held is None or held.obj != data:
            held = self._shared[key] = memoryview(data)
        return held


class Reader:
    """The position of one client in the feed."""

    def __init__(self, feed: Feed, position: int, session_id: str | None, deltas: bool, gap: bytes) -> None:
        self.feed = feed
        self.position = position
        self.session_id = session_id
        self.deltas = deltas
        self._gap = gap
        #: See `Feed.mark`.
        self.marks: deque[bytes] = deque()
        #: The content of the next slices, shared with other readers; of the first piece, from the offset on.
        self._pieces: deque[Piece] = deque()
        self._offset = 0
        self._page_entries = PAGE_ENTRIES_MAX
        #: The number of the next frame in the ring; None while reading the log.
        self._next: int | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def take_gap(self) -> bytes:
        """Return the gap frame, if this reader could not resume."""
        gap, self._gap = self._gap, b""
        return gap

    async def read(self, wait_s: float) -> bytes | None:
        """Return the next slice of frames; empty if none came in time; None at the end of the feed."""
        feed = self.feed
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        if self._pieces:
            await asyncio.sleep(0)  # a socket can take megabytes at once: other tasks run between two slices
        while not self._closed:
            if self._pieces:
                return self._slice()
            if self._next is not None and self._next < feed._first:
                self._next = None  # too slow for the ring
            if self._next is None:
                await self._catch_up()
            else:
                self._next = feed._follow(self, self._next)
            if self._pieces or self._next != feed.end:
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

    def hold(self, *pieces: Piece) -> int:
        """Add frames to the next slices, and return their size."""
        self._pieces.extend(piece for piece in pieces if piece)
        return sum(map(len, pieces))

    def _slice(self) -> bytes:
        parts: list[Piece] = []
        room = self.feed.read_bytes_max
        while self._pieces and room:
            piece = self._pieces[0]
            part = piece[self._offset : self._offset + room]
            room -= len(part)
            parts.append(part)
            self._offset += len(part)
            if self._offset == len(piece):
                self._pieces.popleft()
                self._offset = 0
        return b"".join(parts)

    async def _catch_up(self) -> None:
        """Take a slice of the log, or join the ring once it has everything that follows."""
        feed = self.feed
        if self.position >= feed._floor:
            feed._flush()
        if self.position >= feed._floor:  # checked again: the flush may have evicted what this reader lacks
            self._next = feed._join(self)
            return
        async with feed._log_readers:
            await self._read_log()

    async def _read_log(self) -> None:
        feed = self.feed
        size = used = 0
        entries = await feed.log.entries(self.position, self._page_entries)
        if not entries or entries[0].position > self.position + 1:  # trimmed meanwhile
            self.position = entries[0].position - 1 if entries else feed._floor
            self.hold(feed.encoder.gap("evicted", self.position))
            return
        for entry in entries:
            if size >= feed.read_bytes_max:
                break
            if self.session_id in (None, entry.session_id):
                size += self.hold(feed.shared(entry.position, await feed.log.encode(entry)))
            self.position = entry.position
            used += 1
        # Entries that do not fit into a slice are read again: the next page has as many as this slice.
        self._page_entries = used if used < len(entries) else min(2 * used + 1, PAGE_ENTRIES_MAX)
