"""The specification of the Lane: TLC checks proof/spec/Lane.tla, and reaches the same states as the walk.

The states, the transitions between them, and the events appended by each command must all be equal. Where the two
disagree, one of them is wrong, and the failure shows the first differences.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import assert_never

import pytest
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
from kedge.core.lane import Lane
from proof.figures import IS_LONG, proof, size
from proof.tlc import NEEDS_JAVA, Graph, Module, Value, disagreements, run_tlc, text_of
from proof.walk import Bounds, Decide, State, Transition, Used, walk

#: Positional: prompts, cancels, crashes.
SMALL = Bounds(2, 1, 1)
SMALLEST = Bounds(2, 1, 1, steps=1)
CI_SCOPES = (
    SMALL,
    Bounds(2, 1, 2, resumes_max=2),
    Bounds(3, 1, 1, late_folds=1),
    Bounds(3, 1, 0, steps=1, clears=1, queue_runs_max=1),
    Bounds(4, 0, 0, 0, steps=1, moves=1, authors=2, queue_runs_per_user_max=2),
    Bounds(3, 2, 1, run_cancels=2, moves=1, clears=1),
)
LONG_SCOPES = (
    Bounds(3, 1, 1, moves=2, clears=1, late_folds=2),
    Bounds(4, 1, 1),
    Bounds(5, 0, 0, steps=0, authors=2),
    Bounds(4, 2, 1, run_cancels=2, moves=1, clears=1),
)

pytestmark = NEEDS_JAVA

LANE = Module(
    "Lane", ("nextSeq", "mark", "active", "queue", "folding", "folded", "steps", "resumes", "stopped", "second", "used")
)


# --- the walk in the notation of TLC ----------------------------------------------------------------------------------

NO_RUN = 0


def walked(bounds: Bounds, decide: Decide = real.decide) -> Graph:
    graph = Graph({_state(State(), Used())})

    def on_transition(transition: Transition) -> None:
        after = _state(*transition.after)
        graph.states.add(after)
        append = text_of(tuple(_event(event) for event in transition.events))
        graph.transitions.add((_state(*transition.before), text_of(_command(transition.command)), append, after))

    walk(**asdict(bounds), decide=decide, on_transition=on_transition)
    return graph


def _state(state: State, used: Used) -> str:
    lane, active = state.lane, state.lane.active
    values: dict[str, Value] = {
        "nextSeq": lane.next_seq,
        "mark": lane.mark,
        "active": active.seq if active else NO_RUN,
        "queue": tuple(run.seq for run in lane.queue),
        "folding": frozenset(run.seq for run in lane.queue if run.folds),
        "folded": frozenset(run.seq for run in lane.folded),
        "steps": active.steps if active else 0,
        "resumes": active.resumes if active else 0,
        "stopped": active is not None and active.cancelled,
        "second": frozenset(run.seq for run in lane.live if run.author),
        "used": {_camel(name): count for name, count in used._asdict().items()},
    }
    return " ".join(f"{name}={text_of(values[name])}" for name in LANE.state)


def _command(command: Command) -> tuple[Value, ...]:
    kind = type(command).__name__
    match command:
        case Submit(run_id=run_id, when_busy=when_busy, author=author):
            return (kind, _number(run_id), when_busy, author != "")
        case CancelRun(run_id=run_id) | EditRun(run_id=run_id) | FoldRun(run_id=run_id):
            return (kind, _number(run_id))
        case BeginStep(run_id=run_id, folds=folds):
            return (kind, _number(run_id), folds)
        case MoveRun(run_id=run_id, before=before):
            return (kind, _number(run_id), _number(before))
        case Finish(run_id=run_id, outcome=outcome):
            return (kind, _number(run_id), outcome)
        case Recover(on_crash=on_crash):
            return (kind, on_crash)
        case Cancel() | ClearQueue():
            return (kind,)
        case _:
            assert_never(command)


def _event(event: LaneEvent) -> tuple[Value, ...]:
    kind, run = type(event).__name__, _number(event.run_id)
    match event:
        case RunAccepted(seq=seq, folds=folds, before=before):
            return (kind, seq, folds, _number(before))
        case StepStarted(step=step):
            return (kind, run, step)
        case RunFolded(into=other) | RunMoved(before=other):
            return (kind, run, _number(other))
        case CancelMarked(mark=mark):
            return (kind, run, mark)
        case RunEnded(outcome=outcome, folded_into=host):
            return (kind, run, outcome, _number(host))
        case RunStarted() | RunResumed() | RunEdited() | FoldMarked() | RunCancelMarked():
            return (kind, run)
        case _:
            assert_never(event)


def _number(run_id: str | None) -> int:
    """Return the seq of a Run: the walk names the Run with seq 1 \"r1\"."""
    return NO_RUN if run_id is None else int(run_id.removeprefix("r"))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


