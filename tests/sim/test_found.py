"""What the simulator has found: each as a small plan, tried at many moments, since its seed will mean another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kedge.testing.sim.plan import Act, Plan, draw
from kedge.testing.sim.world import simulate_all


def plan(seed: int, *acts: Act) -> Plan:
    """One client that allows everything and sees everything, in one session."""
    return replace(
        draw(seed), acts=acts, clients=1, sessions=1, answers=("allow",), streams=((None, True),), schedule="random"
    )


@pytest.mark.found(
    "seed 3547 of the simulator",
    "A server that stopped while an agent's child was being accepted did not begin the child, and its parent waited "
    "for its end: ten seconds later it ended with a failed clean-up. A parent waits for children at work only.",
)
def test_a_server_that_stops_while_a_child_is_accepted_does_not_wait_for_it() -> None:
    submit = Act(0.0, "submit", script="p0:agent 2;wait 2 say 1")
    plans = [plan(seed, submit, Act(0.003 * seed, "restart", for_s=0.2)) for seed in range(120)]
    assert [report.broken for report in simulate_all(plans) if report.broken] == []


@pytest.mark.found(
    "seed 11418 of the simulator",
    "The store failed once while an answer was streaming, and the words it was given then were missing in the middle "
    "of the answer after a crash. What may or may not be stored is put again, with the whole message.",
)
def test_words_the_store_failed_to_take_are_not_missing_after_a_crash() -> None:
    submit = Act(0.0, "submit", script="p0:say 2 wait 1 say 2 wait 1 say 2")
    for after in (False, True):
        plans = [
            plan(
                seed,
                submit,
                Act(0.0, "nth", run=2 + seed % 5, own_id=after),
                Act(0.4 + 0.03 * seed, "crash", for_s=0.2),
            )
            for seed in range(100)
        ]
        assert [report.broken for report in simulate_all(plans) if report.broken] == []
