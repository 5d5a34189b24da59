"""Whole simulations: real engine, server and client in made-up time, and all that can go wrong (G1, G2, G4, G8).

A bad seed is made small and printed with the one line that replays it.
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
from proof.sim.many import Lived, live_through
from proof.sim.plan import Act, Plan, draw
from proof.sim.world import Report, simulate_all

#: As below: a large run goes on where the last one ended, since one that repeats its seeds finds nothing new.
SCHEDULES = "simulated schedules of the real engine, server and client"
#: In the small size. The seeds that are lived through twice, and the faults at each place below, are a thousand more.
CI_SEEDS = 19_000
ALL_SEEDS = slices(CI_SEEDS, 100_000, 5_000 if IS_LONG else 1_000, SCHEDULES)
#: Of one large run, with those that it has time for when all else is done.
LARGEST_RUN_SEEDS = 1_000_000
#: Everything that is to happen to the server and its clients: each kind is seen in any thousand simulations.
FAULT_KINDS = {
    *("crash", "orderly restart", "connection cut", "reader that does not read", "client that leaves"),
    *("store error before the commit", "store error after the commit", "store read error", "store out of reach"),
    *("overloaded provider", "failing provider", "hang process", "stubborn process", "leaver process"),
    *("clock that is set", "full context", "title", "typed quick process", "typed hang process"),
}


def tell(figure: Figure, seeds: range, lived: Lived) -> None:
    figure.count += len(seeds)
    figure.wrong += len(lived.bad)
    figure.seeds_upto = max(figure.seeds_upto, seeds.stop)
    for what in ("submit", "crash", "cancel", "connection cut"):
        figure.notes[what] = int(figure.notes.get(what, 0)) + lived.counted.get(what, 0)
    assert lived.bad == [], lived.first


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", ALL_SEEDS, ids=str)
def test_every_schedule_keeps_every_promise(seeds: range) -> None:
    with proof("G1 G2 G4 G8", "simulated schedules of the real engine, server and client") as figure:
        lived = live_through(seeds)
        tell(figure, seeds, lived)
    never = FAULT_KINDS - lived.counted.keys()
    assert len(seeds) < 1_000 or not never, f"no simulation had: {never}"


@pytest.mark.long
@pytest.mark.timeout(5400)
@pytest.mark.skipif(
    "KEDGE_UNTIL" not in os.environ, reason="the last of scripts/long, which says how much time is left"
)
def test_every_schedule_that_there_is_time_for_keeps_every_promise() -> None:
    """As many as can be until the second that KEDGE_UNTIL names: machines differ, and a large run has to end."""
    first = ALL_SEEDS[-1].stop
    last = ALL_SEEDS[0].start + LARGEST_RUN_SEEDS
    # Each is taken by one thread, in order, and whatever was taken is lived through: no seed is left out.
    batches = (range(start, min(start + 2_000, last)) for start in range(first, last, 2_000))
    one_at_a_time = threading.Lock()

    def live(figure: Figure) -> None:
        while time.time() < float(os.environ["KEDGE_UNTIL"]) and not figure.wrong:
            with one_at_a_time:
                seeds = next(batches, None)
            if seeds is None:
                return
            lived = live_through(seeds)
            with one_at_a_time:
                tell(figure, seeds, lived)

    with proof("G1 G2 G4 G8", "simulated schedules of the real engine, server and client") as figure:
        cores = os.cpu_count() or 1
        with ThreadPoolExecutor(cores) as threads:
            for done in [threads.submit(live, figure) for _ in range(cores)]:
                done.result()


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", slices(0, 10_000, 500) or [range(CI_SEEDS, CI_SEEDS + 500)], ids=str)
def test_a_seed_replays_byte_for_byte(seeds: range) -> None:
    with proof("G11", "seeds lived through twice, with other hash seeds", "that differ") as figure:
        once = live_through(seeds, "--digests", PYTHONHASHSEED="1")
        again = live_through(seeds, "--digests", PYTHONHASHSEED="2")
        figure.count = len(seeds)
        both = zip(seeds, once.digests, again.digests, strict=True)
        different = [seed for seed, first, second in both if first != second]
        figure.wrong = len(different)
        assert once.bad == [], once.first
        assert all(once.digests)
        assert not different, different


def busy_plans(plan: Plan, seeds: int) -> Iterator[Plan]:
    """The same acts with chances and orders of their own."""
    for seed in range(seeds):
        yield replace(plan, seed=seed, schedule=("random", "fifo", "priority")[seed % 3])


def with_fault_at_each_place(plan: Plan, fault: Callable[[int], Act], happened: str) -> Iterator[Report]:
    """The fault at the first place, at the second, and so on, until it would come too late to happen."""
    plans = (replace(plan, acts=(*plan.acts, fault(n))) for n in itertools.count(1))
    with closing(simulate_all(plans)) as reports:
        for report in reports:
            if not report.counted[happened]:
                assert not report.broken, report.broken
                return
            yield report


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_nth_write_may_fail_for_each_n(when: str) -> None:
    """G7 for the engine: of one busy plan, write after write fails."""
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
            for report in with_fault_at_each_place(
                plan, lambda n: Act(0.0, "nth", run=n, own_id=when == "after"), f"store error {when} the commit"
            ):
                figure.count += 1
                figure.wrong += bool(report.broken)
                assert not report.broken, (report.plan.seed, report.plan.acts[-1], report.broken)
            # As many writes there are at least: the fault has a name that is counted, and none was passed by.
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
            for report in with_fault_at_each_place(plan, lambda n: Act(0.0, "kill", run=n), "crash"):
                figure.count += 1
                figure.wrong += bool(report.broken)
                assert not report.broken, (report.plan.seed, report.plan.acts[-1], report.broken)
        assert figure.count > 200
