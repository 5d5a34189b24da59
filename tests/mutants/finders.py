"""What finds a mutant: the simulator, the exhaustive walk, or tests that are there anyway."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.mutants.apply import ROOT, Mutant, copy_with, install

#: A mutant that so many simulations do not find has survived.
SCHEDULES_MAX = 2_000
#: A simulation takes hundredths of a second; one that goes round in circles without ever waiting ends here. Seconds.
SCHEDULE_S_MAX = 8
#: Tests of which one hangs end here. That is no find but an error: on a busy machine anything may take long. Seconds.
TESTS_S_MAX = 600.0


#: Where mutants were found before, by name: tried first in each commit's tests. `python -m tests.mutants --seeds`
#: writes it anew; a seed that finds nothing any more costs time, no more.
SEEDS = Path(__file__).with_name("seeds.json")


def find(mutant: Mutant, schedules: int = SCHEDULES_MAX, *, from_memory: bool = False) -> str:
    """By what it was found, in one line; empty: it has survived."""
    if mutant.finder == "tests":
        return by_tests(mutant)
    install(mutant.module, mutant.text())
    if mutant.finder == "walk":
        return by_walk()
    known = json.loads(SEEDS.read_text()).get(mutant.name) if from_memory else None
    return by_sim([*([] if known is None else [known]), *range(schedules)])


def by_sim(seeds: list[int]) -> str:
    # Imported here, with the fault in place.
    plan, world = import_module("kedge.testing.sim.plan"), import_module("kedge.testing.sim.world")
    reports = world.simulate_all(map(plan.draw, seeds))
    signal.signal(signal.SIGALRM, _too_long)
    for seed in seeds:
        signal.alarm(SCHEDULE_S_MAX)
        try:
            report = next(reports)
        except Exception as error:  # the simulator, too, may stumble over a fault: whoever runs it sees that
            return f"seed {seed}: {type(error).__name__}: {error}"
        if report.broken:
            return f"seed {seed}: {report.broken[0]}"
    return ""


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError("one call of the event loop never ends")


def by_walk() -> str:
    walk = import_module("kedge.testing.histories").walk
    try:
        walk(prompts=3, cancels=1, moves=1, clears=1, late_folds=1, queue_runs_max=100)
    except AssertionError as broken:
        return f"walk: {str(broken).splitlines()[0]}"
    return ""


@cache
def contained() -> tuple[str, ...]:
    """What to put before a command so that all it starts ends with it: a faulty warden lets processes go that start
    themselves anew for ever. Empty where the machine has no such thing."""
    for user in ((), ("--user", "--map-root-user")):
        command = ("unshare", *user, "--pid", "--fork", "--kill-child", "--mount-proc")
        if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    return ()


def by_tests(mutant: Mutant) -> str:
    with tempfile.TemporaryDirectory() as directory:
        copy_with(mutant, Path(directory))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KEDGE_")}
        # What is installed beside the two plugins that the tests need takes longer to load than most tests take.
        environment |= {"PYTHONPATH": directory, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        plugins = ("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout")
        pytest = (sys.executable, "-m", "pytest", *plugins, "-x", "-o", f"pythonpath={directory} .")
        done = subprocess.run(
            [*contained(), *pytest, "--tb=line", *mutant.tests],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TESTS_S_MAX,
            check=False,
        )
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    # Tests that do not run prove nothing: a mistake in the selection must not pass for a find.
    if done.returncode != 1 or not failed:
        raise RuntimeError(
            f"pytest {' '.join(mutant.tests)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
    return f"tests: {failed[0]}"
