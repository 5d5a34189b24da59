"""The books of one session, kept from its log alone: what anybody who reads the log may hold it to.

They know no Lane and no engine. Where the Lane compares numbers to know what a cancel covers, they write down who was
there when it came; what an event may follow is said here once more, in another way.
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
from proof.sim.scene import moment


@dataclass(frozen=True, slots=True)
class Line:
    """Who was active and who waited, in their order, from the append on that made it so. Seconds."""

    at: float = 0.0
    active: str | None = None
    queue: tuple[str, ...] = ()


@dataclass(slots=True)
class Books:
    session_id: str
    #: When each Position was written, in the time of the simulation.
    appended_at: Mapping[int, float]
    broken: list[str] = field(default_factory=list)
    #: Every Run ever accepted, with its seq and the Position of its RunAccepted.
    seqs: dict[str, int] = field(default_factory=dict)
    accepted_at: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    #: Who ended while waiting in line and was not covered by a cancel: each needs somebody who asked for just that.
    dropped: set[str] = field(default_factory=set)
    #: Who was told to stop by name, and how many cancels of the whole session there were.
    told_alone: set[str] = field(default_factory=set)
    cancels: int = 0
    #: Everybody that a cancel of the whole session has found, and who was started in the append that accepted them.
    covered: set[str] = field(default_factory=set)
    started_at_once: set[str] = field(default_factory=set)
    is_deleted: bool = False
    #: Who has joined another, and who was moved.
    folded: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    ended_at: dict[str, float] = field(default_factory=dict)
    #: How the line stood, one after the other.
    lines: list[Line] = field(default_factory=lambda: [Line()])
    _line: list[str] = field(default_factory=list)
    _active: str | None = None
    _inside: list[str] = field(default_factory=list)
    _told: set[str] = field(default_factory=set)
    #: The host that has ended, and how: who folded into it must follow at once.
    _host: tuple[str, Outcome] | None = None
    _unreported: str | None = None
    #: Whom a steering prompt was meant for: who was active when it was accepted, or told to fold.
    _folds_into: dict[str, str | None] = field(default_factory=dict)
    #: When a live Run was told to stop, in milliseconds of the clock; how long each took to end since, in seconds.
    _told_at: dict[str, int] = field(default_factory=dict)
    stopped_in_s: dict[str, float] = field(default_factory=dict)
    resumed: set[str] = field(default_factory=set)

    def _say(self, what: str) -> None:
        self.broken.append(f"log of {self.session_id}: {what}")

    @property
    def live(self) -> list[str]:
        return [*([self._active] if self._active else []), *self._inside, *self._line]

    def read(self, position: int, event: Event) -> None:
        self._read(position, event)
        if (self.lines[-1].active, self.lines[-1].queue) != (self._active, tuple(self._line)):
            self.lines.append(Line(self.appended_at[position], self._active, tuple(self._line)))

    def _read(self, position: int, event: Event) -> None:
        if self.is_deleted and not isinstance(event, SessionChanged):
            self._say(f"{event} behind the end of the session")
        self._check_order(event)
        match event:
            case RunAccepted(run_id=run_id, seq=seq, folds=folds):
                if folds:
                    self._folds_into[run_id] = self._active
                if run_id in self.seqs:
                    self._say(f"{run_id} is accepted twice")
                if seq <= max(self.seqs.values(), default=0):
                    self._say(f"{run_id} gets seq {seq}, which is not higher than all before")
                self.seqs[run_id], self.accepted_at[run_id] = seq, position
                self._line.append(run_id)
            case RunStarted(run_id=run_id):
                if position == self.accepted_at.get(run_id, 0) + 1:
                    self.started_at_once.add(run_id)
                self._start(run_id)
            case RunResumed(run_id=run_id) | StepStarted(run_id=run_id):
                if run_id != self._active:
                    self._say(f"{event} of a Run that is not active")
                if run_id in self._told:
                    self._say(f"{event} of a Run that was told to stop")
                if isinstance(event, RunResumed):
                    self.resumed.add(run_id)
            case Asked(run_id=run_id):
                if run_id in self._told or run_id != self._active:
                    self._say(f"{event} of a Run that is not active, or was told to stop")
            case RunFolded(run_id=run_id, into=into):
                meant = self._folds_into.get(run_id) == into
                if into != self._active or into in self._told or run_id not in self._line or not meant:
                    self._say(f"{event} cannot be here")
                else:
                    self._line.remove(run_id)
                    self._inside.append(run_id)
                    self.folded.add(run_id)
            case RunMoved(run_id=run_id, before=before):
                self._move(run_id, before)
                self.moved.add(run_id)
            case FoldMarked(run_id=run_id):
                if run_id not in self._line:
                    self._say(f"{run_id} is told to fold and does not wait")
                self._folds_into[run_id] = self._active
            case RunEdited(run_id=run_id):
                if run_id not in self._line:
                    self._say(f"{run_id} is edited and does not wait")
            case CancelMarked(mark=mark, run_id=run_id):
                self.cancels += 1
                if mark != max(self.seqs.values(), default=0) or run_id != self._active:
                    self._say(f"{event}: the latest seq is {max(self.seqs.values(), default=0)}, active {self._active}")
                self.covered.update(self.live)
                self._told.update(self.live)
                self._told_at.setdefault(run_id, event.at)
            case RunCancelMarked(run_id=run_id):
                if run_id != self._active:
                    self._say(f"{event} of a Run that is not active")
                self.told_alone.add(run_id)
                self._told.update((run_id, *self._inside))
                self._told_at.setdefault(run_id, event.at)
            case RunEnded():
                self._end(event)
            case RunReported(run_id=run_id, outcome=outcome):
                if run_id != self._unreported or self.outcomes.get(run_id) != outcome:
                    self._say(f"{event} does not follow its end")
                self._unreported = None
            case SessionChanged(change="deleted"):
                self.is_deleted = True
            case _:
                pass

    def _check_order(self, event: Event) -> None:
        """What is written in one append with an end: nothing of the Lane may come between."""
        needs_an_active_run = isinstance(event, StepStarted | CancelMarked | RunMoved | FoldMarked)
        if self._active is None and self._line and needs_an_active_run:
            self._say(f"{event} while nobody is active and {self._line[0]} waits")
        if isinstance(event, RunAccepted) and self._active is None and self._line:
            self._say(f"{event.run_id} is accepted while {self._line[0]} waits and nobody is active")
        if self._inside and self._host and not isinstance(event, RunEnded | RunReported | ErrorReported):
            self._say(f"{event} between the end of {self._host[0]} and that of {self._inside[0]} inside it")

    def _start(self, run_id: str) -> None:
        if self._active is not None:
            self._say(f"{run_id} starts while {self._active} is active")
        if not self._line or self._line[0] != run_id:
            self._say(f"{run_id} starts; in line are {self._line}")
        if run_id in self._told:
            self._say(f"{run_id} starts although a cancel covers it")
        if run_id in self._line:
            self._line.remove(run_id)
        self._active, self._host = run_id, None

    def _move(self, run_id: str, before: str | None) -> None:
        if run_id not in self._line or (before is not None and before not in self._line):
            self._say(f"{run_id} is moved before {before}; in line are {self._line}")
            return
        if before == run_id:
            return
        self._line.remove(run_id)
        self._line.insert(len(self._line) if before is None else self._line.index(before), run_id)

    def _end(self, event: RunEnded) -> None:
        run_id, outcome = event.run_id, event.outcome
        if run_id in self.outcomes or run_id not in self.seqs:
            self._say(f"{run_id} ends for the second time, or was never accepted")
            return
        if self._unreported is not None:
            self._say(f"{run_id} ends before the end of {self._unreported} was reported")
        if (outcome == "cancelled") != (run_id in self._told) and run_id not in self._line:
            self._say(f"{run_id} ends {outcome} and was {'' if run_id in self._told else 'not '}told to stop")
        if run_id == self._active:
            self._active, self._host = None, (run_id, outcome)
        elif run_id in self._inside:
            self._inside.remove(run_id)
            if self._host is None or (event.folded_into, outcome) != self._host:
                self._say(f"{event} does not end with its host {self._host}")
        elif run_id in self._line:
            self._line.remove(run_id)
            if outcome != "cancelled":
                self._say(f"{run_id} ends {outcome} while it waits")
            if run_id not in self._told:
                self.dropped.add(run_id)
        self.outcomes[run_id] = outcome
        self.ended_at[run_id] = moment(event.at)
        if run_id in self._told_at:
            self.stopped_in_s[run_id] = moment(event.at) - moment(self._told_at[run_id])
        self._unreported = run_id

    def close(self) -> None:
        for run_id in self.live:
            self._say(f"{run_id} never ended")
        if self._unreported is not None:
            self._say(f"the end of {self._unreported} was not reported")
