"""Regression tests of bugs found by the simulator: small plans at many times, since the meaning of a seed changes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from proof.sim.plan import HOLDER, Act, Plan, draw
from proof.sim.world import simulate_all


def assert_kept(plans: list[Plan], *faults: str) -> None:
    """Assert that every plan keeps every promise, and that the faults happened in many of them."""
    reports = list(simulate_all(plans))
    for kind in faults:
        assert sum(bool(report.counts[kind]) for report in reports) > len(plans) / 4, kind
    assert [report.broken for report in reports if report.broken] == []


def plan(seed: int, *acts: Act, nodes: int = 1) -> Plan:
    """Return a plan with one client in one session, which allows every call and receives every event."""
    return replace(
        draw(seed),
        acts=acts,
        clients=1,
        sessions=1,
        answers=("allow",),
        streams=((None, True),),
        schedule="random",
        nodes=nodes,
    )


@pytest.mark.found(
    "seed 3547 of the simulator",
    "A server that stopped while an agent's child was being accepted did not begin the child, and its parent waited "
    "for its end: ten seconds later it ended with a failed clean-up. A parent waits only for running children.",
)
def test_shutdown_does_not_wait_for_an_unstarted_child() -> None:
    submit = Act(0.0, "submit", script="p0:agent 2;wait 2 say 1")
    plans = [plan(seed, submit, Act(0.003 * seed, "restart", for_s=0.2)) for seed in range(120)]
    assert_kept(plans, "orderly restart")


@pytest.mark.found(
    "seed 11418 of the simulator",
    "The store failed once while an answer was streaming, and the words it was given then were missing in the middle "
    "of the answer after a crash. What may or may not be stored is put again, with the whole message.",
)
def test_text_of_a_failed_write_survives_a_crash() -> None:
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
        assert_kept(plans, "crash", f"store error {'after' if after else 'before'} the commit")


@pytest.mark.found(
    "seed 7812 of the simulator",
    "A session was deleted while the store failed once, and its Lane was evicted although a submit still used it: the "
    "second try to delete made another, saw nothing to wait for, and removed a session with a live Run.",
)
def test_a_failed_deletion_leaves_no_second_lane() -> None:
    plans = [
        plan(
            seed,
            Act(0.0, "nth", run=1 + seed % 8, own_id=bool(seed % 2)),
            Act(0.001 * (seed % 9), "submit", script="p0:run broken;say 4"),
            Act(0.001 * (seed % 9), "delete", for_s=0.5),
            Act(0.001 * (seed % 7), "delete", for_s=0.5),
        )
        for seed in range(400)
    ]
    assert_kept(plans)


@pytest.mark.found(
    "seed 18242 of the simulator",
    "The store failed while an agent's child was accepted, and then its parent was cancelled: the parent gave up "
    "waiting for the child's end and ended before it. A cancel does not cut that wait short any more.",
)
def test_a_child_of_a_failed_append_ends_with_its_parent() -> None:
    submit = Act(0.0, "submit", script="p0:agent 2;say 2 wait 1 say 2")
    plans = [
        plan(seed, submit, Act(0.0, "nth", run=4 + seed % 3, own_id=True), Act(0.4 + 0.003 * seed, "cancel_run"))
        for seed in range(200)
    ]
    assert_kept(plans, "store error after the commit")


@pytest.mark.found(
    "seed 351288 of the simulator",
    "A session was deleted while its Run was accepted and the server shut down: the Run was not begun any more, and "
    "the request waited for its end for ever. It is now refused because the server shuts down.",
)
def test_deletion_does_not_wait_for_an_unstarted_run() -> None:
    plans = [
        plan(
            seed,
            Act(0.0, "submit", script="p0:run quick;wait 2 say 1"),
            Act(0.001 * (seed % 5), "delete", for_s=0.5),
            Act(0.002 * (seed // 5), "restart", for_s=0.2),
        )
        for seed in range(250)
    ]
    assert_kept(plans, "orderly restart")


@pytest.mark.found(
    "seed 1776 of the simulator",
    "A rewind to a prompt that was cancelled in the queue removed the result of a call, and kept the call: the Run "
    "that made it was active at that time. Such a rewind is refused.",
)
def test_rewind_does_not_separate_a_call_from_its_result() -> None:
    submits = (
        Act(0.0, "submit", script="p0:run quick run quick;say 1"),
        Act(0.01, "submit", run=1, script="p1:say 1", when_busy="queue"),
    )
    rewind = Act(20.0, "rewind", run=1)
    assert_kept([plan(seed, *submits, Act(0.02 + 0.01 * seed, "cancel"), rewind) for seed in range(60)], "rewind")


@pytest.mark.found(
    "seed 17358 of the simulator",
    "A server that stopped while the store took no writes did not end the task of an agent's parent, which waited for "
    "an end that only the next process can write. It waits until the server has stopped.",
)
def test_shutdown_leaves_no_parent_that_waits_for_its_agent() -> None:
    submit = Act(0.0, "submit", script="p0:agent 3 run quick;say 1")
    plans = [
        plan(seed, submit, Act(0.01 * seed, "store_full", for_s=60.0), Act(0.02 * seed + 0.3, "restart", for_s=0.3))
        for seed in range(60)
    ]
    assert_kept(plans, "orderly restart", "store full")


@pytest.mark.found(
    "seed 863 of the cluster simulator",
    "A client left while its stream was being forwarded, and the other node's reply came at the same time: it was "
    "never closed, and the stream that nothing read held its workspace open. Such a reply is closed.",
)
def test_a_forwarded_stream_ends_with_its_client() -> None:
    assert_kept([plan(seed, Act(0.001 * (seed % 100), "drop"), nodes=2) for seed in range(400)], "connection cut")


@pytest.mark.found(
    "seed 504 of the cluster simulator",
    "A client left at the moment at which the connection to the other node broke: the error of that connection was "
    "logged with a traceback, as one that nothing had handled.",
)
def test_a_lost_forwarded_request_leaves_no_error() -> None:
    submit = Act(0.0, "submit", script="p0:say 2")
    plans = [
        plan(seed, submit, Act(0.005 * (seed % 20), "cuts", for_s=1.0, rates=(0.3, 0.0, 0.0)), nodes=2)
        for seed in range(200)
    ]
    assert_kept(plans, "connection cut")


@pytest.mark.found(
    "seed 3251 of the cluster simulator",
    "A node that was paused for longer than its lease continued its streams for a moment, with the text that a message "
    "had before the pause: its clients kept that as the last one. Such a node sends nothing more on a stream.",
)
def test_a_node_that_wakes_up_sends_no_old_text() -> None:
    submit = Act(0.0, "submit", script="p0:say 2 wait 1 say 2 wait 1 say 2")
    pauses = [Act(0.3 + 0.03 * seed, "node_pause", node=HOLDER, for_s=4.5) for seed in range(60)]
    plans = [plan(seed, submit, pause, nodes=2) for seed, pause in enumerate(pauses)]
    # The task that ends the process may be a slow one.
    assert_kept([replace(one, schedule="priority") for one in plans], "node paused", "workspace taken over")


@pytest.mark.found(
    "seed 110318 of the cluster simulator",
    "A Run was cancelled at the moment at which one of its calls asked for an approval: the task that settles "
    "approvals after a new grant was started, and never ended. It is ended after the calls.",
)
def test_a_cancelled_ask_leaves_no_task() -> None:
    submit = Act(0.0, "submit", script="p0:run risky run quick;say 1")
    assert_kept([plan(1310, submit, Act(0.145 + 0.001 * number, "cancel")) for number in range(15)], "cancel")
