"""The oracle: an independent model of the Lane's promises.

It receives the commands and the resulting events, and keeps its own state without reading the Lane. The Lane compares
numbers to find the Runs that a cancel covers; the oracle stores the ids of the Runs that were live at that time. Two
independent ways to the same answer check each other.

    oracle.refusal(command)         the error that the Lane must raise, or None
    oracle.read(command, events)    the next state of the oracle; AssertionError with the promise that was broken
    oracle.compare(lane)            AssertionError unless the Lane has the same state
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NoReturn, assert_never

from kedge.core.commands import (
    BeginStep,
    Cancel,
    CancelRun,
    ClearQueue,
    Command,
    EditRun,
    Finish,
    FoldRun,
    MoveRun,
    Recover,
    Submit,
)
from kedge.core.events import (
    CancelMarked,
    FoldMarked,
    LaneEvent,
    RunAccepted,
    RunCancelMarked,
    RunEdited,
    RunEnded,
    RunFolded,
    RunMoved,
    RunResumed,
    RunStarted,
    StepStarted,
)
from kedge.core.lane import Lane, RunState
from kedge.errors import (
    KedgeError,
    LaneBusy,
    QueueFull,
    RunIdReused,
    RunIsFolded,
    RunIsStopping,
    RunNotActive,
    RunNotQueued,
)


@dataclass(frozen=True, slots=True)
class Oracle:
    #: The id, seq and content of every accepted Run, in order.
    accepted: tuple[tuple[str, int, str], ...] = ()
    #: The queued Runs in order, and those of them that wait to fold into the active Run.
    queue: tuple[str, ...] = ()
    folding: frozenset[str] = frozenset()
    active: str | None = None
    #: The Runs folded into the active Run, in order.
    folded: tuple[str, ...] = ()
    #: The live Runs of a named author, with the name.
    authors: frozenset[tuple[str, str]] = frozenset()
    #: Live Runs covered by a cancel: by id, never by number.
    covered: frozenset[str] = frozenset()
    #: The latest mark.
    mark: int = 0
    steps: int = 0
    resumes: int = 0

    @property
    def live(self) -> tuple[str, ...]:
        return ((self.active,) if self.active is not None else ()) + self.folded + self.queue

    @property
    def ended(self) -> list[str]:
        live = self.live
        return [run_id for run_id, _, _ in self.accepted if run_id not in live]

    @property
    def last_seq(self) -> int:
        return self.accepted[-1][1] if self.accepted else 0

    def content_of(self, run_id: str) -> str | None:
        """Return the content of this run_id, as the engine finds it in its records."""
        return next((content for known, _, content in self.accepted if known == run_id), None)

    def author_of(self, run_id: str) -> str:
        return dict(self.authors).get(run_id, "")

    def rounds(self) -> list[int]:
        """Return the number of queued Runs of the same author up to each queued Run."""
        authors = [self.author_of(run_id) for run_id in self.queue]
        return [authors[:number].count(author) for number, author in enumerate(authors, 1)]

    def queued_of(self, author: str) -> int:
        return sum(self.author_of(run_id) == author for run_id in self.queue)

    def states(self) -> dict[str, RunState]:
        """Return the state of each live Run."""
        states: dict[str, RunState] = {}
        if self.active is not None:
            states[self.active] = "stopping" if self.active in self.covered else "active"
        states.update(dict.fromkeys(self.folded, "folded"))
        states.update((run_id, "waiting to fold" if run_id in self.folding else "queued") for run_id in self.queue)
        return states

    def covered_by(self, command: Cancel | CancelRun | ClearQueue) -> frozenset[str]:
        """Return the Runs that this command covers."""
        match command:
            case Cancel():
                return frozenset(self.live)
            case CancelRun(run_id=run_id):
                if run_id == self.active:
                    return frozenset((run_id, *self.folded))
                return frozenset((run_id,)) if run_id in self.queue else frozenset()
            case ClearQueue():
                return frozenset(self.queue)
            case _:
                assert_never(command)

    def refusal(self, command: Command) -> type[KedgeError] | None:
        match command:
            case Submit():
                return self._refusal_of_submit(command)
            case CancelRun(run_id=run_id):
                return RunIsFolded if run_id in self.folded else None
            case EditRun(run_id=run_id) | FoldRun(run_id=run_id):
                return None if run_id in self.queue else RunNotQueued
            case MoveRun(run_id=run_id, before=before):
                both_queued = run_id in self.queue and (before is None or before in self.queue)
                return None if both_queued else RunNotQueued
            case BeginStep(run_id=run_id):
                if run_id != self.active:
                    return RunNotActive
                return RunIsStopping if run_id in self.covered else None
            case Finish(run_id=run_id):
                return None if run_id == self.active else RunNotActive
            case Cancel() | ClearQueue() | Recover():
                return None
            case _:
                assert_never(command)

    def _refusal_of_submit(self, command: Submit) -> type[KedgeError] | None:
        known = self.content_of(command.run_id)
        if known is not None:
            return None if known == command.content else RunIdReused
        if self.active is None or command.when_busy == "interrupt":
            return None
        if command.when_busy == "reject":
            return LaneBusy
        has_share = not command.author or self.queued_of(command.author) < command.queue_runs_per_user_max
        return None if has_share and len(self.queue) < command.queue_runs_max else QueueFull

    def read(self, command: Command, events: tuple[LaneEvent, ...]) -> Oracle:
        reader = _Reader(self, command)
        for event in events:
            reader.read(event)
        after = reader.after
        if after.folded and after.active is None:
            _broken(f"{', '.join(after.folded)} did not end with the Run it was folded into")
        if after.queue and after.active is None:
            _broken(f"the Lane is idle while {', '.join(after.queue)} waits")
        for run_id in after.queue:
            if run_id in after.covered:
                _broken(f"{run_id} is covered by a cancel and still queued")
        _Promise(self, after, events).check(command)
        authors = frozenset(pair for pair in after.authors if pair[0] in after.live)
        return replace(after, covered=after.covered.intersection(after.live), authors=authors)

    def compare(self, lane: Lane) -> None:
        runs = lane.live
        if len({run.run_id for run in runs}) != len(runs):
            _broken(f"a Run is in two places: {', '.join(run.run_id for run in runs)}")
        states = {run.run_id: lane.state_of(run.run_id) for run in runs}
        if states != self.states():
            _broken(f"the Lane has {states}, the oracle {self.states()}")
        if tuple(run.run_id for run in runs) != self.live:
            _broken(f"the Lane has the order {[run.run_id for run in runs]}, the oracle {list(self.live)}")
        seqs = {run_id: seq for run_id, seq, _ in self.accepted}
        for run in runs:
            if run.seq != seqs[run.run_id]:
                _broken(f"{run.run_id} was accepted with seq {seqs[run.run_id]} and now has {run.seq}")
            if run.author != self.author_of(run.run_id):
                _broken(f"{run.run_id} has the author {run.author!r}, not {self.author_of(run.run_id)!r}")
        if lane.next_seq <= self.last_seq:
            _broken(f"the next seq, {lane.next_seq}, was used before")


def _broken(promise: str) -> NoReturn:
    raise AssertionError(promise)


@dataclass(slots=True)
class _Reader:
    """Reads the events of one append, and checks that each is possible at its position."""

    before: Oracle
    command: Command
    after: Oracle = field(init=False)
    #: The end of the active Run, once it has been read.
    host: RunEnded | None = None

    def __post_init__(self) -> None:
        self.after = replace(self.before, covered=self.before.covered | self._covered())

    def _covered(self) -> frozenset[str]:
        match self.command:
            case Cancel() | CancelRun() | ClearQueue():
                return self.before.covered_by(self.command)
            case Submit(run_id=run_id, when_busy="interrupt") if self.before.content_of(run_id) is None:
                return frozenset(self.before.live)
            case _:
                return frozenset()

    def read(self, event: LaneEvent) -> None:
        now = self.after
        match event:
            case RunAccepted():
                self._accepted(event)
            case RunStarted(run_id=run_id):
                if now.active is not None:
                    _broken(f"{run_id} starts while {now.active} is active")
                if now.queue[:1] != (run_id,):
                    _broken(f"{run_id} starts, but is not the first of {list(now.queue)}")
                self.after = replace(now, active=run_id, queue=now.queue[1:], folding=now.folding - {run_id})
            case RunResumed(run_id=run_id):
                self._expect(isinstance(self.command, Recover) and run_id == now.active, event)
                self.after = replace(now, resumes=now.resumes + 1)
            case StepStarted(run_id=run_id, step=step):
                self._expect(isinstance(self.command, BeginStep) and run_id == now.active, event)
                self._expect(step == now.steps + 1 and run_id not in now.covered, event)
                self.after = replace(now, steps=step)
            case RunFolded(run_id=run_id, into=into):
                self._expect(isinstance(self.command, BeginStep) and run_id in now.folding, event)
                self._expect(into == now.active and into not in now.covered, event)
                queue = tuple(waiting for waiting in now.queue if waiting != run_id)
                joined = {*now.folded, run_id}
                folded = tuple(other for other, _, _ in now.accepted if other in joined)
                self.after = replace(now, queue=queue, folding=now.folding - {run_id}, folded=folded)
            case RunEdited(run_id=run_id):
                self._expect(isinstance(self.command, EditRun) and run_id in now.queue, event)
            case RunMoved(run_id=run_id, before=before):
                self._expect(isinstance(self.command, MoveRun) and run_id in now.queue, event)
                self.after = replace(now, queue=moved(now.queue, run_id, before))
            case FoldMarked(run_id=run_id):
                self._expect(isinstance(self.command, FoldRun) and run_id in now.queue, event)
                self.after = replace(now, folding=now.folding | {run_id})
            case CancelMarked(mark=mark, run_id=run_id):
                self._expect(now.active == run_id and run_id in now.covered and mark == now.last_seq, event)
                self.after = replace(now, mark=mark)
            case RunCancelMarked(run_id=run_id):
                self._expect(isinstance(self.command, CancelRun) and run_id == now.active == self.command.run_id, event)
            case RunEnded():
                self._ended(event)
            case _:
                assert_never(event)

    def _accepted(self, event: RunAccepted) -> None:
        now, command, run_id = self.after, self.command, event.run_id
        if not isinstance(command, Submit) or command.run_id != run_id or now.content_of(run_id) is not None:
            _broken(f"{run_id} is accepted without a Submit, or for the second time")
        if event.seq <= now.last_seq:
            _broken(f"{run_id} gets seq {event.seq} after seq {now.last_seq}")
        self._expect(event.folds == (now.active is not None and command.when_busy == "fold"), event)
        self._expect(event.author == command.author and (event.before is None or event.before in now.queue), event)
        self.after = replace(
            now,
            accepted=(*now.accepted, (run_id, event.seq, command.content)),
            queue=moved((*now.queue, run_id), run_id, event.before),
            authors=now.authors | {(run_id, event.author)} if event.author else now.authors,
            folding=now.folding | {run_id} if event.folds else now.folding,
        )

    def _ended(self, event: RunEnded) -> None:
        now, run_id = self.after, event.run_id
        if run_id not in now.live:
            _broken(f"{run_id} ends, but is not live")
        if run_id == now.active:
            self._expect(event.folded_into is None and event.outcome == self._outcome(run_id), event)
            self.host = event
            self.after = replace(now, active=None, folding=frozenset(), steps=0, resumes=0)
        elif run_id in now.folded:
            host = self.host
            if host is None or (event.folded_into, event.outcome) != (host.run_id, host.outcome):
                _broken(f"{run_id} ends with {event.outcome} in {event.folded_into}; the end of its host: {host}")
            self.after = replace(now, folded=tuple(other for other in now.folded if other != run_id))
        else:
            self._expect(event.folded_into is None and event.outcome == "cancelled" and run_id in now.covered, event)
            is_by_hand = isinstance(self.command, ClearQueue) or (
                isinstance(self.command, CancelRun) and not self.command.is_abandoned
            )
            self._expect(event.reason == ("removed" if is_by_hand else "cancelled_in_queue"), event)
            queue = tuple(other for other in now.queue if other != run_id)
            self.after = replace(now, queue=queue, folding=now.folding - {run_id})

    def _outcome(self, run_id: str) -> str:
        if run_id in self.after.covered:
            return "cancelled"
        if isinstance(self.command, Finish):
            return "interrupted" if self.command.outcome == "stopped" else self.command.outcome
        return "interrupted" if isinstance(self.command, Recover) else "must not end"

    def _expect(self, possible: bool, event: LaneEvent) -> None:
        if not possible:
            _broken(f"{event} is not possible here: {self.after.states()}, covered: {sorted(self.after.covered)}")


@dataclass(frozen=True, slots=True)
class _Promise:
    """The effect that a command must have, and the state that it must not change."""

    before: Oracle
    after: Oracle
    events: tuple[LaneEvent, ...]

    def check(self, command: Command) -> None:
        before, after = self.before, self.after
        match command:
            case Submit():
                self._submit(command)
            case Cancel():
                self._require(
                    not after.queue and self._active_unchanged(), "ends all queued Runs and marks the active one"
                )
                if before.active is None or (before.active in before.covered and not before.queue):
                    self._require(not self.events, "has no events if no Run is left to cover")
            case CancelRun(run_id=run_id):
                others = tuple(other for other in before.queue if other != run_id)
                self._require(after.queue == others and self._active_unchanged(), "changes no other Run")
                meant = run_id in before.queue or (run_id == before.active and run_id not in before.covered)
                self._require(len(self.events) == meant, "has one event for its Run, or none")
            case ClearQueue():
                self._require(not after.queue, "empties the queue")
                self._require(self._active_unchanged() and after.mark == before.mark, "does not change the active Run")
            case EditRun():
                self._require(after == before and len(self.events) == 1, "has one event and no other effect")
            case MoveRun(run_id=run_id, before=other):
                expected = replace(before, queue=moved(before.queue, run_id, other))
                self._require(after == expected, "changes only the order of the queue")
            case FoldRun(run_id=run_id):
                expected = replace(before, folding=before.folding | {run_id})
                self._require(after == expected, "makes only this Run wait to fold")
                self._require(
                    len(self.events) == (run_id not in before.folding),
                    "has one event, or none if the Run waits to fold already",
                )
            case BeginStep(folds=folds):
                joined = before.folding if folds else frozenset[str]()
                self._require(set(after.folded) == {*before.folded, *joined}, "folds all Runs that wait to fold")
                self._require(after.steps == before.steps + 1, "starts one Step")
            case Finish():
                self._next_started()
            case Recover():
                self._recover(command)
            case _:
                assert_never(command)

    def _submit(self, command: Submit) -> None:
        before, after, run_id = self.before, self.after, command.run_id
        if before.content_of(run_id) is not None:
            self._require(not self.events, "has no events if it is repeated")
        elif before.active is None:
            self._require(after.active == run_id and not after.queue, "starts immediately on an idle Lane")
        elif command.when_busy == "interrupt":
            is_next = after.queue == (run_id,) and self._active_unchanged()
            self._require(is_next, "is the only queued Run")
        else:
            self._require(after.queue == self._in_round(command) and self._active_unchanged(), "is queued in its round")

    def _in_round(self, command: Submit) -> tuple[str, ...]:
        """Return the queue with the new Run as far ahead as it overtakes only later rounds."""
        queue, rounds = self.before.queue, self.before.rounds()
        index = len(queue)
        while index and rounds[index - 1] > self.before.queued_of(command.author) + 1:
            index -= 1
        return (*queue[:index], command.run_id, *queue[index:])

    def _recover(self, command: Recover) -> None:
        before, after = self.before, self.after
        may_resume = before.steps == 0 or command.on_crash == "resume"
        if before.active is None:
            self._require(not self.events, "has no events on an idle Lane")
        elif may_resume and before.resumes < command.resumes_max and before.active not in before.covered:
            self._require(after == replace(before, resumes=before.resumes + 1), "only resumes the active Run")
        else:
            self._next_started()

    def _next_started(self) -> None:
        before, after = self.before, self.after
        next_started = (after.active,) == (before.queue[:1] or (None,)) and after.queue == before.queue[1:]
        self._require(next_started, "ends the active Run, starts the first queued one and changes no other")

    def _active_unchanged(self) -> bool:
        return (self.after.active, self.after.folded) == (self.before.active, self.before.folded)

    def _require(self, holds: bool, promise: str) -> None:
        if not holds:
            _broken(f"broken promise: it {promise}. Before: {self.before.states()}, after: {self.after.states()}")


def moved(queue: tuple[str, ...], run_id: str, before: str | None) -> tuple[str, ...]:
    """Return the queue with `run_id` moved before another Run, or to the end."""
    if before == run_id:
        return queue
    rest = [other for other in queue if other != run_id]
    rest.insert(rest.index(before) if before is not None else len(rest), run_id)
    return tuple(rest)