# --- the comparison ---------------------------------------------------------------------------------------------------


def lane_disagreements(specified: Graph, walked: Graph) -> list[str]:
    return disagreements(specified, walked, "the Lane")


def scope_id(bounds: Bounds) -> str:
    """Return the test id of a scope: its three main bounds, and all others that differ from the default."""
    named = {"prompts", "cancels", "crashes"}
    shown = {name: bound for name, bound in asdict(bounds).items() if name in named or bound != getattr(Bounds(), name)}
    return " ".join(f"{bound}-{name}" for name, bound in shown.items())


@pytest.mark.proof
@pytest.mark.parametrize("bounds", CI_SCOPES + LONG_SCOPES * IS_LONG, ids=scope_id)
def test_tlc_and_walk_reach_the_same_states(bounds: Bounds, tmp_path: Path) -> None:
    with proof("G1", "states of the Lane that TLC and the walk agree on", "disagreements") as figure:
        checked = run_tlc(tmp_path, LANE, asdict(bounds))
        assert checked.passed, checked.text
        specified, lane = checked.graph, walked(bounds)
        differences = lane_disagreements(specified, lane)
        figure.count, figure.wrong = len(specified.states & lane.states), len(differences)
        figure.notes["transitions agreed on"] = len(specified.transitions & lane.transitions)
        assert not differences, "\n".join([f"{len(differences)} disagreements, such as", *differences[:5]])
        assert checked.count == lane.arrivals


@pytest.mark.proof
def test_every_accepted_run_ends_if_active_runs_finish(tmp_path: Path) -> None:
    bounds = Bounds(3, 2, 1, moves=1, clears=1) if IS_LONG else SMALL
    with proof("G8", "states of the Lane from which TLC finds every Run to end", "stuck") as figure:
        checked = run_tlc(tmp_path, LANE, asdict(bounds), "LaneEnds.cfg")
        assert checked.passed, checked.text
        figure.count = checked.count


# --- seeded faults ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpecFault:
    """A wrong line for the specification, and the expected message."""

    right: str
    wrong: str
    message: str
    config: str = ""
    bounds: Bounds = SMALLEST


