"""Histories of a Lane: one at a time (`History`), or all of them within bounds (`walk`).

`walk` tries every command in every reachable state within its bounds, on the real `decide` and `apply`, and checks each
answer against the oracle, the LIFECYCLE table and the records. It explores each state once, since the future of a state
does not depend on how it was reached. That makes checking all interleavings affordable.

    result = walk(prompts=3, cancels=2, crashes=1)      AssertionError with the shortest history that breaks a promise

Pass `decide` and `apply` to check another implementation.
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
    """A Lane, the oracle for it, and the records of its live Runs."""

    lane: Lane = field(default_factory=Lane)
    oracle: Oracle = field(default_factory=Oracle)
    records: dict[str, RunRecord] = field(default_factory=dict)


@dataclass(slots=True)
class Checker:
    """Executes commands on a Lane and checks the answers."""

    decide: Decide = real.decide
    apply: Apply = real.apply
    #: Rows of LIFECYCLE used so far.
    rows: set[Row] = field(default_factory=set)

    def execute(self, state: State, command: Command) -> tuple[State, tuple[LaneEvent, ...] | KedgeError]:
        refusal = state.oracle.refusal(command)
        try:
            events = self.decide(state.lane, command)
        except KedgeError as error:
            if type(error) is not refusal:
                raise AssertionError(f"refused with {error!r}; expected: {refusal}") from error
            return state, error
        if refusal is not None:
            raise AssertionError(f"must be refused with {refusal.__name__}, but returned {events}")
        if isinstance(command, Cancel | CancelRun | ClearQueue):
            answer, expected = {run.run_id for run in covered_by(state.lane, command)}, state.oracle.covered_by(command)
            if answer != expected:
                raise AssertionError(f"covered_by returned {answer}; expected: {set(expected)}")
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
                        raise AssertionError(f"{run_id} changes from {was} to {is_now} by {event}: not in LIFECYCLE")
                    self.rows.add(row)
        return lane

    def check_drains(self, state: State) -> None:
        """Finish the active Run repeatedly and check that every Run ends."""
        for _ in range(len(state.oracle.live) + 1):
            if state.lane.active is None:
                break
            try:
                state, _ = self.execute(state, Finish(state.lane.active.run_id, "completed", "", 0))
            except AssertionError as broken:
                raise AssertionError(f"when finishing all Runs after this: {broken}") from broken
        if state.oracle.live:
            raise AssertionError(f"after finishing all Runs these are left: {state.oracle.states()}")


def _states(lane: Lane) -> dict[str, RunState]:
    states = {run.run_id: lane.state_of(run.run_id) for run in lane.live}
    return {run_id: state for run_id, state in states.items() if state is not None}


def _recorded(before: State, command: Command, events: tuple[LaneEvent, ...], lane: Lane) -> dict[str, RunRecord]:
    """Return the records of the live Runs after these events. Check that the Lane restored from them is the same."""
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
        raise AssertionError(f"the records give {stored}, the events give {lane}")
    return records


_PROMPT, _OPTIONS = Prompt(""), RunOptions()


# --- one history -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class History:
    """One history, command by command. A broken promise raises an AssertionError that contains the history."""

    checker: Checker = field(default_factory=Checker)
    state: State = field(default_factory=State)
    entries: list[tuple[Command, str]] = field(default_factory=list)
    events: list[LaneEvent] = field(default_factory=list)

    def execute(self, command: Command) -> tuple[LaneEvent, ...] | KedgeError:
        try:
            self.state, answer = self.checker.execute(self.state, command)
        except AssertionError as broken:
            raise AssertionError(f"{broken}\n{self.text(command)}") from broken
        self.entries.append((command, _answer_text(answer)))
        if isinstance(answer, tuple):
            self.events.extend(answer)
        return answer

    def check_replay(self) -> None:
        """Check that replaying the log gives the same Lane."""
        lane = Lane()
        for event in self.events:
            lane = self.checker.apply(lane, event)
        if lane != self.state.lane:
            raise AssertionError(f"the log gives {lane}, not {self.state.lane}\n{self.text()}")

    def text(self, last: Command | None = None) -> str:
        entries = [*self.entries, (last, "here")] if last is not None else self.entries
        return "\n".join(
            f"{number:4}  {_command_text(command)} -> {answer}" for number, (command, answer) in enumerate(entries, 1)
        )


def _command_text(command: Command) -> str:
    hidden = ("now", "content", "accepted_content", "reason", "queue_runs_per_user_max")
    values = [getattr(command, name) for name in command.__struct_fields__ if name not in hidden]
    parts = [f"{value}" for value in values if value != ""]
    if isinstance(command, Submit) and command.accepted_content is not None:
        parts.append("again" if command.content == command.accepted_content else "again with other content")
    return " ".join([type(command).__name__, *parts])


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
    """The bounds of one history. Finishes need none: there is one for each Run."""

    prompts: int = 3
    cancels: int = 2
    crashes: int = 1
    #: Cancels of a single Run by id.
    run_cancels: int = 1
    #: Steps of each Run.
    steps: int = 2
    moves: int = 0
    clears: int = 0
    #: Fold commands for queued Runs.
    late_folds: int = 0
    #: Resumes of a Run before recovery ends it.
    resumes_max: int = 1
    queue_runs_max: int = 100
    #: Users that submit prompts: the owner, or the owner and a named user.
    authors: int = 1
    queue_runs_per_user_max: int = 100


@dataclass(frozen=True, slots=True)
class WalkResult:
    states: int
    #: Executed commands, including refused ones and those without an effect.
    transitions: int
    #: States in which every Run has ended.
    ended: int
    rows: frozenset[Row]


class Used(NamedTuple):
    """The number of commands of each kind that had an effect in a history. `Bounds` limits them."""

    cancels: int = 0
    crashes: int = 0
    run_cancels: int = 0
    moves: int = 0
    clears: int = 0
    late_folds: int = 0


@dataclass(frozen=True, slots=True)
class Transition:
    """A command that had an effect, and the states before and after it. Part of many histories."""

    before: tuple[State, Used]
    command: Command
    events: tuple[LaneEvent, ...]
    after: tuple[State, Used]


#: The commands that `Used` counts, in its order.
_KINDS: tuple[type[Command], ...] = (Cancel, Recover, CancelRun, MoveRun, ClearQueue, FoldRun)
#: The last item is the `queue_order` of the live Runs' records, from which the order of the queue is restored.
_Key = tuple[Lane, Oracle, Used, tuple[int, ...]]

#: The owner, and a named user.
AUTHORS = ("", "ann")
#: `reject` is tried in `_without_effect`.
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
    authors: int = 1,
    queue_runs_per_user_max: int = 100,
    decide: Decide = real.decide,
    apply: Apply = real.apply,
    on_transition: Callable[[Transition], None] | None = None,
) -> WalkResult:
    """Check every history within these bounds (see `Bounds`). Raise AssertionError for the first broken promise.

    `on_transition` is called once for each transition."""
    bounds = Bounds(
        prompts,
        cancels,
        crashes,
        run_cancels,
        steps,
        moves,
        clears,
        late_folds,
        resumes_max,
        queue_runs_max,
        authors,
        queue_runs_per_user_max,
    )
    return _Walk(bounds, Checker(decide, apply), on_transition).result()


@dataclass(slots=True)
class _Walk:
    bounds: Bounds
    checker: Checker
    on_transition: Callable[[Transition], None] | None = None
    #: The first way each state was reached. The search is breadth first, so it is a shortest history.
    came_from: dict[_Key, tuple[_Key, Command] | None] = field(default_factory=dict)
    pending: deque[tuple[_Key, State]] = field(default_factory=deque)
    drained: set[Lane] = field(default_factory=set)

    def result(self) -> WalkResult:
        transitions = ended = 0
        self._visit(State(), Used(), None)
        while self.pending:
            key, state = self.pending.popleft()
            ended += not state.oracle.live
            for command in _commands(state.oracle, self.bounds, key[2]):
                transitions += 1
                try:
                    after, answer = self.checker.execute(state, command)
                    if after is not state:
                        used = _used(key[2], command)
                        self._visit(after, used, (key, command))
                        if self.on_transition and isinstance(answer, tuple):
                            self.on_transition(Transition((state, key[2]), command, answer, (after, used)))
                except AssertionError as broken:
                    raise AssertionError(f"{broken}\n{self._history(key, command)}") from broken
        return WalkResult(len(self.came_from), transitions, ended, frozenset(self.checker.rows))

    def _visit(self, state: State, used: Used, by: tuple[_Key, Command] | None) -> None:
        # The version only counts events. Without it, histories of different lengths can reach the same state.
        lane = replace(state.lane, version=0)
        key = (lane, state.oracle, used, tuple(state.records[run.run_id].queue_order for run in lane.live))
        if key in self.came_from:
            return
        self.came_from[key] = by
        state = State(lane, state.oracle, state.records)
        if lane not in self.drained:
            self.checker.check_drains(state)
            self.drained.add(lane)
        self.pending.append((key, state))

    def _history(self, key: _Key, last: Command) -> str:
        commands: list[Command] = []
        while (by := self.came_from[key]) is not None:
            key, command = by
            commands.append(command)
        history = History(Checker(self.checker.decide, self.checker.apply))
        for command in reversed(commands):
            history.execute(command)
        return history.text(last)


def _used(used: Used, command: Command) -> Used:
    return Used(*(count + isinstance(command, kind) for count, kind in zip(used, _KINDS, strict=True)))


def _commands(oracle: Oracle, bounds: Bounds, used: Used) -> Iterator[Command]:
    """Yield the commands to try in this state, including those that must be refused or have no effect."""
    cancels, crashes, run_cancels, moves, clears, late_folds = used
    if len(oracle.accepted) < bounds.prompts:
        run_id = f"r{len(oracle.accepted) + 1}"
        for author in AUTHORS[: bounds.authors]:
            limits = (bounds.queue_runs_max, author, bounds.queue_runs_per_user_max)
            for when_busy in _WHEN_BUSY:
                yield Submit(run_id, f"content of {run_id}", when_busy, 0, None, *limits)
    if cancels < bounds.cancels:
        yield Cancel(0)
    if crashes < bounds.crashes:
        yield Recover("resume", 0, bounds.resumes_max)
        yield Recover("end", 0, bounds.resumes_max)
    if run_cancels < bounds.run_cancels:
        for run_id in (*oracle.queue, *((oracle.active,) if oracle.active else ())):
            yield CancelRun(run_id, 0)
    if oracle.active is not None:
        if oracle.steps < bounds.steps or oracle.active in oracle.covered:
            yield BeginStep(oracle.active, 0)
            yield BeginStep(oracle.active, 0, folds=False)
        yield Finish(oracle.active, "completed", "", 0)
        yield Finish(oracle.active, "failed", "", 0)
        yield Finish(oracle.active, "stopped", "", 0)
    if clears < bounds.clears:
        yield ClearQueue(0)
    if moves < bounds.moves:
        for run_id in oracle.queue:
            for before in (*oracle.queue, None):
                yield MoveRun(run_id, before, 0)
    if late_folds < bounds.late_folds:
        for run_id in oracle.queue:
            yield FoldRun(run_id, 0)
    yield from _without_effect(oracle)


def _without_effect(oracle: Oracle) -> Iterator[Command]:
    """Yield commands that are late, repeated or refused. No bound counts them: they do not change the state."""
    for run_id, _, content in oracle.accepted:
        yield Submit(run_id, content, "queue", 0, content)
        yield Submit(run_id, "other content", "fold", 0, content)
        if run_id != oracle.active:
            yield Finish(run_id, "completed", "", 0)
            yield BeginStep(run_id, 0)
        if run_id not in oracle.queue:
            yield MoveRun(run_id, None, 0)
            yield FoldRun(run_id, 0)
        yield EditRun(run_id, 0)
    for run_id in (*oracle.folded, *oracle.ended):
        yield CancelRun(run_id, 0)
    if oracle.active is None:
        yield from (Cancel(0), Recover("resume", 0), Recover("end", 0), ClearQueue(0))
    else:
        yield Submit("rejected", "", "reject", 0)
        yield Submit("too many", "", "queue", 0, queue_runs_max=len(oracle.queue))
        yield Submit("too many", "", "fold", 0, queue_runs_max=len(oracle.queue))
        own = oracle.queued_of(AUTHORS[1])
        yield Submit("too many", "", "queue", 0, author=AUTHORS[1], queue_runs_per_user_max=own)
