"""What finds a mutant: the simulator, the exhaustive walk, or tests that are there anyway."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from proof.mutants.apply import Mutant, install

#: A mutant that so many simulations do not find has survived.
SCHEDULES_MAX = 2_000
#: A simulation takes hundredths of a second; one that goes round in circles without ever waiting ends here. So may a
#: good one, on a machine that stalls: each such one is lived through again, for much longer. Seconds.
SCHEDULE_S_MAX, SCHEDULE_AGAIN_S_MAX = 5, 30
#: Of pytest, that the tests need.
PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout")
#: What the process that tries a mutant prints, in its directory.
OUTPUT = "output"

#: Where mutants were found before, by name: tried first in each commit's tests. `python -m proof.mutants --seeds`
#: writes it anew; a seed that finds nothing any more costs time, no more.
SEEDS = Path(__file__).with_name("seeds.json")


def find(mutant: Mutant, schedules: int, directory: Path, *, from_memory: bool = False) -> str:
    """By what it was found, in one line; empty: it has survived. For a process of its own that has loaded nothing of
    ours yet."""
    if mutant.finder == "tests":
        return by_tests(mutant, directory)
    warnings.simplefilter("ignore")  # of tasks that were frozen
    install(mutant.module, mutant.text())
    if mutant.finder == "walk":
        return by_walk()
    known = json.loads(SEEDS.read_text()).get(mutant.name) if from_memory else None
    return by_sim([*([] if known is None else [known]), *range(schedules)])


class TooLong(KeyboardInterrupt):
    """The alarm has rung. One that the simulated loop and its tasks let through, and no `except Exception` takes."""


def by_sim(seeds: list[int]) -> str:
    # Imported here, with the fault in place.
    plan, world = import_module("proof.sim.plan"), import_module("proof.sim.world")
    reports = world.simulate_all(map(plan.draw, seeds))
    for number, seed in enumerate(seeds, 1):
        try:
            broken = next_broken(reports, SCHEDULE_S_MAX)
        except TooLong:
            reports.close()
            try:
                broken = next_broken(world.simulate_all([plan.draw(seed)]), SCHEDULE_AGAIN_S_MAX)
            except TooLong:
                broken = "one call of the event loop never ends"
            reports = world.simulate_all(map(plan.draw, seeds[number:]))
        if broken:
            return f"seed {seed}: {broken}"
    return ""


def next_broken(reports: Generator[Any, None, None], s_max: int) -> str:
    """What the next simulation finds. TooLong, if the alarm has rung in it: what came of it may have come of that."""
    rang = False

    def ring(number: int, frame: object) -> None:
        nonlocal rang
        rang = True
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(s_max)
    try:
        found = next(reports).broken
        broken = found[0] if found else ""
    except Exception as error:  # the simulator, too, may stumble over a fault: whoever runs it sees that
        broken = f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if rang:
        raise TooLong
    return broken


def by_walk() -> str:
    walk = import_module("proof.walk").walk
    try:
        walk(prompts=3, cancels=1, moves=1, clears=1, late_folds=1, queue_runs_max=100)
    except AssertionError as broken:
        return f"walk: {str(broken).splitlines()[0]}"
    return ""


def by_tests(mutant: Mutant, directory: Path) -> str:
    """With the package that lies in `directory`, here and in all that the tests start."""
    sys.path.insert(0, str(directory))
    # What is installed beside the two plugins that the tests need takes longer to load than most tests take.
    os.environ |= {"PYTHONPATH": str(directory), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = ("-x", "--tb=line", f"--basetemp={directory / 'tmp'}", "-o", f"pythonpath={directory} .")
    code = pytest.main([*options, *mutant.tests], [import_module(plugin) for plugin in PLUGINS])
    sys.stdout.flush()
    told = (directory / OUTPUT).read_text("utf-8", "replace")
    package = import_module("kedge").__file__
    assert package is not None
    assert Path(package).is_relative_to(directory), f"the tests had another package: {package}"
    if code == pytest.ExitCode.OK:
        return ""
    failed = [line for line in told.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    # Tests that do not run prove nothing: a mistake in the selection must not pass for a find.
    if code != pytest.ExitCode.TESTS_FAILED or not failed:
        raise RuntimeError(f"pytest {' '.join(mutant.tests)} ended with {code}")
    return f"tests: {failed[0]}"