#: The small size runs the first six: TLC takes one or two seconds to start.
SPEC_FAULTS = {
    "a cancel covers one run too few": SpecFault(
        "Covered(run) == run <= mark", "Covered(run) == run < mark", "CancelCoversExactlyEarlierRuns is violated"
    ),
    "a cancel of an idle lane leaves a mark": SpecFault(
        "CancelHasEffect == IsBusy /\\ ",
        "CancelHasEffect == ~IsBusy \\/ ",
        'only the specification answers <<"Cancel">>',
    ),
    "the reported outcome overrides a cancel": SpecFault(
        'IF IsStopping THEN "cancelled" ELSE reported', "reported", "ActiveEndsCancelledIffCovered is violated"
    ),
    "a stopping run folds others": SpecFault(
        "/\\ ~IsStopping\n    /\\ steps < Steps", "/\\ steps < Steps", 'only the specification answers <<"BeginStep"'
    ),
    "a folded run has another outcome than its host": SpecFault(
        "Ended(run, outcome, active)", "Ended(run, reported, active)", "FoldedEndWithTheirHost is violated"
    ),
    "active runs need not finish": SpecFault(
        " /\\ WF_vars(Finishes /\\ KeepAuthors /\\ ReadLog)",
        "",
        "Temporal properties were violated",
        config="LaneEnds.cfg",
    ),
    "a cancel covers the next run too": SpecFault(
        "/\\ mark' = nextSeq - 1\n", "/\\ mark' = nextSeq\n", "NumbersNeverDecrease is violated"
    ),
    "a folded run is forgotten": SpecFault(
        "Map(Sorted(folded), LAMBDA run : Ended(run, outcome, active))", "<<>>", "OneEndForEachRun is violated"
    ),
    "a prompt waits on an idle lane": SpecFault(
        "CASE ~IsBusy -> StartNow", "CASE ~IsBusy -> Enqueue(FALSE, FALSE)", "NeverIdleWithAQueue is violated"
    ),
    "authors take no turns": SpecFault(
        "LET round == Cardinality(Queued(isSecond)) + 1",
        "LET round == Cardinality(Queued(isSecond)) + 2",
        'only the Lane answers <<"Submit",4,',
        bounds=Bounds(4, 0, 0, 0, steps=0, authors=2),
    ),
    "a run without a step is not resumed": SpecFault(
        '(onCrash = "resume" \\/ steps = 0)', 'onCrash = "resume"', 'only the Lane answers <<"Recover","end">>'
    ),
}


@pytest.mark.proof
@pytest.mark.parametrize("name", list(SPEC_FAULTS)[: size(6, len(SPEC_FAULTS))])
def test_fault_of_the_specification_is_found(name: str, tmp_path: Path) -> None:
    fault, text = SPEC_FAULTS[name], LANE.text
    assert text.count(fault.right) == 1
    with proof("G9", "faults of the specification, found by TLC or by the comparison", "not found") as figure:
        figure.count = 1
        checked = run_tlc(tmp_path, LANE, asdict(fault.bounds), fault.config, text.replace(fault.right, fault.wrong))
        messages = lane_disagreements(checked.graph, walked(fault.bounds)) if checked.passed else [checked.text]
        assert fault.message in "\n".join(messages)


def skips_a_seq(lane: Lane, command: Command) -> tuple[LaneEvent, ...]:
    events = real.decide(lane, command)
    return tuple(replace(event, seq=event.seq + 1) if isinstance(event, RunAccepted) else event for event in events)


def marks_covered_runs_again(lane: Lane, command: Command) -> tuple[LaneEvent, ...]:
    events = real.decide(lane, command)
    if isinstance(command, Submit) and command.when_busy == "interrupt" and lane.active and len(events) == 1:
        return (CancelMarked(lane.next_seq - 1, lane.active.run_id, 0), *events)
    return events


def ends_the_queue_in_reverse(lane: Lane, command: Command) -> tuple[LaneEvent, ...]:
    events = real.decide(lane, command)
    return (*events[:1], *reversed(events[1:])) if isinstance(command, Cancel) else events


def folds_in_reverse(lane: Lane, command: Command) -> tuple[LaneEvent, ...]:
    events = real.decide(lane, command)
    return (*reversed(events[:-1]), *events[-1:]) if isinstance(command, BeginStep) else events


LANE_FAULTS = (
    skips_a_seq,
    marks_covered_runs_again,
    ends_the_queue_in_reverse,
    folds_in_reverse,
)


@pytest.mark.proof
def test_fault_that_only_the_specification_finds(tmp_path: Path) -> None:
    """Faults that break no promise of the oracle, so that the walk alone passes."""
    bounds = Bounds(3, 1, 0, steps=1)
    with proof("G9", "faults of the Lane that only the specification knows of", "not found") as figure:
        checked = run_tlc(tmp_path, LANE, asdict(bounds))
        assert checked.passed, checked.text
        assert lane_disagreements(checked.graph, walked(bounds)) == []
        for fault in LANE_FAULTS:
            figure.count += 1
            assert lane_disagreements(checked.graph, walked(bounds, fault)), fault.__name__
