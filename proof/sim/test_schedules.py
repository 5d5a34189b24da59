"""Simulations of the real engine, server and client in simulated time, with all kinds of faults (G1, G2, G4, G8).

A failing seed is reduced and printed with the command that replays it.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from msgspec.structs import replace

from proof.figures import IS_LONG, Figure, proof, size, slices
from proof.sim.plan import Act, Plan, draw
from proof.sim.subprocess_run import SeedResults, run_seeds
from proof.sim.world import Report, simulate_all

#: A large run continues after the seeds of the last one: repeated seeds find nothing new.
SCHEDULES = "simulated schedules of the real engine, server and client"
#: In the small size. The replayed seeds and the faults at each position below are a thousand more.
CI_SEEDS = 19_000
ALL_SEEDS = slices(CI_SEEDS, 100_000, 5_000 if IS_LONG else 1_000, SCHEDULES)
#: The limit of one large run, which uses the time that is left.
LARGEST_RUN_SEEDS = 1_000_000
#: All kinds of faults: each occurs in any thousand simulations.
FAULT_KINDS = {
    "crash",
    "orderly restart",
    "connection cut",
    "reader that does not read",
    "client that leaves",
    "store error before the commit",
    "store error after the commit",
    "store read error",
    "store out of reach",
    "overloaded provider",
    "failing provider",
    "hang process",
    "stubborn process",
    "leaver process",
    "clock that is set",
    "full context",
    "title",
    "typed quick process",
    "typed hang process",
}


def record(figure: Figure, seeds: range, results: SeedResults) -> None:
    figure.count += len(seeds)
    figure.wrong += len(results.bad)
    figure.seeds_upto = max(figure.seeds_upto, seeds.stop)
    for kind in ("submit", "crash", "cancel", "connection cut"):
        figure.notes[kind] = int(figure.notes.get(kind, 0)) + results.counts.get(kind, 0)
    assert results.bad == [], results.first


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", ALL_SEEDS, ids=str)
def test_every_schedule_keeps_every_promise(seeds: range) -> None:
    with proof("G1 G2 G4 G8", "simulated schedules of the real engine, server and client") as figure:
        results = run_seeds(seeds)
        record(figure, seeds, results)
    missing = FAULT_KINDS - results.counts.keys()
    assert len(seeds) < 1_000 or not missing, f"no simulation had: {missing}"


@pytest.mark.long
@pytest.mark.timeout(5400)
@pytest.mark.skipif("KEDGE_UNTIL" not in os.environ, reason="the last part of scripts/long, which sets the time limit")
def test_schedules_for_the_time_left_keep_every_promise() -> None:
    """Run until the time in KEDGE_UNTIL: machines differ, and a large run must end."""
    first = ALL_SEEDS[-1].stop
    last = ALL_SEEDS[0].start + LARGEST_RUN_SEEDS
    # Threads take batches in order and finish each: no seed is skipped.
    batches = (range(start, min(start + 2_000, last)) for start in range(first, last, 2_000))
    lock = threading.Lock()

    def run_batches(figure: Figure) -> None:
        while time.time() < float(os.environ["KEDGE_UNTIL"]) and not figure.wrong:
            with lock:
                seeds = next(batches, None)
            if seeds is None:
                return
            results = run_seeds(seeds)
            with lock:
                record(figure, seeds, results)

    with proof("G1 G2 G4 G8", "simulated schedules of the real engine, server and client") as figure:
        cores = os.cpu_count() or 1
        with ThreadPoolExecutor(cores) as threads:
            for done in [threads.submit(run_batches, figure) for _ in range(cores)]:
                done.result()


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", slices(0, 10_000, 500) or [range(CI_SEEDS, CI_SEEDS + 500)], ids=str)
def test_a_seed_replays_byte_for_byte(seeds: range) -> None:
    with proof("G11", "seeds run twice, with different hash seeds", "that differ") as figure:
        once = run_seeds(seeds, "--digests", PYTHONHASHSEED="1")
        again = run_seeds(seeds, "--digests", PYTHONHASHSEED="2")
        figure.count = len(seeds)
        both = zip(seeds, once.digests, again.digests, strict=True)
        different = [seed for seed, first, second in both if first != second]
        figure.wrong = len(different)
        assert once.bad == [], once.first
        assert all(once.digests)
        assert not different, different


def busy_plans(plan: Plan, seeds: int) -> Iterator[Plan]:
    """Return the same acts with other random numbers and schedules."""
    for seed in range(seeds):
        yield replace(plan, seed=seed, schedule=("random", "fifo", "priority")[seed % 3])


def with_fault_at_each_position(plan: Plan, fault: Callable[[int], Act], kind: str) -> Iterator[Report]:
    """Run the plan with the fault at the first position, the second, and so on, until it comes too late to happen."""
    plans = (replace(plan, acts=(*plan.acts, fault(n))) for n in itertools.count(1))
    with closing(simulate_all(plans)) as reports:
        for report in reports:
            if not report.counts[kind]:
                assert not report.broken, report.broken
                return
            yield report


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_nth_write_may_fail_for_each_n(when: str) -> None:
    """G7 for the engine: each write of one busy plan fails once."""
    busy = replace(
        draw(0),
        acts=(
            Act(0.0, "submit", run=0, script="p0:say 2 run quick;run risky run quick;say 3"),
            Act(0.0, "submit", run=1, script="p1:ask;say 2", when_busy="queue"),
            Act(0.2, "submit", run=2, script="p2:say 2", when_busy="fold"),
            Act(0.3, "submit", run=3, script="p3:agent 2;say 1", when_busy="queue"),
            Act(2.5, "cancel_run", run=3),
            Act(3.0, "submit", run=4, script="p4:say 4", when_busy="interrupt"),
        ),
        clients=1,
        sessions=1,
        answers=("allow",),
        streams=((None, True),),
    )
    with proof("G7", "failing writes of the engine, each once") as figure:
        for plan in busy_plans(busy, size(6, 30)):
            before = figure.count
            for report in with_fault_at_each_position(
                plan, lambda n: Act(0.0, "nth", run=n, own_id=when == "after"), f"store error {when} the commit"
            ):
                figure.count += 1
                figure.wrong += bool(report.broken)
                assert not report.broken, (report.plan.seed, report.plan.acts[-1], report.broken)
            # The plan has at least so many writes, and none was skipped.
            assert figure.count - before > 15, plan.seed


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_a_server_may_be_killed_between_any_two_calls() -> None:
    busy = replace(
        draw(0),
        acts=(
            Act(0.0, "submit", run=0, script="p0:say 2 run quick;say 2"),
            Act(0.0, "submit", run=1, script="p1:run risky;say 1", when_busy="queue"),
            Act(0.3, "submit", run=2, script="p2:say 2", when_busy="fold"),
            Act(1.0, "cancel"),
            Act(1.0, "submit", run=3, script="p3:say 2"),
        ),
        clients=2,
        sessions=1,
        answers=("allow", "deny"),
        streams=((None, True), (0, False)),
    )
    with proof("G1 G2 G4 G8", "kills of a simulated server, between any two calls of its loop") as figure:
        for plan in busy_plans(busy, size(1, 9)):
            for report in with_fault_at_each_position(plan, lambda n: Act(0.0, "kill", run=n), "crash"):
                figure.count += 1
                figure.wrong += bool(report.broken)
                assert not report.broken, (report.plan.seed, report.plan.acts[-1], report.broken)
        assert figure.count > 200
