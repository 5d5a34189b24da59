"""Histories of a Lane: one after the other by hand (`History`), or all there are up to a size (`walk`).

`walk` tries every command in every state that can be reached within its bounds, on the real `decide` and `apply`, and
holds each answer against the oracle, the LIFECYCLE table and the records. A state that was reached before is not walked
on again: what can happen from there does not depend on how one got there. That makes "all interleavings" affordable.

    result = walk(prompts=3, cancels=2, crashes=1)      AssertionError with the shortest history that breaks a promise

A Lane of your own making can be put to the same test: pass `decide` and `apply`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from kedge.core import lane as real
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
    WhenBusy,
)
from kedge.core.events import LaneEvent, RunAccepted, RunEnded
from kedge.core.lane import LIFECYCLE, Lane, RunState, covered_by
from kedge.core.records import LaneRecord, Prompt, RunOptions, RunRecord, project, restore
from kedge.errors import KedgeError
from proof.oracle import Oracle

Decide = Callable[[Lane, Command], tuple[LaneEvent, ...]]
Apply = Callable[[Lane, LaneEvent], Lane]
Row = tuple[RunState | None, type[LaneEvent], RunState]

_LIFECYCLE = frozenset(LIFECYCLE)


@dataclass(frozen=True, slots=True)
class State:
    """A Lane, what the oracle makes of it, and the records of its live Runs."""

    lane: Lane = field(default_factory=Lane)
    oracle: Oracle = field(default_factory=Oracle)
    records: dict[str, RunRecord] = field(default_factory=dict)


@dataclass(slots=True)
class Checker:
    """Puts one command to a Lane and checks everything there is to check about the answer."""

    decide: Decide = real.decide
    apply: Apply = real.apply
    #: The rows of LIFECYCLE that were used.
    rows: set[Row] = field(default_factory=set)

    def put(self, state: State, command: Command) -> tuple[State, tuple[LaneEvent, ...] | KedgeError]:
        refusal = state.oracle.refusal(command)
        try:
            events = self.decide(state.lane, command)
        except KedgeError as error:
            if type(error) is not refusal:
                raise AssertionError(f"refused with {error!r}; expected: {refusal}") from error
            return state, error
        if refusal is not None:
            raise AssertionError(f"must be refused with {refusal.__name__}, but gave {events}")
        if isinstance(command, Cancel | CancelRun | ClearQueue):
            answer = {covered.run_id for covered in covered_by(state.lane, command)}
            if answer != state.oracle.covered(command):
                raise AssertionError(f"covered_by answers {answer}; meant were {set(state.oracle.covered(command))}")
        if not events:
            state.oracle.read(command, events)
            return state, events
        oracle = state.oracle.read(command, events)
        lane = self._applied(state.lane, events)
        oracle.compare(lane)
        return State(lane, oracle, _recorded(state, command, events, lane)), events

    def _applied(self, lane: Lane, events: tuple[LaneEvent, ...]) -> Lane:
        states = _states(lane)
        for event in events:
            lane = self.apply(lane, event)
            before, states = states, _states(lane)
            for run_id in before.keys() | states.keys():
                was, is_now = before.get(run_id), states.get(run_id, "ended")
                if was != is_now:
                    row: Row = (was, type(event), is_now)
                    if row not in _LIFECYCLE:
                        raise AssertionError(f"{run_id} goes from {was} to {is_now} by {event}: no row of LIFECYCLE")
                    self.rows.add(row)
        return lane

    def check_drains(self, state: State) -> None:
        """Finishing what is active, again and again, ends every Run: nothing is ever stuck."""
        for _ in range(len(state.oracle.live) + 1):
            if state.lane.active is None:
                break
            try:
                state, _ = self.put(state, Finish(state.lane.active.run_id, "completed", "", 0))
            except AssertionError as broken:
                raise AssertionError(f"finishing all there is after this: {broken}") from broken
        if state.oracle.live:
            raise AssertionError(f"finishing all there is leaves {state.oracle.states()}")


def _states(lane: Lane) -> dict[str, RunState]:
    states = {run.run_id: lane.state_of(run.run_id) for run in lane.live}
    return {run_id: state for run_id, state in states.items() if state is not None}


def _recorded(before: State, command: Command, events: tuple[LaneEvent, ...], lane: Lane) -> dict[str, RunRecord]:
    """The records of the live Runs after these events; together they have to say what the Lane says."""
    records = dict(before.records)
    if isinstance(command, Submit):
        records[command.run_id] = RunRecord(command.run_id, "s", "w", 0, _PROMPT, _OPTIONS, command.content, 0)
    records.update(project(records, events, lane))
    for event in events:
        if isinstance(event, RunEnded):
            ended = records.pop(event.run_id)
            if (ended.state, ended.outcome, ended.folded_into) != ("ended", event.outcome, event.folded_into):
                raise AssertionError(f"the record does not show {event}: {ended}")
    stored = restore(LaneRecord("s", lane.version, lane.next_seq, lane.mark), list(records.values()))
    if stored != lane:
        raise AssertionError(f"the records say {stored}, the events say {lane}")
    return records


_PROMPT, _OPTIONS = Prompt(""), RunOptions()


# --- one history -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class History:
    """One history, told command by command. A broken promise is an AssertionError that tells all of it."""

    checker: Checker = field(default_factory=Checker)
    state: State = field(default_factory=State)
    told: list[tuple[Command, str]] = field(default_factory=list)
    events: list[LaneEvent] = field(default_factory=list)

    def put(self, command: Command) -> tuple[LaneEvent, ...] | KedgeError:
        try:
            self.state, answer = self.checker.put(self.state, command)
        except AssertionError as broken:
            raise AssertionError(f"{broken}\n{self.text(command)}") from broken
        self.told.append((command, _answer_text(answer)))
        if isinstance(answer, tuple):
            self.events.extend(answer)
        return answer

    def check_replay(self) -> None:
        """The log alone gives the same Lane."""
        lane = Lane()
        for event in self.events:
            lane = self.checker.apply(lane, event)
        if lane != self.state.lane:
            raise AssertionError(f"the log gives {lane}, not {self.state.lane}\n{self.text()}")

    def text(self, last: Command | None = None) -> str:
        told = [*self.told, *([(last, "here")] if last is not None else [])]
        return "\n".join(f"{number:4}  {_command_text(done)} -> {then}" for number, (done, then) in enumerate(told, 1))


def _command_text(command: Command) -> str:
    hidden = ("now", "content", "accepted_content", "reason")
    given = [f"{getattr(command, name)}" for name in command.__struct_fields__ if name not in hidden]
    if isinstance(command, Submit) and command.accepted_content is not None:
        given.append("again" if command.content == command.accepted_content else "again with other content")
    return " ".join([type(command).__name__, *given])


def _answer_text(answer: tuple[LaneEvent, ...] | KedgeError) -> str:
    if isinstance(answer, KedgeError):
        return type(answer).__name__
    return ", ".join(_event_text(event) for event in answer) or "nothing"


def _event_text(event: LaneEvent) -> str:
    extra = ""
    if isinstance(event, RunAccepted):
        extra = f" seq {event.seq}"
    elif isinstance(event, RunEnded):
        extra = f" {event.outcome}"
    return f"{type(event).__name__} {event.run_id}{extra}"


# --- all histories ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may happen in one history. Finishes need no bound: there is one for each Run."""

    prompts: int = 3
    cancels: int = 2
    crashes: int = 1
    #: Cancels of one Run by its id.
    run_cancels: int = 1
    #: Steps that each Run may begin.
    steps: int = 2
    moves: int = 0
    clears: int = 0
    #: Queued Runs that are told to fold.
    late_folds: int = 0
    #: How often one Run is resumed before it is ended.
    resumes_max: int = 1
    queue_runs_max: int = 100


