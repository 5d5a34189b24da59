"""The in-memory state of one session: its Lane, its records, and the tasks that wait for them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from kedge.core.approvals import Ask
from kedge.core.commands import Cancel, CancelRun
from kedge.core.kept_commands import KeptCommand, kept_now
from kedge.core.lane import Lane
from kedge.core.records import RunRecord, SessionRecord
from kedge.engine.feed import Feed


@dataclass(slots=True)
class PendingCancel:
    """A cancel that the store has not taken yet. It is decided first in each later append to its Lane."""

    command: Cancel | CancelRun
    #: The mark of a cancel of the whole session, from the last append that included it; 0: no append did. That append
    #: may be stored, with Runs that were accepted after the cancel: the mark must not cover those.
    mark: int = 0


@dataclass(slots=True, weakref_slot=True)
class LaneState:
    """The Lane of a session as this process has it. Only the door changes it."""

    session: SessionRecord
    feed: Feed
    #: False: its Runs have no tasks, see `Workspace.has_directory`.
    has_directory: bool = True
    lane: Lane = field(default_factory=Lane)
    #: Live Runs.
    runs: dict[str, RunRecord] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Futures for the ends of live Runs.
    ended: dict[str, asyncio.Future[RunRecord]] = field(default_factory=dict)
    #: Tokens of the last request, as its provider counted them; 0: not known since the process started.
    context_tokens: int = 0
    #: Pending Asks of the active Run, and futures for their answers.
    asks: dict[str, Ask] = field(default_factory=dict)
    settled: dict[str, asyncio.Future[Ask]] = field(default_factory=dict)
    #: The kept commands of this process.
    own_kept: dict[str, KeptCommand] = field(default_factory=dict)
    #: Reload before the next decision: not loaded yet, or an append failed and may or may not have happened.
    stale: bool = True
    loaded: bool = False
    #: Cancels that are not written yet, and the task of the door that reloads this state and writes them.
    pending_cancels: list[PendingCancel] = field(default_factory=list)
    catching_up: asyncio.Task[None] | None = None
    #: Deletions in progress: meanwhile no prompt is accepted. A deleted session is never written again.
    deleting: int = 0
    deleted: bool = False

    @property
    def is_busy(self) -> bool:
        return self.lane.active is not None

    @property
    def queued_bytes(self) -> int:
        """Text and attachments of its queued prompts."""
        return sum(run.prompt.size for run in self.runs.values() if run.state == "queued")

    @property
    def is_idle(self) -> bool:
        """True if the store has everything that is here, so that this state can be evicted."""
        return not (self.runs or self.asks or self.ended or self.settled or self.has_kept or self.is_uncertain)

    @property
    def is_uncertain(self) -> bool:
        """True if an append may or may not have happened, or a cancel is not written yet."""
        return (self.loaded and self.stale) or bool(self.pending_cancels)

    @property
    def kept_commands(self) -> tuple[KeptCommand, ...]:
        return kept_now(self.session.kept_commands, self.own_kept)

    @property
    def has_kept(self) -> bool:
        """True if a kept command is running."""
        return any(entry.is_running for entry in self.own_kept.values())

    def end_of(self, run_id: str) -> asyncio.Future[RunRecord]:
        """Return a future for the end of a live Run."""
        return self.ended.setdefault(run_id, asyncio.get_running_loop().create_future())

    def end_of_ask(self, ask_id: str) -> asyncio.Future[Ask]:
        """Return a future for the answer to, or the withdrawal of, a pending Ask."""
        return self.settled.setdefault(ask_id, asyncio.get_running_loop().create_future())
