"""The oracle: what anyone who watches a Lane from outside may hold it to.

It sees the commands that go in and the events that come out, keeps its own simple books and never asks the Lane. Where
the Lane compares numbers to know what a cancel covers, the oracle writes down the names of the Runs that were there
when the cancel came. Two ways to the same answer: that is the point.

    oracle.refusal(command)         the error the Lane has to raise; None if it has to decide
    oracle.read(command, events)    the books afterwards, or AssertionError naming the promise that was broken
    oracle.compare(lane)            AssertionError unless the Lane says the same as the books
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
    #: Every Run ever accepted, in that order: its id, seq and content.
    accepted: tuple[tuple[str, int, str], ...] = ()
    #: Who waits for a start, in order; and who of them would rather fold into the active Run.
    line: tuple[str, ...] = ()
    steering: frozenset[str] = frozenset()
    active: str | None = None
    #: Who has folded into the active Run, in order.
    inside: tuple[str, ...] = ()
    #: Live Runs that a cancel was meant for: by name, never by number.
    told: frozenset[str] = frozenset()
    #: The latest mark read.
    mark: int = 0
    steps: int = 0
    resumes: int = 0

    @property
    def live(self) -> tuple[str, ...]:
        return ((self.active,) if self.active is not None else ()) + self.inside + self.line

    @property
    def ended(self) -> list[str]:
        live = self.live
        return [run_id for run_id, _, _ in self.accepted if run_id not in live]

    @property
    def last_seq(self) -> int:
        return self.accepted[-1][1] if self.accepted else 0

    def content_of(self, run_id: str) -> str | None:
        """What the engine finds in its records under this run_id."""
        return next((content for known, _, content in self.accepted if known == run_id), None)

    def states(self) -> dict[str, RunState]:
        """The state of each live Run."""
        states: dict[str, RunState] = {}
        if self.active is not None:
            states[self.active] = "stopping" if self.active in self.told else "active"
        states.update(dict.fromkeys(self.inside, "folded"))
        states.update((run_id, "waiting to fold" if run_id in self.steering else "queued") for run_id in self.line)
        return states

    def covered(self, command: Cancel | CancelRun | ClearQueue) -> frozenset[str]:
        """Whom this command means to stop."""
        match command:
            case Cancel():
                return frozenset(self.live)
            case CancelRun(run_id=run_id):
                if run_id == self.active:
                    return frozenset((run_id, *self.inside))
                return frozenset((run_id,)) if run_id in self.line else frozenset()
            case ClearQueue():
                return frozenset(self.line)
            case _:
                assert_never(command)

    def refusal(self, command: Command) -> type[KedgeError] | None:
        match command:
            case Submit():
                return self._refusal_of_submit(command)
            case CancelRun(run_id=run_id):
                return RunIsFolded if run_id in self.inside else None
            case EditRun(run_id=run_id) | FoldRun(run_id=run_id):
                return None if run_id in self.line else RunNotQueued
            case MoveRun(run_id=run_id, before=before):
                both_wait = run_id in self.line and (before is None or before in self.line)
                return None if both_wait else RunNotQueued
            case BeginStep(run_id=run_id):
                if run_id != self.active:
                    return RunNotActive
                return RunIsStopping if run_id in self.told else None
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
        return QueueFull if len(self.line) >= command.queue_runs_max else None

    def read(self, command: Command, events: tuple[LaneEvent, ...]) -> Oracle:
        reader = _Reader(self, command)
        for event in events:
            reader.read(event)
        after = reader.after
        if after.inside and after.active is None:
            _broken(f"{', '.join(after.inside)} did not end with the Run it had folded into")
        if after.line and after.active is None:
            _broken(f"the Lane is idle while {', '.join(after.line)} waits")
        for run_id in after.line:
            if run_id in after.told:
                _broken(f"{run_id} is covered by a cancel and still waits for a start")
        _Promise(self, after, events).check(command)
        return replace(after, told=after.told.intersection(after.live))

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
        if lane.next_seq <= self.last_seq:
            _broken(f"the next seq, {lane.next_seq}, was given out before")


def _broken(promise: str) -> NoReturn:
    raise AssertionError(promise)


@dataclass(slots=True)
class _Reader:
    """Reads one append, event by event; each has to be possible where it stands."""

    before: Oracle
    command: Command
    after: Oracle = field(init=False)
    #: The end of the active Run, once it was read.
    host: RunEnded | None = None

    def __post_init__(self) -> None:
        self.after = replace(self.before, told=self.before.told | self._told())

    def _told(self) -> frozenset[str]:
        match self.command:
            case Cancel() | CancelRun() | ClearQueue():
                return self.before.covered(self.command)
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
                if now.line[:1] != (run_id,):
                    _broken(f"{run_id} starts and is not the first of {list(now.line)}")
                self.after = replace(now, active=run_id, line=now.line[1:], steering=now.steering - {run_id})
            case RunResumed(run_id=run_id):
                self._needs(isinstance(self.command, Recover) and run_id == now.active, event)
                self.after = replace(now, resumes=now.resumes + 1)
            case StepStarted(run_id=run_id, step=step):
                self._needs(isinstance(self.command, BeginStep) and run_id == now.active, event)
                self._needs(step == now.steps + 1 and run_id not in now.told, event)
                self.after = replace(now, steps=step)
            case RunFolded(run_id=run_id, into=into):
                self._needs(isinstance(self.command, BeginStep) and run_id in now.steering, event)
                self._needs(into == now.active and into not in now.told, event)
                line = tuple(waiting for waiting in now.line if waiting != run_id)
                joined = {*now.inside, run_id}
                inside = tuple(other for other, _, _ in now.accepted if other in joined)
                self.after = replace(now, line=line, steering=now.steering - {run_id}, inside=inside)
            case RunEdited(run_id=run_id):
                self._needs(isinstance(self.command, EditRun) and run_id in now.line, event)
            case RunMoved(run_id=run_id, before=before):
                self._needs(isinstance(self.command, MoveRun) and run_id in now.line, event)
                self.after = replace(now, line=moved(now.line, run_id, before))
            case FoldMarked(run_id=run_id):
                self._needs(isinstance(self.command, FoldRun) and run_id in now.line, event)
                self.after = replace(now, steering=now.steering | {run_id})
            case CancelMarked(mark=mark, run_id=run_id):
                self._needs(now.active == run_id and run_id in now.told and mark == now.last_seq, event)
                self.after = replace(now, mark=mark)
            case RunCancelMarked(run_id=run_id):
                self._needs(isinstance(self.command, CancelRun) and run_id == now.active == self.command.run_id, event)
            case RunEnded():
                self._ended(event)
            case _:
                assert_never(event)

    def _accepted(self, event: RunAccepted) -> None:
        now, command, run_id = self.after, self.command, event.run_id
        if not isinstance(command, Submit) or command.run_id != run_id or now.content_of(run_id) is not None:
            _broken(f"{run_id} is accepted, which nobody asked for or was done before")
        if event.seq <= now.last_seq:
            _broken(f"{run_id} gets seq {event.seq} after {now.last_seq} was given out")
        self._needs(event.folds == (now.active is not None and command.when_busy == "fold"), event)
        self.after = replace(
            now,
            accepted=(*now.accepted, (run_id, event.seq, command.content)),
            line=(*now.line, run_id),
            steering=now.steering | {run_id} if event.folds else now.steering,
        )

    def _ended(self, event: RunEnded) -> None:
        now, run_id = self.after, event.run_id
        if run_id not in now.live:
            _broken(f"{run_id} ends, and is not live (any more)")
        if run_id == now.active:
            self._needs(event.folded_into is None and event.outcome == self._outcome(run_id), event)
            self.host = event
            self.after = replace(now, active=None, steering=frozenset(), steps=0, resumes=0)
        elif run_id in now.inside:
            host = self.host
            if host is None or (event.folded_into, event.outcome) != (host.run_id, host.outcome):
                _broken(f"{run_id} ends with {event.outcome} into {event.folded_into}; the Run it is part of: {host}")
            self.after = replace(now, inside=tuple(other for other in now.inside if other != run_id))
        else:
            self._needs(event.folded_into is None and event.outcome == "cancelled" and run_id in now.told, event)
            line = tuple(other for other in now.line if other != run_id)
            self.after = replace(now, line=line, steering=now.steering - {run_id})

    def _outcome(self, run_id: str) -> str:
        if run_id in self.after.told:
            return "cancelled"
        if isinstance(self.command, Finish):
            return "interrupted" if self.command.outcome == "stopped" else self.command.outcome
        return "interrupted" if isinstance(self.command, Recover) else "not to end"

    def _needs(self, possible: bool, event: LaneEvent) -> None:
        if not possible:
            _broken(f"{event} cannot come here: {self.after.states()}, told to stop: {sorted(self.after.told)}")


@dataclass(frozen=True, slots=True)
class _Promise:
    """What a command has to bring about as a whole, and what it has to leave alone."""

    before: Oracle
    after: Oracle
    events: tuple[LaneEvent, ...]

    def check(self, command: Command) -> None:
        before, after = self.before, self.after
        match command:
            case Submit():
                self._submit(command)
            case Cancel():
                self._holds(not after.line and self._spared_the_active(), "ends all who wait and tells the active one")
                if before.active is None or (before.active in before.told and not before.line):
                    self._holds(not self.events, "decides nothing where nobody is left to cover")
            case CancelRun(run_id=run_id):
                others = tuple(other for other in before.line if other != run_id)
                self._holds(after.line == others and self._spared_the_active(), "touches no other Run")
                meant = run_id in before.line or (run_id == before.active and run_id not in before.told)
                self._holds(len(self.events) == meant, "is one event for the Run it means, or none")
            case ClearQueue():
                self._holds(not after.line, "leaves nobody in the queue")
                self._holds(self._spared_the_active() and after.mark == before.mark, "leaves the active Run alone")
            case EditRun():
                self._holds(after == before and len(self.events) == 1, "says that the Run was edited and no more")
            case MoveRun(run_id=run_id, before=place):
                expected = replace(before, line=moved(before.line, run_id, place))
                self._holds(after == expected, "changes the order of the queue and no more")
            case FoldRun(run_id=run_id):
                expected = replace(before, steering=before.steering | {run_id})
                self._holds(after == expected, "has this Run wait to fold, and no other")
                self._holds(len(self.events) == (run_id not in before.steering), "is one event, or none when it folds")
            case BeginStep(folds=folds):
                joined = before.steering if folds else frozenset[str]()
                self._holds(set(after.inside) == {*before.inside, *joined}, "takes in everybody who waits to fold")
                self._holds(after.steps == before.steps + 1, "begins one step")
            case Finish():
                self._went_on()
            case Recover():
                self._recover(command)
            case _:
                assert_never(command)

    def _submit(self, command: Submit) -> None:
        before, after, run_id = self.before, self.after, command.run_id
        if before.content_of(run_id) is not None:
            self._holds(not self.events, "decides nothing when it is repeated")
        elif before.active is None:
            self._holds(after.active == run_id and not after.line, "starts at once on an idle Lane")
        elif command.when_busy == "interrupt":
            next_up = after.line == (run_id,) and self._spared_the_active()
            self._holds(next_up, "comes next, after the active one and nobody else")
        else:
            self._holds(after.line == (*before.line, run_id) and self._spared_the_active(), "comes last in the queue")

    def _recover(self, command: Recover) -> None:
        before, after = self.before, self.after
        may_resume = before.steps == 0 or command.on_crash == "resume"
        if before.active is None:
            self._holds(not self.events, "decides nothing on an idle Lane")
        elif may_resume and before.resumes < command.resumes_max and before.active not in before.told:
            self._holds(after == replace(before, resumes=before.resumes + 1), "resumes the active Run and no more")
        else:
            self._went_on()

    def _went_on(self) -> None:
        before, after = self.before, self.after
        went_on = (after.active,) == (before.line[:1] or (None,)) and after.line == before.line[1:]
        self._holds(went_on, "ends the active Run, starts the first in line and touches nobody else")

    def _spared_the_active(self) -> bool:
        return (self.after.active, self.after.inside) == (self.before.active, self.before.inside)

    def _holds(self, kept: bool, promise: str) -> None:
        if not kept:
            _broken(f"not kept: it {promise}. Before: {self.before.states()}, after: {self.after.states()}")


def moved(line: tuple[str, ...], run_id: str, before: str | None) -> tuple[str, ...]:
    """The line after `run_id` was put before another one, or last."""
    if before == run_id:
        return line
    rest = [other for other in line if other != run_id]
    rest.insert(rest.index(before) if before is not None else len(rest), run_id)
    return tuple(rest)
