"""G9: the proofs find faults. Each mutant is found, in a process of its own; without a fault nothing is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from proof.figures import IS_LONG, proof, size
from proof.mutants.apply import ROOT, SRC, Finder, Mutant
from proof.mutants.finders import SCHEDULES_MAX
from proof.mutants.forks import MUTANT_S_MAX, Forks, contained
from proof.mutants.table import ALL, CONTROLS, problems

#: Faults found by simulations, walk and tests. (The 33 faults of the Lane in proof/test_lane_faults.py come on top.)
MUTANTS_MIN = 190
#: Duration of a process that is left running: a number that no other process uses. Seconds.
LEFT_S = f"86{os.getpid()}"


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


def test_every_anchor_matches_one_place() -> None:
    assert problems() == []
    assert len(ALL) >= MUTANTS_MIN


@pytest.mark.timeout(MUTANT_S_MAX + 10)
@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Mutant, forks: Forks) -> None:
    if mutant.module.startswith("warden.") and not contained():
        pytest.skip("a faulty warden runs only where `unshare` can contain the processes that escape it")
    with proof("G9", "seeded mutants", "survivors") as figure:
        result = forks.find(mutant, recorded_first=not IS_LONG)
        figure.count = 1
        figure.notes = {f"found by {mutant.finder}": 1}
        if IS_LONG and (seed := re.match(r"seed (\d+)", result)):
            figure.notes["schedules needed in all"] = int(seed[1]) + 1
        assert result, f"{mutant.effect} Replay: python -m proof.mutants '{mutant.name}'"


@pytest.mark.timeout(MUTANT_S_MAX + 10)
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_without_a_fault_nothing_is_found(control: Mutant, forks: Forks) -> None:
    """The import hook and the copy, with code that is replaced by itself."""
    assert forks.find(control, size(60, SCHEDULES_MAX)) == ""


def _faulty(code: str, finder: Finder = "walk", tests: tuple[str, ...] = ()) -> Mutant:
    """A mutant that runs this code when its module is imported."""
    return Mutant("faulty", "core.lane:", "LIFECYCLE: ... = ...", f"OLD\n{code}", "", finder, tests)


@pytest.mark.parametrize(
    ("mutant", "reason"),
    [
        (_faulty("raise OSError('unlucky')"), "unlucky"),
        (_faulty("import os; os._exit(0)"), "ended with 0"),
        (_faulty("import os; os.abort()"), "ended with -6"),
        (_faulty("raise OSError('unlucky')", "tests", ("tests/core/test_lane.py",)), "unlucky"),
        (_faulty("", "tests", ("tests/core/test_lane.py::test_that_is_missing",)), "test_that_is_missing"),
    ],
    ids=["raises", "exits", "aborts", "tests that cannot be imported", "a missing test"],
)
def test_a_broken_process_is_an_error_not_a_find(mutant: Mutant, reason: str, forks: Forks) -> None:
    with pytest.raises(RuntimeError, match=reason):
        forks.find(mutant, 1)


def test_after_a_hanging_process_the_next_mutant_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proof.mutants.forks.STOP_S_MAX", 0.01)
    with Forks() as forks:
        with monkeypatch.context() as shorter:
            shorter.setattr("proof.mutants.forks.MUTANT_S_MAX", 1.0)
            with pytest.raises(RuntimeError, match="ended with None"):
                forks.find(_faulty("while True: pass"), 1)
        assert forks.find(CONTROLS[0], 1) == ""


#: Simulations of which one takes too long, in the middle of a task. In a process of its own, as the finders need it.
TOO_LONG = """
import os, sys
from proof.sim.world import World
from proof.mutants import finders
hangs, swallows, finders.SCHEDULE_S_MAX, finders.RETRY_S_MAX = map(int, sys.argv[1:])
seeds, prepare = [], World._prepare
async def stuck(world):
    seeds.append(world.plan.seed)
    try:
        while world.plan.seed == 1 and seeds.count(1) <= hangs:
            pass
    except BaseException:
        if not swallows:
            raise
        world.broken.append("caused by the alarm")
    await prepare(world)
World._prepare = stuck
print(finders.by_sim([1, 2]), seeds.count(1), 2 in seeds, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("swallows", [0, 1], ids=["alarm propagates", "alarm is swallowed"])
@pytest.mark.parametrize(
    ("hangs", "retry_s", "output"),
    [(1, 30, " 2 True"), (2, 2, "seed 1: one call of the event loop never ends 2 False")],
    ids=["machine stalls", "simulation hangs"],
)
def test_a_simulation_that_hangs_twice_is_a_find(hangs: int, retry_s: int, output: str, swallows: int) -> None:
    command = [sys.executable, "-c", TOO_LONG, *map(str, (hangs, swallows, 2, retry_s))]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(SRC)}, capture_output=True, text=True)
    assert done.stdout == f"{output}\n", done.stderr


def test_processes_left_running_end_with_their_mutant(forks: Forks) -> None:
    if not contained():
        pytest.skip("only `unshare` contains processes that leave their session")
    code = f"import subprocess; subprocess.Popen(['sleep', '{LEFT_S}'], start_new_session=True)"
    sleeping = f"sleep\0{LEFT_S}\0".encode()
    assert forks.find(replace(_faulty(code), finder="sim"), 1) == ""
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if _read(path) == sleeping]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""
