"""The ledger of one session, built from its log alone: the rules that any reader of the log can check.

It shares no code with the Lane or the engine. The Lane compares sequence numbers to find the Runs that a cancel covers;
the ledger records which Runs were live when the cancel came. The order in which events may follow each other is stated
here a second time, in another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kedge.core.events import (
    Asked,
    CancelMarked,
    ErrorReported,
    Event,
    FoldMarked,
    Outcome,
    RunAccepted,
    RunCancelMarked,
    RunEdited,
    RunEnded,
    RunFolded,
    RunMoved,
    RunReported,
    RunResumed,
    RunStarted,
    SessionChanged,
    StepStarted,
)
from proof.sim.state import sim_time


@dataclass(frozen=True, slots=True)
class QueueState:
    """The active Run and the queue, from the time of the append that made it so. Seconds."""

    since: float = 0.0
    active: str | None = None
    queue: tuple[str, ...] = ()


@dataclass(slots=True)
class SessionLedger:
    session_id: str
    #: The simulated time at which each Position was written.
    appended_at: Mapping[int, float]
    #: The broken rules.
    broken: list[str] = field(default_factory=list)

    # For the judge, over the whole log. Sets hold Run ids.
    seqs: dict[str, int] = field(default_factory=dict)
    #: The Position of each RunAccepted.
    accepted_positions: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    ended_at: dict[str, float] = field(default_factory=dict)
    #: Seconds from the request to stop until the end.
    stop_durations_s: dict[str, float] = field(default_factory=dict)
    #: Started in the append that accepted them.
    started_at_once: set[str] = field(default_factory=set)
    resumed: set[str] = field(default_factory=set)
    folded: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    #: Live when a cancel of the whole session came.
    covered: set[str] = field(default_factory=set)
    cancelled_by_id: set[str] = field(default_factory=set)
    #: Ended while queued, and not covered by a cancel: a client must have asked for that.
    removed: set[str] = field(default_factory=set)
    #: Cancels of the whole session.
    cancel_count: int = 0
    is_deleted: bool = False
    queue_states: list[QueueState] = field(default_factory=lambda: [QueueState()])

    # The state after the last event.
    _active: str | None = None
    _queue: list[str] = field(default_factory=list)
    #: Folded into the active Run, or into the one that has just ended.
    _inside: list[str] = field(default_factory=list)
    #: Covered by a cancel, or cancelled by id.
    _stopping: set[str] = field(default_factory=set)
    #: The clock (in milliseconds) of the first request to stop.
    _stop_requested_ms: dict[str, int] = field(default_factory=dict)
    #: The Run that each steering prompt is meant for: the active one when it was accepted, or marked to fold.
    _folds_into: dict[str, str | None] = field(default_factory=dict)
    #: The last Step of each Run, and the Runs that may start theirs again: they were resumed since.
    _steps: dict[str, int] = field(default_factory=dict)
    _repeats: set[str] = field(default_factory=set)
    #: The Run that has just ended: the Runs inside it must end next, with the same outcome.
    _ended_host: tuple[str, Outcome] | None = None
    #: The Run whose end must be reported next.
    _unreported: str | None = None

    @property
    def live(self) -> list[str]:
        return [*([self._active] if self._active else []), *self._inside, *self._queue]

    @property
    def _latest_seq(self) -> int:
        return max(self.seqs.values(), default=0)

    def read(self, position: int, event: Event) -> None:
        self._check_session_exists(event)
        self._check_active_if_queued(event)
        self._check_folded_end_with_host(event)
        self._apply(position, event)
        last = self.queue_states[-1]
        if (last.active, last.queue) != (self._active, tuple(self._queue)):
            self.queue_states.append(QueueState(self.appended_at[position], self._active, tuple(self._queue)))

    def close(self) -> None:
        """Check the rules for the end of the log."""
        for run_id in self.live:
            self._report(f"{run_id} never ended")
        if self._unreported is not None:
            self._report(f"the end of {self._unreported} was not reported")

    def _apply(self, position: int, event: Event) -> None:
        match event:
            case RunAccepted():
                self._accept(position, event)
            case RunStarted():
                self._start(position, event.run_id)
            case RunResumed():
                self._check_works(event, event.run_id)
                self.resumed.add(event.run_id)
                self._repeats.add(event.run_id)
            case StepStarted():
                self._check_works(event, event.run_id)
                self._start_step(event)
            case Asked():
                self._check_may_ask(event)
            case RunFolded():
                self._fold(event)
            case RunMoved():
                self._move(event)
            case FoldMarked():
                self._check_queued(event, event.run_id)
                self._folds_into[event.run_id] = self._active
            case RunEdited():
                self._check_queued(event, event.run_id)
            case CancelMarked():
                self._cancel_all(event)
            case RunCancelMarked():
                self._cancel_one(event)
            case RunEnded():
                self._end(event)
            case RunReported():
                self._report_end(event)
            case SessionChanged(change="deleted"):
                self.is_deleted = True
            case _:
                pass

    def _report(self, problem: str) -> None:
        self.broken.append(f"log of {self.session_id}: {problem}")

    # --- rules for the order of events ---------------------------------------------------------------------------

    def _check_session_exists(self, event: Event) -> None:
        if self.is_deleted and not isinstance(event, SessionChanged):
            self._report(f"{event} after the session was deleted")

    def _check_active_if_queued(self, event: Event) -> None:
        """The append that ends a Run also starts the next one: no event of the Lane comes in between."""
        needs_an_active_run = isinstance(event, RunAccepted | StepStarted | CancelMarked | RunMoved | FoldMarked)
        if self._active is None and self._queue and needs_an_active_run:
            self._report(f"{event} while no Run is active and {self._queue[0]} is queued")

    def _check_folded_end_with_host(self, event: Event) -> None:
        if self._inside and self._ended_host and not isinstance(event, RunEnded | RunReported | ErrorReported):
            self._report(f"{event} between the end of {self._ended_host[0]} and that of {self._inside[0]} inside it")

    # --- rules for single events ---------------------------------------------------------------------------------

    def _accept(self, position: int, event: RunAccepted) -> None:
        run_id = event.run_id
        if run_id in self.seqs:
            self._report(f"{run_id} is accepted twice")
        if event.seq <= self._latest_seq:
            self._report(f"{run_id} gets seq {event.seq}, which is not higher than all before")
        if event.folds:
            self._folds_into[run_id] = self._active
        if event.before is not None or event.author:
            self._report(f"{run_id} is queued before {event.before}, or has an author: all prompts are the owner's")
        self.seqs[run_id], self.accepted_positions[run_id] = event.seq, position
        self._queue.append(run_id)

    def _start(self, position: int, run_id: str) -> None:
        if self._active is not None:
            self._report(f"{run_id} starts while {self._active} is active")
        if not self._queue or self._queue[0] != run_id:
            self._report(f"{run_id} starts; the queue is {self._queue}")
        if run_id in self._stopping:
            self._report(f"{run_id} starts although a cancel covers it")
        if position == self.accepted_positions.get(run_id, 0) + 1:
            self.started_at_once.add(run_id)
        if run_id in self._queue:
            self._queue.remove(run_id)
        self._active, self._ended_host = run_id, None

    def _check_works(self, event: Event, run_id: str) -> None:
        if run_id != self._active:
            self._report(f"{event} of a Run that is not active")
        if run_id in self._stopping:
            self._report(f"{event} of a Run that is stopping")

    def _start_step(self, event: StepStarted) -> None:
        """The Steps of a Run are numbered from 1. Only a Run that was resumed starts its last one again."""
        last = self._steps.get(event.run_id, 0)
        expected = {last + 1, last} if event.run_id in self._repeats else {last + 1}
        if event.step not in expected:
            self._report(f"{event} after Step {last}")
        self._steps[event.run_id] = event.step
        self._repeats.discard(event.run_id)

    def _check_may_ask(self, event: Asked) -> None:
        if event.run_id in self._stopping or event.run_id != self._active:
            self._report(f"{event} of a Run that is not active, or is stopping")

    def _check_queued(self, event: Event, run_id: str) -> None:
        if run_id not in self._queue:
            self._report(f"{event} of a Run that is not queued")

    def _fold(self, event: RunFolded) -> None:
        run_id, host = event.run_id, event.into
        is_meant = self._folds_into.get(run_id) == host
        if host != self._active or host in self._stopping or run_id not in self._queue or not is_meant:
            self._report(f"{event} is not possible here")
            return
        self._queue.remove(run_id)
        self._inside.append(run_id)
        self.folded.add(run_id)

    def _move(self, event: RunMoved) -> None:
        run_id, before = event.run_id, event.before
        self.moved.add(run_id)
        if run_id not in self._queue or (before is not None and before not in self._queue):
            self._report(f"{run_id} is moved before {before}; the queue is {self._queue}")
        elif before != run_id:
            self._queue.remove(run_id)
            self._queue.insert(len(self._queue) if before is None else self._queue.index(before), run_id)

    def _cancel_all(self, event: CancelMarked) -> None:
        self.cancel_count += 1
        if event.mark != self._latest_seq or event.run_id != self._active:
            self._report(f"{event}: the latest seq is {self._latest_seq}, active {self._active}")
        self.covered.update(self.live)
        self._stopping.update(self.live)
        self._stop_requested_ms.setdefault(event.run_id, event.at)

    def _cancel_one(self, event: RunCancelMarked) -> None:
        if event.run_id != self._active:
            self._report(f"{event} of a Run that is not active")
        self.cancelled_by_id.add(event.run_id)
        self._stopping.update((event.run_id, *self._inside))
        self._stop_requested_ms.setdefault(event.run_id, event.at)

    def _end(self, event: RunEnded) -> None:
        run_id, outcome = event.run_id, event.outcome
        if run_id in self.outcomes or run_id not in self.seqs:
            self._report(f"{run_id} ends for the second time, or was never accepted")
            return
        if self._unreported is not None:
            self._report(f"{run_id} ends before the end of {self._unreported} was reported")
        if run_id in self._queue:
            self._end_queued(run_id, outcome)
        elif (outcome == "cancelled") != (run_id in self._stopping):
            self._report(f"{run_id} ends {outcome}; stopping: {run_id in self._stopping}")
        if run_id == self._active:
            self._active, self._ended_host = None, (run_id, outcome)
        elif run_id in self._inside:
            self._end_folded(event)
        self.outcomes[run_id] = outcome
        self.ended_at[run_id] = sim_time(event.at)
        if run_id in self._stop_requested_ms:
            self.stop_durations_s[run_id] = sim_time(event.at) - sim_time(self._stop_requested_ms[run_id])
        self._unreported = run_id

    def _end_queued(self, run_id: str, outcome: Outcome) -> None:
        self._queue.remove(run_id)
        if outcome != "cancelled":
            self._report(f"{run_id} ends {outcome} while it is queued")
        if run_id not in self._stopping:
            self.removed.add(run_id)

    def _end_folded(self, event: RunEnded) -> None:
        self._inside.remove(event.run_id)
        if self._ended_host is None or (event.folded_into, event.outcome) != self._ended_host:
            self._report(f"{event} does not end with its host {self._ended_host}")

    def _report_end(self, event: RunReported) -> None:
        if event.run_id != self._unreported or self.outcomes.get(event.run_id) != event.outcome:
            self._report(f"{event} does not follow its end")
        self._unreported = None
