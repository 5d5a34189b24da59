"""The finders of mutants: the simulator, with one server or a cluster, the exhaustive walk, and existing tests."""

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
#: A simulation takes hundredths of a second; one that loops without ever waiting ends here. On a machine that stalls a
#: good one may take as long, so it is repeated with the second limit. Seconds.
SCHEDULE_S_MAX, RETRY_S_MAX = 5, 30
#: The modules that draw the plans of simulations.
PLANS = {"sim": "proof.sim.plan", "cluster": "proof.sim.cluster_plan"}
#: The pytest plugins that the tests need.
PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout")
#: The output file of the process that runs a mutant, in its directory.
OUTPUT = "output"

#: The seed that finds each mutant, by name: tried first by `scripts/prove`. `python -m proof.mutants --seeds` writes
#: it. A seed that no longer finds its mutant only costs time.
SEEDS = Path(__file__).with_name("seeds.json")


def find(mutant: Mutant, schedules: int, directory: Path, *, recorded_first: bool = False) -> str:
    """Return one line on what found the mutant, or "" if it survived. The process must not have imported kedge."""
    if mutant.finder == "tests":
        return by_tests(mutant, directory)
    warnings.simplefilter("ignore")  # about frozen tasks
    install(mutant.module, mutant.tree())
    if mutant.finder == "walk":
        return by_walk()
    known = json.loads(SEEDS.read_text()).get(mutant.name) if recorded_first else None
    return by_sim([*([] if known is None else [known]), *range(schedules)], PLANS[mutant.finder])


class TooLong(KeyboardInterrupt):
    """The alarm. The simulated loop and its tasks let a KeyboardInterrupt pass, and `except Exception` does too."""


def by_sim(seeds: list[int], plans: str = "proof.sim.plan") -> str:
    # Imported here, after the fault is installed.
    plan, world = import_module(plans), import_module("proof.sim.world")
    reports = world.simulate_all(map(plan.draw, seeds))
    for number, seed in enumerate(seeds, 1):
        try:
            broken = next_broken(reports, SCHEDULE_S_MAX)
        except TooLong:
            reports.close()
            try:
                broken = next_broken(world.simulate_all([plan.draw(seed)]), RETRY_S_MAX)
            except TooLong:
                broken = "one call of the event loop never ends"
            reports = world.simulate_all(map(plan.draw, seeds[number:]))
        if broken:
            return f"seed {seed}: {broken}"
    return ""


def next_broken(reports: Generator[Any, None, None], s_max: int) -> str:
    """Return the first broken promise of the next simulation. Raises TooLong if the alarm went off during it: the alarm
    itself may have caused the result."""
    rang = False

    def ring(number: int, frame: object) -> None:
        nonlocal rang
        rang = True
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(s_max)
    try:
        promises = next(reports).broken
        broken = promises[0] if promises else ""
    except Exception as error:  # a fault may crash the simulator too, which its user would see
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
        walk(prompts=4, cancels=0, crashes=0, run_cancels=0, steps=0, authors=2)
    except AssertionError as broken:
        return f"walk: {str(broken).splitlines()[0]}"
    return ""


def by_tests(mutant: Mutant, directory: Path) -> str:
    """Run the tests with the package in `directory`, in this process and in all that the tests start."""
    sys.path.insert(0, str(directory))
    # Loading all installed plugins would take longer than most tests.
    os.environ |= {"PYTHONPATH": str(directory), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = ("-x", "--tb=line", f"--basetemp={directory / 'tmp'}", "-o", f"pythonpath={directory} .")
    code = pytest.main([*options, *mutant.tests], [import_module(plugin) for plugin in PLUGINS])
    sys.stdout.flush()
    output = (directory / OUTPUT).read_text("utf-8", "replace")
    package = import_module("kedge").__file__
    assert package is not None
    assert Path(package).is_relative_to(directory), f"the tests imported another package: {package}"
    if code == pytest.ExitCode.OK:
        return ""
    failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    # Tests that cannot run prove nothing: a wrong test name must not count as a find.
    if code != pytest.ExitCode.TESTS_FAILED or not failed:
        raise RuntimeError(f"pytest {' '.join(mutant.tests)} ended with {code}")
    return f"tests: {failed[0]}"
