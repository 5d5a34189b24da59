"""The table of all mutants, from the TOML files in this directory."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

from proof.mutants.apply import ROOT, Mutant

TABLES = sorted(Path(__file__).parent.glob("*.toml"))


def _load(path: Path) -> list[Mutant]:
    return [
        Mutant(**{**row, "finder": "tests" if "tests" in row else row.get("finder", "sim")} | _tests(row))
        for row in tomllib.loads(path.read_text("utf-8"))["mutant"]
    ]


def _tests(row: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {"tests": tuple(row.get("tests", ()))}


ALL: tuple[Mutant, ...] = tuple(mutant for path in TABLES for mutant in _load(path))
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in ALL}

#: No faults: each replaces code by the same code, through each of the finders.
CONTROLS: tuple[Mutant, ...] = (
    Mutant("control of the simulator", "core.lane:_cancel", "lane.next_seq - 1", "OLD"),
    Mutant(
        "control of the cluster", "store.memory_leases:MemoryLeases.claim", "lease.token + 1", "OLD", finder="cluster"
    ),
    Mutant("control of the walk", "core.lane:_cancel", "lane.next_seq - 1", "OLD", finder="walk"),
    Mutant(
        "control of the tests",
        "warden.child:_exec_tool",
        "os.setsid()",
        "OLD",
        finder="tests",
        tests=(
            "tests/store/test_contract_approvals.py",
            "tests/warden/test_processes.py::test_a_process_leads_its_own_session_without_a_terminal",
            "tests/conformance/test_bad_access.py::test_from_a_foreign_page_no_route_answers",
        ),
    ),
)


def problems() -> list[str]:
    """Return one line for each mutant that cannot be applied or whose tests do not exist."""
    lines = []
    for mutant in (*ALL, *CONTROLS):
        try:
            tree = mutant.tree()
            compile(tree, mutant.module, "exec")
            if mutant not in CONTROLS and ast.dump(tree) == _dump(mutant.path):
                lines.append(f"mutant {mutant.name!r} ({mutant.at}): the replacement changes nothing")
        except (LookupError, SyntaxError) as error:
            lines.append(str(error))
        for test in mutant.tests:
            file, _, name = test.partition("::")
            if (name and name.partition("[")[0] not in _test_names(file)) or not (ROOT / file).exists():
                lines.append(f"mutant {mutant.name!r}: test not found: {test}")
    names = [mutant.name for mutant in ALL]
    return lines + [f"mutant {name!r} is defined twice" for name in MUTANTS if names.count(name) > 1]


@cache
def _dump(path: Path) -> str:
    return ast.dump(ast.parse(path.read_text("utf-8")))


@cache
def _test_names(file: str) -> set[str]:
    path = ROOT / file
    nodes = ast.walk(ast.parse(path.read_text("utf-8"))) if path.exists() else ()
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
