"""The Lane: the line of Runs of one Session. This file alone decides the life of a Run.

Theory of operation
===================

A Lane is a value. Two pure functions work on it:

    decide(lane, command) -> events      may raise a typed error; then nothing has changed
    apply(lane, event)    -> lane        never fails for an event that decide returned

The engine decides, appends the events durably, applies them, and only then acts on them. After a crash between any two
of these steps, `Recover` continues from the log.

A cancel is a comparison of numbers. Each accepted Run gets the next `seq`; a cancel raises `mark` to the latest seq; a
Run is covered if and only if `seq <= mark`. There is no flag to reset that a later prompt could trip over: a Run
accepted after the cancel has a higher seq and is not covered, in whatever order the two are processed.

The rules
---------
 1  Submit assigns the next seq. On an idle Lane the Run is accepted and started in one append. On a busy Lane the Run
    queues; waits to fold into the active Run at that Run's next Step; is rejected without a trace; or interrupts: it
    cancels all earlier Runs and becomes the next Run, in one append.
 2  The run_id is the idempotency key. The same id with the same content adds no event; the same id with other content
    is an error.
 3  Cancel covers every live Run. Covered queued Runs end at once; the active Run has to stop and ends when its clean-up
    is done. On an idle Lane, or when every live Run is already covered, Cancel decides nothing.
 4  CancelRun ends a queued Run, or stops the active one, and covers no other Run. A folded Run has joined its host and
    cannot be cancelled alone.
 5  Finish ends the active Run and the Runs folded into it, and starts the next Run, in one append. A Lane is never idle
    with a queue. This holds for every outcome.
 6  If the log has a cancel that covers the active Run before its end, the outcome is `cancelled`, whatever the engine
    reports. The first durable fact wins. A Run that was stopped without a cancel was interrupted by a shutdown.
 7  A Run that waits to fold when the active Run ends becomes a Run of its own, at its place in the queue.
 8  Folding is steering: it overtakes Runs that wait for their own start, but never a cancel: no Run
    folds into a Run that is stopping. A queued Run may be folded after its Submit; it keeps its seq.
 9  Recover ends the active Run as cancelled if a cancel covers it; resumes it if the policy allows it, or if it has not
    begun a Step (nothing was done, so nothing can be done twice); otherwise ends it as interrupted. Queued Runs stay
    queued.
10  The queue is bounded, and so is the share of each named author. Beyond a bound Submit is an error and nothing is
    recorded.
11  Authors take turns. The k-th Run of an author in the queue is in round k. A new Run goes after the last queued Run
    of its round or an earlier one: it overtakes only later rounds of other authors, never a first round, and with one
    author the queue is first in, first out. Rounds are counted in the current order of the queue, so no new Run takes a
    move back. Seqs, and so cancels, do not depend on rounds.

The Lane has no knowledge of models, tools, clients, tasks, processes, HTTP or SQL.
"""

from __future__ import annotations

from typing import Literal, assert_never

from msgspec import Struct
from msgspec.structs import replace

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
    Outcome,
    Reason,
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
from kedge.errors import LaneBusy, QueueFull, RunIdReused, RunIsFolded, RunIsStopping, RunNotActive, RunNotQueued

RunState = Literal["queued", "waiting to fold", "active", "stopping", "folded", "ended"]

#: The life of a Run as a table: (state, event, next state). `docs/lifecycle.svg` is drawn from it, and the exhaustive
#: walk compares `apply` with it in both directions. "via": the event of another Run changes the state.
LIFECYCLE: tuple[tuple[RunState | None, type[LaneEvent], RunState], ...] = (
    (None, RunAccepted, "queued"),
    (None, RunAccepted, "waiting to fold"),
    ("queued", FoldMarked, "waiting to fold"),
    ("queued", RunStarted, "active"),
    ("waiting to fold", RunFolded, "folded"),
    ("waiting to fold", RunEnded, "queued"),  # via: the end of the Run it waited for
    ("queued", RunEnded, "ended"),
    ("waiting to fold", RunEnded, "ended"),
    ("active", CancelMarked, "stopping"),
    ("active", RunCancelMarked, "stopping"),
    ("active", RunEnded, "ended"),
    ("stopping", RunEnded, "ended"),
    ("folded", RunEnded, "ended"),
)


