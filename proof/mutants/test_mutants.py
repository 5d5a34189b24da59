"""G9: the tests bite. Each seeded fault is found, in a process of its own; without one nothing is found."""

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
from proof.mutants.table import ALL, CONTROLS, MUTANTS

#: Fewer would not be worth the name. (The 33 of the Lane in tests/core come on top.)
MUTANTS_MIN = 45
#: How long what is left running would go on: a number that nobody else has. Seconds.
LEFT = f"86{os.getpid()}"


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


def test_there_are_enough_mutants_and_each_has_its_own_name() -> None:
    assert len(MUTANTS) == len(ALL) >= MUTANTS_MIN


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_the_text_of_a_mutant_is_in_its_module_once_and_the_fault_compiles(mutant: Mutant) -> None:
    """So that none vanishes when the code around it changes."""
    assert mutant.old != mutant.new
    compile(mutant.text(), mutant.module, "exec")
    assert (mutant.finder == "tests") == bool(mutant.tests)


@pytest.mark.proof
@pytest.mark.timeout(MUTANT_S_MAX + 10)
@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Mutant, forks: Forks) -> None:
    if mutant.module.startswith("warden.") and not contained():
        pytest.skip("a faulty warden is let loose only where `unshare` can hold what escapes it")
    with proof("G9", "seeded mutants", "survivors") as figure:
        found = forks.find(mutant, from_memory=not IS_LONG)
        figure.count = 1
        figure.notes = {f"found by {mutant.finder}": 1}
        if IS_LONG and (seed := re.match(r"seed (\d+)", found)):
            figure.notes["schedules needed in all"] = int(seed[1]) + 1
        assert found, f"{mutant.hurts} Replay: python -m proof.mutants '{mutant.name}'"


@pytest.mark.timeout(MUTANT_S_MAX + 10)
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_without_a_fault_nothing_is_found(control: Mutant, forks: Forks) -> None:
    """The same ways, through the hook and the copy, with a text that is put in place of itself."""
    assert forks.find(control, size(60, SCHEDULES_MAX)) == ""


def _faulty(code: str, finder: Finder = "walk", tests: tuple[str, ...] = ()) -> Mutant:
    """One that does this while it is imported."""
    old = "from __future__ import annotations\n"
    return Mutant("faulty", "core.lane", old, f"{old}{code}\n", "", finder, tests)


@pytest.mark.parametrize(
    ("mutant", "why"),
    [
        (_faulty("raise OSError('no luck')"), "no luck"),
        (_faulty("import os; os._exit(0)"), "ended with 0"),
        (_faulty("import os; os.abort()"), "ended with -6"),
        (_faulty("raise OSError('no luck')", "tests", ("tests/core/test_lane.py",)), "no luck"),
        (_faulty("", "tests", ("tests/core/test_lane.py::test_that_is_not_there",)), "test_that_is_not_there"),
    ],
    ids=["raises", "exits", "aborts", "tests that cannot be imported", "a test that is not there"],
)
def test_a_process_that_breaks_is_an_error_and_no_find(mutant: Mutant, why: str, forks: Forks) -> None:
    with pytest.raises(RuntimeError, match=why):
        forks.find(mutant, 1)


def test_a_process_that_hangs_is_an_error_and_the_next_mutant_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proof.mutants.forks.STOP_S_MAX", 0.01)
    with Forks() as forks:
        with monkeypatch.context() as shorter:
            shorter.setattr("proof.mutants.forks.MUTANT_S_MAX", 1.0)
            with pytest.raises(RuntimeError, match="ended with None"):
                forks.find(_faulty("while True: pass"), 1)
        assert forks.find(CONTROLS[0], 1) == ""


#: Simulations of which one takes too long, in the midst of a task. In a process of its own, as finders want it.
TOO_LONG = """
import os, sys
from proof.sim.world import World
from proof.mutants import finders
hangs, swallows, finders.SCHEDULE_S_MAX, finders.SCHEDULE_AGAIN_S_MAX = map(int, sys.argv[1:])
lives, prepare = [], World._prepare
async def stuck(world):
    lives.append(world.plan.seed)
    try:
        while world.plan.seed == 1 and lives.count(1) <= hangs:
            pass
    except BaseException:
        if not swallows:
            raise
        world.broken.append("what came of the alarm")
    await prepare(world)
World._prepare = stuck
print(finders.by_sim([1, 2]), lives.count(1), 2 in lives, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("swallows", [0, 1], ids=["alarm let through", "alarm taken for something else"])
@pytest.mark.parametrize(
    ("hangs", "again_s", "says"),
    [(1, 30, " 2 True"), (2, 2, "seed 1: one call of the event loop never ends 2 False")],
    ids=["machine that stalls", "simulation that hangs"],
)
def test_a_simulation_that_takes_too_long_is_a_find_if_it_does_so_twice(
    hangs: int, again_s: int, says: str, swallows: int
) -> None:
    command = [sys.executable, "-c", TOO_LONG, *map(str, (hangs, swallows, 2, again_s))]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(SRC)}, capture_output=True, text=True)
    assert done.stdout == f"{says}\n", done.stderr


def test_what_a_process_leaves_running_ends_with_its_try(forks: Forks) -> None:
    if not contained():
        pytest.skip("only `unshare` holds what leaves its session")
    stays = f"import subprocess; subprocess.Popen(['sleep', '{LEFT}'], start_new_session=True)"
    sleeping = f"sleep\0{LEFT}\0".encode()
    assert forks.find(replace(_faulty(stays), finder="sim"), 1) == ""
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if _read(path) == sleeping]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""
