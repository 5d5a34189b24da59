"""A store whose writes fail before the commit, or after it, when the caller cannot tell which."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from kedge.core.events import RunEnded, SessionRewound
from kedge.core.modes import Mode
from kedge.core.records import WorkspaceRecord
from kedge.core.transcript import Message
from kedge.errors import StoreUnavailable
from kedge.store import codec
from kedge.store.base import Write
from kedge.store.memory import MemoryData, MemoryStore
from kedge.store.memory_leases import MemoryLeases

#: The longest a write takes. Seconds.
WRITE_S = 0.02
#: The longest a write takes while the disk hangs. Seconds.
SLOW_WRITE_S = 4.0


class Faults:
    """The faults of the store. They outlive the server processes."""

    def __init__(self, rng: random.Random, counts: Counter[str]) -> None:
        self.rng = rng
        #: Probabilities that a write or a read fails.
        self.before_rate = self.after_rate = self.read_rate = 0.0
        #: Every operation fails until this time of the loop.
        self.down_until = 0.0
        #: Writes fail until this time of the loop, and reads do not: the disk is full.
        self.full_until = 0.0
        #: Writes take seconds until this time of the loop.
        self.slow_until = 0.0
        #: The write with this number fails, before or after its commit; 0: none.
        self.nth, self.nth_after = 0, False
        self.writes = 0
        self.counts = counts
        #: The broken promises; and the tool processes that are alive.
        self.broken: list[str] = []
        self.alive: Callable[[], list[str]] = list
        #: When each Position was written.
        self.appended_at: dict[int, float] = {}
        #: The modes of each session, with the times at which they were written.
        self.modes: dict[str, list[tuple[float, Mode]]] = {}
        #: The messages that rewinds removed.
        self.cut: dict[str, Message] = {}

    def stop(self) -> None:
        self.before_rate = self.after_rate = self.read_rate = self.down_until = 0.0
        self.full_until = self.slow_until = 0.0
        self.nth = 0

    def check_read(self) -> None:
        self._check_down()
        if self.read_rate and self.rng.random() < self.read_rate:
            self._fail("store read error")

    def check_before(self) -> int:
        """Return the number of this write, for `check_after`: other writes may come in between."""
        self.writes += 1
        number = self.writes
        self._check_down()
        if asyncio.get_running_loop().time() < self.full_until:
            self._fail("store full")
        if number == self.nth and not self.nth_after:
            self._fail("store error before the commit")
        if self.before_rate and self.rng.random() < self.before_rate:
            self._fail("store error before the commit")
        return number

    def check_after(self, number: int) -> None:
        if number == self.nth and self.nth_after:
            self._fail("store error after the commit")
        if self.after_rate and self.rng.random() < self.after_rate:
            self._fail("store error after the commit")

    def _check_down(self) -> None:
        if asyncio.get_running_loop().time() < self.down_until:
            self._fail("store out of reach")

    def _fail(self, what: str) -> None:
        self.counts[what] += 1
        raise StoreUnavailable(what)


class FaultyStore(MemoryStore):
    def __init__(self, data: MemoryData, faults: Faults, leases: MemoryLeases | None = None) -> None:
        super().__init__(data, leases)
        self._faults = faults

    async def open(self) -> None:
        await self._reach()
        await super().open()

    async def append(self, write: Write) -> int:
        faults = self._faults
        if asyncio.get_running_loop().time() < faults.slow_until:
            faults.counts["slow write"] += 1
            await asyncio.sleep(faults.rng.random() * SLOW_WRITE_S)
        number, head = await self._send(write)
        self._check_write(write)
        faults.check_after(number)
        return head

    async def _send(self, write: Write) -> tuple[int, int]:
        """Return the number of the write, and the new head of the log."""
        await asyncio.sleep(self._faults.rng.random() ** 3 * WRITE_S)
        return self._faults.check_before(), await super().append(write)

    async def _reach(self) -> None:
        """Fail or wait if the store does not answer this server."""
        self._faults.check_read()

    def _append(self, write: Write) -> int:
        # In the call that writes: a server that is killed next has still written it (seed 599178).
        cut = self._cut_messages(write)
        head = super()._append(write)
        self._faults.cut |= cut
        now = asyncio.get_running_loop().time()
        self._faults.appended_at.update((head - index, now) for index in range(len(write.events)))
        for session in write.sessions:
            self._faults.modes.setdefault(session.id, []).append((now, session.mode))
        return head

    def _cut_messages(self, write: Write) -> dict[str, Message]:
        """Return the messages that a rewind is about to remove. The fork must have all messages of the session."""
        cut: dict[str, Message] = {}
        forks = [event.fork_session_id for _, event in write.events if isinstance(event, SessionRewound)]
        for (session_id, message_id), fork_id in zip(write.cuts, forks, strict=True):
            messages, copies = (
                [codec.merged(one.message, one.tails) for one in self.data.transcripts.get(owner, {}).values()]
                for owner in (session_id, fork_id)
            )
            if [_content(message) for message in messages] != [_content(message) for message in copies]:
                self._faults.broken.append(f"{session_id} is rewound, and its fork {fork_id} lacks messages")
            if any(run.session_id == session_id for run in self.data.live.values()):
                self._faults.broken.append(f"{session_id} is rewound while it has live Runs")
            first = [message.id for message in messages].index(message_id)
            cut |= {message.id: message for message in messages[first:]}
        return cut

    def _check_write(self, write: Write) -> None:
        if write.events and not write.durable:
            self._faults.broken.append(f"a power cut would undo published events: {write.events}")
        is_idle = not self.data.live and any(isinstance(event, RunEnded) for _, event in write.events)
        if is_idle and (alive := self._faults.alive()):
            self._faults.broken.append(f"the last Run has ended, and {', '.join(alive)} still runs")

    async def workspace(self, path: str, new: WorkspaceRecord) -> WorkspaceRecord:
        if any(log.record.path == path for log in self.data.logs.values()):
            self._faults.check_read()
            return await super().workspace(path, new)
        number = self._faults.check_before()
        record = await super().workspace(path, new)
        self._faults.check_after(number)
        return record

    async def trim(self, workspace_id: str, keep: int) -> None:
        number = self._faults.check_before()
        await super().trim(workspace_id, keep)
        self._faults.check_after(number)

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if name not in _READS:
            return attribute

        async def read(*args: Any, **options: Any) -> Any:
            await self._reach()
            return await attribute(*args, **options)

        return read


def _content(message: Message) -> tuple[object, ...]:
    return message.role, message.parts, message.run_id, message.created_at


#: The reads of a store: each may fail.
_READS = frozenset(
    {"read", "bounds", "workspaces", "sessions", "session", "lane", "run", "runs", "live_runs", "messages"}
    | {"last_messages", "message", "message_runs", "search", "asks", "session_asks", "ask", "grants", "file_versions"}
    | {"file_version", "original", "live_workspaces"}
)