class LaneRun(Struct, frozen=True):
    """A live Run as the Lane sees it."""

    run_id: str
    seq: int
    folds: bool = False
    steps: int = 0
    resumes: int = 0
    #: Stopped by CancelRun, which covers this Run alone and so cannot be a mark.
    cancelled: bool = False
    #: The user who submitted it. Empty: the owner.
    author: str = ""


class Lane(Struct, frozen=True):
    next_seq: int = 1
    mark: int = 0
    active: LaneRun | None = None
    queue: tuple[LaneRun, ...] = ()
    folded: tuple[LaneRun, ...] = ()
    #: The number of events applied: the version that an append expects.
    version: int = 0

    @property
    def live(self) -> tuple[LaneRun, ...]:
        return ((self.active,) if self.active else ()) + self.folded + self.queue

    def covers(self, run: LaneRun) -> bool:
        return run.seq <= self.mark or run.cancelled

    def queued(self, run_id: str) -> LaneRun | None:
        return next((run for run in self.queue if run.run_id == run_id), None)

    def state_of(self, run_id: str) -> RunState | None:
        """Return the state of a live Run, or None if it is unknown or has ended."""
        if self.active and self.active.run_id == run_id:
            return "stopping" if self.covers(self.active) else "active"
        if any(run.run_id == run_id for run in self.folded):
            return "folded"
        if waiting := self.queued(run_id):
            return "waiting to fold" if waiting.folds else "queued"
        return None


# --- decide ----------------------------------------------------------------------------------------------------------


def decide(lane: Lane, command: Command) -> tuple[LaneEvent, ...]:
    """Return the events that the command leads to; empty if it changes nothing."""
    match command:
        case Submit():
            return _submit(lane, command)
        case Cancel():
            return _cancel(lane, command)
        case CancelRun():
            return _cancel_run(lane, command)
        case ClearQueue():
            return tuple(_drop(run, "removed", command) for run in lane.queue)
        case EditRun():
            _require_queued(lane, command.run_id)
            return (RunEdited(command.run_id, command.now),)
        case MoveRun():
            return _move(lane, command)
        case FoldRun():
            waiting = _require_queued(lane, command.run_id)
            return () if waiting.folds else (FoldMarked(command.run_id, command.now),)
        case BeginStep():
            return _begin_step(lane, command)
        case Finish():
            active = _require_active(lane, command.run_id)
            if command.outcome == "stopped":
                return _end_active(lane, active, "interrupted", "shutdown", command.now)
            return _end_active(lane, active, command.outcome, command.reason, command.now)
        case Recover():
            return _recover(lane, command)
        case _:
            assert_never(command)


def _submit(lane: Lane, command: Submit) -> tuple[LaneEvent, ...]:
    if command.accepted_content is not None:
        if command.accepted_content == command.content:
            return ()
        raise RunIdReused(
            f"run_id {command.run_id} was already used with other content. Send the same content or a new run_id."
        )
    accepted = RunAccepted(command.run_id, lane.next_seq, False, command.now, author=command.author)
    if lane.active is None:
        return (accepted, RunStarted(command.run_id, command.now))
    if command.when_busy == "reject":
        raise LaneBusy(
            f"Run {lane.active.run_id} is active in this session. Wait for its end or use another when_busy."
        )
    if command.when_busy == "interrupt":
        return (*_cancel(lane, command), accepted)
    if len(lane.queue) >= command.queue_runs_max:
        raise QueueFull(f"The queue of this session is full ({len(lane.queue)} runs). Wait, or cancel some of them.")
    own = sum(run.author == command.author for run in lane.queue)
    if command.author and own >= command.queue_runs_per_user_max:
        raise QueueFull(
            f"User {command.author} has {own} queued runs in this session, the maximum per user. "
            "Wait, or cancel some of them."
        )
    return (replace(accepted, folds=command.when_busy == "fold", before=_overtaken(lane.queue, own + 1)),)


