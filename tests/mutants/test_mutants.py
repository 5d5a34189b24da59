"""G9: the tests bite. Each seeded fault is found, in a process of its own; without one nothing is found."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.mutants.apply import ROOT, Mutant
from tests.mutants.finders import SCHEDULES_MAX, by_tests, contained
from tests.mutants.table import ALL, CONTROLS, MUTANTS
from tests.proof import IS_LONG, proof, size

#: Fewer would not be worth the name. (The 33 of the Lane in tests/core come on top.)
MUTANTS_MIN = 45
#: On a busy machine two thousand simulations take minutes. Seconds.
MUTANT_S_MAX = 900


def told_by(mutant: Mutant, schedules: int = SCHEDULES_MAX, memory: str = "") -> str:
    """What `python -m tests.mutants` says of it."""
    name = mutant.name
    if mutant.finder == "tests":  # which have a process of their own anyway
        found = by_tests(mutant)
        return f"found by {found}" if found else "survives"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.mutants", name, str(schedules), memory],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=MUTANT_S_MAX,
        check=False,
    )
    told = done.stdout.strip()
    # A child that breaks has found nothing.
    assert told.startswith(f"{name}: "), f"{told}\n{done.stderr[-3000:]}"
    assert done.returncode == (0 if told.endswith(": survives") else 1)
    return told.removeprefix(f"{name}: ")


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
def test_a_mutant_is_found(mutant: Mutant) -> None:
    if mutant.module.startswith("warden.") and not contained():
        pytest.skip("a faulty warden is let loose only where `unshare` can hold what escapes it")
    with proof("G9", "seeded mutants", "survivors") as figure:
        found = told_by(mutant, memory="" if IS_LONG else "remembered")
        figure.count = 1
        figure.notes = {f"found by {mutant.finder}": 1}
        if IS_LONG and (seed := re.match(r"found by seed (\d+)", found)):
            figure.notes["schedules needed in all"] = int(seed[1]) + 1
        assert found != "survives", f"{mutant.hurts} Replay: python -m tests.mutants '{mutant.name}'"


@pytest.mark.timeout(MUTANT_S_MAX + 10)
@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_without_a_fault_nothing_is_found(control: Mutant) -> None:
    """The same ways, through the hook and the copy, with a text that is put in place of itself."""
    assert told_by(control, size(60, SCHEDULES_MAX)) == "survives"