@dataclass(frozen=True, slots=True)
class WalkResult:
    states: int
    #: Commands put to the Lane, the refused ones and those that change nothing included.
    transitions: int
    #: States in which every Run has ended.
    ended: int
    rows: frozenset[Row]


class Used(NamedTuple):
    """Times a command of some kind had an effect in a history: what `Bounds` limits."""

    cancels: int = 0
    crashes: int = 0
    run_cancels: int = 0
    moves: int = 0
    clears: int = 0
    late_folds: int = 0


@dataclass(frozen=True, slots=True)
class Transition:
    """A command that had an effect, and the states it led from and to. (No history: many lead through it.)"""

    before: tuple[State, Used]
    command: Command
    events: tuple[LaneEvent, ...]
    after: tuple[State, Used]


#: The commands that `Used` counts, in its order.
_KINDS: tuple[type[Command], ...] = (Cancel, Recover, CancelRun, MoveRun, ClearQueue, FoldRun)
#: The places of the live Runs' records belong to a state too: the order of the queue is read from them.
_Key = tuple[Lane, Oracle, Used, tuple[int, ...]]

#: `reject` is left to the commands that are tried for their refusal.
_WHEN_BUSY: tuple[WhenBusy, ...] = ("queue", "fold", "interrupt")


def walk(
    *,
    prompts: int = 3,
    cancels: int = 2,
    crashes: int = 1,
    run_cancels: int = 1,
    steps: int = 2,
    moves: int = 0,
    clears: int = 0,
    late_folds: int = 0,
    resumes_max: int = 1,
    queue_runs_max: int = 100,
    decide: Decide = real.decide,
    apply: Apply = real.apply,
    tell: Callable[[Transition], None] | None = None,
) -> WalkResult:
    """Every history within these bounds (see `Bounds`). AssertionError tells the first that breaks a promise.

    `tell` is told of each transition, once: for whoever wants to compare more than how many there are."""
    bounds = Bounds(
        prompts, cancels, crashes, run_cancels, steps, moves, clears, late_folds, resumes_max, queue_runs_max
    )
    return _Walk(bounds, Checker(decide, apply), tell).result()