def _overtaken(queue: tuple[LaneRun, ...], own_round: int) -> str | None:
    """Return the queued Run that a new Run of this round goes before (rule 11); None: it goes to the end."""
    rounds: dict[str, int] = {}
    before: str | None = None
    for run in queue:
        rounds[run.author] = rounds.get(run.author, 0) + 1
        if rounds[run.author] <= own_round:
            before = None
        elif before is None:
            before = run.run_id
    return before


def _cancel(lane: Lane, command: Cancel | Submit) -> tuple[LaneEvent, ...]:
    if lane.active is None or (lane.covers(lane.active) and not lane.queue):
        return ()  # folded Runs end with their host, so no Run is left to cover
    latest = lane.next_seq - 1
    dropped = tuple(_drop(run, "cancelled_in_queue", command) for run in lane.queue)
    return (CancelMarked(latest, lane.active.run_id, command.now, command.author), *dropped)


def _cancel_run(lane: Lane, command: CancelRun) -> tuple[LaneEvent, ...]:
    match lane.state_of(command.run_id):
        case "active":
            return (RunCancelMarked(command.run_id, command.now, command.author),)
        case "queued" | "waiting to fold":
            reason: Reason = "cancelled_in_queue" if command.is_abandoned else "removed"
            return (RunEnded(command.run_id, "cancelled", reason, command.now, author=command.author),)
        case "folded":
            assert lane.active is not None
            raise RunIsFolded(
                f"Run {command.run_id} joined run {lane.active.run_id} and ends with it. Cancel that run instead."
            )
        case _:
            return ()


def _move(lane: Lane, command: MoveRun) -> tuple[LaneEvent, ...]:
    _require_queued(lane, command.run_id)
    if command.before is not None:
        _require_queued(lane, command.before)
    moved = _reordered(lane.queue, command.run_id, command.before)
    return () if moved == lane.queue else (RunMoved(command.run_id, command.before, command.now),)


def _begin_step(lane: Lane, command: BeginStep) -> tuple[LaneEvent, ...]:
    active = _require_active(lane, command.run_id)
    if lane.covers(active):
        raise RunIsStopping(f"Run {active.run_id} is being cancelled.")
    waiting = [run for run in lane.queue if run.folds] if command.folds else []
    joining = tuple(RunFolded(run.run_id, active.run_id, command.now) for run in waiting)
    return (*joining, StepStarted(active.run_id, active.steps + 1, command.now))


def _recover(lane: Lane, command: Recover) -> tuple[LaneEvent, ...]:
    active = lane.active
    if active is None:
        return ()
    may_resume = active.steps == 0 or command.on_crash == "resume"
    if may_resume and active.resumes < command.resumes_max and not lane.covers(active):
        return (RunResumed(active.run_id, command.now),)
    return _end_active(lane, active, "interrupted", "server_lost", command.now)


def _end_active(lane: Lane, active: LaneRun, outcome: Outcome, reason: Reason, now: int) -> tuple[LaneEvent, ...]:
    if lane.covers(active):
        outcome, reason = "cancelled", "cancelled"
    ends = [RunEnded(active.run_id, outcome, reason, now)]
    ends += [RunEnded(run.run_id, outcome, reason, now, active.run_id) for run in lane.folded]
    starts = [RunStarted(run.run_id, now) for run in lane.queue[:1]]
    return (*ends, *starts)


def _drop(run: LaneRun, reason: Reason, command: Cancel | ClearQueue | Submit) -> RunEnded:
    return RunEnded(run.run_id, "cancelled", reason, command.now, author=command.author)


def _require_active(lane: Lane, run_id: str) -> LaneRun:
    if lane.active is None or lane.active.run_id != run_id:
        raise RunNotActive(f"Run {run_id} is not active: its end is already recorded.")
    return lane.active


def _require_queued(lane: Lane, run_id: str) -> LaneRun:
    if waiting := lane.queued(run_id):
        return waiting
    raise RunNotQueued(f"Run {run_id} is {lane.state_of(run_id) or 'ended'}. Only queued runs can be changed.")


# --- apply -----------------------------------------------------------------------------------------------------------


def apply(lane: Lane, event: LaneEvent) -> Lane:
    """Return the Lane after the event."""
    lane = replace(lane, version=lane.version + 1)
    match event:
        case RunAccepted(run_id=run_id, seq=seq, folds=folds):
            new = LaneRun(run_id, seq, folds, author=event.author)
            return replace(lane, next_seq=seq + 1, queue=_inserted(lane.queue, new, event.before))
        case RunStarted(run_id=run_id):
            started = next(run for run in lane.queue if run.run_id == run_id)
            return replace(lane, active=replace(started, folds=False), queue=_without(lane.queue, run_id))
        case RunResumed():
            return _with_active(lane, resumes=_active(lane).resumes + 1)
        case StepStarted(step=step):
            return _with_active(lane, steps=step)
        case RunFolded(run_id=run_id):
            joined = next(run for run in lane.queue if run.run_id == run_id)
            folded = tuple(sorted((*lane.folded, joined), key=lambda run: run.seq))
            return replace(lane, folded=folded, queue=_without(lane.queue, run_id))
        case RunEdited():
            return lane
        case RunMoved(run_id=run_id, before=before):
            return replace(lane, queue=_reordered(lane.queue, run_id, before))
        case FoldMarked(run_id=run_id):
            queue = tuple(replace(run, folds=run.folds or run.run_id == run_id) for run in lane.queue)
            return replace(lane, queue=queue)
        case CancelMarked(mark=mark):
            return replace(lane, mark=mark)
        case RunCancelMarked():
            return _with_active(lane, cancelled=True)
        case RunEnded(run_id=run_id):
            return _ended(lane, run_id)
        case _:
            assert_never(event)


def apply_all(lane: Lane, events: tuple[LaneEvent, ...]) -> Lane:
    for event in events:
        lane = apply(lane, event)
    return lane


def _ended(lane: Lane, run_id: str) -> Lane:
    if lane.active and lane.active.run_id == run_id:
        # Rule 7: the Runs that waited to fold into it now wait for their own start.
        return replace(lane, active=None, queue=tuple(replace(run, folds=False) for run in lane.queue))
    return replace(lane, queue=_without(lane.queue, run_id), folded=_without(lane.folded, run_id))


def _active(lane: Lane) -> LaneRun:
    assert lane.active is not None
    return lane.active


def _with_active(lane: Lane, **changes: int | bool) -> Lane:
    return replace(lane, active=replace(_active(lane), **changes))


def _without(runs: tuple[LaneRun, ...], run_id: str) -> tuple[LaneRun, ...]:
    if runs and runs[0].run_id == run_id:
        return runs[1:]  # a cancel ends the queue from its head; scanning it each time would be quadratic
    return tuple(run for run in runs if run.run_id != run_id)


def _reordered(queue: tuple[LaneRun, ...], run_id: str, before: str | None) -> tuple[LaneRun, ...]:
    moved = next(run for run in queue if run.run_id == run_id)
    if before == run_id:
        return queue
    return _inserted(_without(queue, run_id), moved, before)


def _inserted(queue: tuple[LaneRun, ...], run: LaneRun, before: str | None) -> tuple[LaneRun, ...]:
    index = next((index for index, other in enumerate(queue) if other.run_id == before), len(queue))
    return (*queue[:index], run, *queue[index:])


# --- the reply to a cancel --------------------------------------------------------------------------------------------


class Covered(Struct, frozen=True):
    run_id: str
    seq: int
    was: Literal["queued", "active", "folded"]


def covered_by(lane: Lane, command: Cancel | CancelRun | ClearQueue) -> tuple[Covered, ...]:
    """Return the live Runs that the command covers, in their state before it: the reply to its sender."""
    match command:
        case Cancel():
            runs = lane.live
        case CancelRun(run_id=run_id):
            named = tuple(run for run in (lane.active, *lane.queue) if run and run.run_id == run_id)
            runs = (*named, *(lane.folded if lane.active in named else ()))  # folded Runs end with their host
        case ClearQueue():
            runs = lane.queue
        case _:
            assert_never(command)
    return tuple(Covered(run.run_id, run.seq, _was(lane, run)) for run in runs)


def _was(lane: Lane, run: LaneRun) -> Literal["queued", "active", "folded"]:
    if run is lane.active:
        return "active"
    return "folded" if run in lane.folded else "queued"