@dataclass(slots=True)
class _Walk:
    bounds: Bounds
    checker: Checker
    tell: Callable[[Transition], None] | None = None
    #: How each state was first reached: breadth first, so by a shortest history.
    came_from: dict[_Key, tuple[_Key, Command] | None] = field(default_factory=dict)
    ahead: deque[tuple[_Key, State]] = field(default_factory=deque)
    drained: set[Lane] = field(default_factory=set)

    def result(self) -> WalkResult:
        transitions = ended = 0
        self._reached(State(), Used(), None)
        while self.ahead:
            key, state = self.ahead.popleft()
            ended += not state.oracle.live
            for command in _commands(state.oracle, self.bounds, key[2]):
                transitions += 1
                try:
                    after, answer = self.checker.put(state, command)
                    if after is not state:
                        used = _used(key[2], command)
                        self._reached(after, used, (key, command))
                        if self.tell and isinstance(answer, tuple):
                            self.tell(Transition((state, key[2]), command, answer, (after, used)))
                except AssertionError as broken:
                    raise AssertionError(f"{broken}\n{self._history(key, command)}") from broken
        return WalkResult(len(self.came_from), transitions, ended, frozenset(self.checker.rows))

    def _reached(self, state: State, used: Used, by: tuple[_Key, Command] | None) -> None:
        # The version only counts events; without it, histories of different length meet in one state.
        lane = replace(state.lane, version=0)
        key = (lane, state.oracle, used, tuple(state.records[run.run_id].queue_order for run in lane.live))
        if key in self.came_from:
            return
        self.came_from[key] = by
        state = State(lane, state.oracle, state.records)
        if lane not in self.drained:
            self.checker.check_drains(state)
            self.drained.add(lane)
        self.ahead.append((key, state))

    def _history(self, key: _Key, last: Command) -> str:
        commands: list[Command] = []
        while (by := self.came_from[key]) is not None:
            key, command = by
            commands.append(command)
        history = History(Checker(self.checker.decide, self.checker.apply))
        for command in reversed(commands):
            history.put(command)
        return history.text(last)


def _used(used: Used, command: Command) -> Used:
    return Used(*(count + isinstance(command, kind) for count, kind in zip(used, _KINDS, strict=True)))


def _commands(oracle: Oracle, bounds: Bounds, used: Used) -> Iterator[Command]:
    """Every command worth trying here, the ones that must be refused or change nothing included."""
    cancels, crashes, run_cancels, moves, clears, late_folds = used
    if len(oracle.accepted) < bounds.prompts:
        run_id = f"r{len(oracle.accepted) + 1}"
        for when_busy in _WHEN_BUSY:
            yield Submit(run_id, f"content of {run_id}", when_busy, 0, queue_runs_max=bounds.queue_runs_max)
    if cancels < bounds.cancels:
        yield Cancel(0)
    if crashes < bounds.crashes:
        yield Recover("resume", 0, bounds.resumes_max)
        yield Recover("end", 0, bounds.resumes_max)
    if run_cancels < bounds.run_cancels:
        for run_id in (*oracle.line, *((oracle.active,) if oracle.active else ())):
            yield CancelRun(run_id, 0)
    if oracle.active is not None:
        if oracle.steps < bounds.steps or oracle.active in oracle.told:
            yield BeginStep(oracle.active, 0)
            yield BeginStep(oracle.active, 0, folds=False)
        yield Finish(oracle.active, "completed", "", 0)
        yield Finish(oracle.active, "failed", "", 0)
        yield Finish(oracle.active, "stopped", "", 0)
    if clears < bounds.clears:
        yield ClearQueue(0)
    if moves < bounds.moves:
        for run_id in oracle.line:
            for before in (*oracle.line, None):
                yield MoveRun(run_id, before, 0)
    if late_folds < bounds.late_folds:
        for run_id in oracle.line:
            yield FoldRun(run_id, 0)
    yield from _without_effect(oracle)


def _without_effect(oracle: Oracle) -> Iterator[Command]:
    """Commands that come too late, twice or at a bad time. They cost no bound: the state stays what it is."""
    for run_id, _, content in oracle.accepted:
        yield Submit(run_id, content, "queue", 0, content)
        yield Submit(run_id, "other content", "fold", 0, content)
        if run_id != oracle.active:
            yield Finish(run_id, "completed", "", 0)
            yield BeginStep(run_id, 0)
        if run_id not in oracle.line:
            yield MoveRun(run_id, None, 0)
            yield FoldRun(run_id, 0)
        yield EditRun(run_id, 0)
    for run_id in (*oracle.inside, *oracle.ended):
        yield CancelRun(run_id, 0)
    if oracle.active is None:
        yield from (Cancel(0), Recover("resume", 0), Recover("end", 0), ClearQueue(0))
    else:
        yield Submit("rejected", "", "reject", 0)
        yield Submit("too many", "", "queue", 0, queue_runs_max=len(oracle.line))
        yield Submit("too many", "", "fold", 0, queue_runs_max=len(oracle.line))
