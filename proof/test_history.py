"""A history written by hand. That the walk finds faults is proved in proof/test_lane_faults.py."""

from __future__ import annotations

from collections import Counter

import pytest

from kedge.core import lane as real
from kedge.core.commands import BeginStep, Cancel, CancelRun, Command, Finish, Submit
from kedge.core.events import LaneEvent, RunAccepted, RunEnded, RunStarted
from kedge.core.lane import Lane
from kedge.errors import RunNotActive
from proof.walk import Checker, History, Transition, Used, walk


def submit(run_id: str) -> Submit:
    return Submit(run_id, f"content of {run_id}", "queue", 0)


def test_a_history_answers_as_the_lane_does() -> None:
    history = History()
    assert history.put(submit("a")) == (RunAccepted("a", 1, False, 0), RunStarted("a", 0))
    assert history.put(Finish("a", "completed", "", 0)) == (RunEnded("a", "completed", "", 0),)
    assert isinstance(history.put(Finish("a", "completed", "", 0)), RunNotActive)
    assert history.put(Cancel(0)) == ()
    assert history.state.lane == Lane(next_seq=2, version=3)


def test_a_history_can_be_read() -> None:
    history = History()
    for command in (submit("a"), Submit("a", "other", "queue", 0, "content of a"), submit("b"), CancelRun("b", 0)):
        history.put(command)
    assert history.text().splitlines() == [
        "   1  Submit a queue 100 -> RunAccepted a seq 1, RunStarted a",
        "   2  Submit a queue 100 again with other content -> RunIdReused",
        "   3  Submit b queue 100 -> RunAccepted b seq 2",
        "   4  CancelRun b -> RunEnded b cancelled",
    ]


def test_a_broken_promise_is_reported_with_its_history() -> None:
    def deaf(lane: Lane, command: Command) -> tuple[LaneEvent, ...]:
        return () if isinstance(command, Cancel) else real.decide(lane, command)

    history = History(Checker(decide=deaf))
    history.put(submit("a"))
    history.put(submit("b"))
    with pytest.raises(AssertionError, match=r"(?s)b is covered by a cancel.*1  Submit a.*3  Cancel -> here"):
        history.put(Cancel(0))
    assert len(history.told) == 2


def test_a_log_that_lost_an_event_does_not_give_the_same_lane() -> None:
    history = History()
    history.put(submit("a"))
    history.check_replay()
    history.events.pop()
    with pytest.raises(AssertionError, match="the log gives"):
        history.check_replay()


def test_the_smallest_walk_can_be_counted_by_hand() -> None:
    """Nothing yet, active, active in its one Step, ended: 4 states."""
    result = walk(prompts=1, cancels=0, crashes=0, run_cancels=0, steps=1)
    assert (result.states, result.ended) == (4, 2)


def test_the_walk_reports_each_transition_once() -> None:
    """Three ways to be accepted, one Step of two kinds, and an end of three kinds, with and without the Step."""
    told: list[Transition] = []
    walk(prompts=1, cancels=0, crashes=0, run_cancels=0, steps=1, tell=told.append)
    assert Counter(type(transition.command) for transition in told) == {Submit: 3, BeginStep: 2, Finish: 6}
    first = told[0]
    assert first.before[0].lane == Lane()
    assert first.events == (RunAccepted("r1", 1, False, 0), RunStarted("r1", 0))
    assert first.after[0].lane.state_of("r1") == "active"


def test_the_walk_reports_only_commands_with_an_effect() -> None:
    told: list[Transition] = []
    walk(prompts=1, cancels=2, crashes=0, run_cancels=0, steps=0, tell=told.append)
    cancels = [transition for transition in told if isinstance(transition.command, Cancel)]
    assert [(cancel.before[1], cancel.after[1]) for cancel in cancels] == [(Used(), Used(cancels=1))]


def test_the_walk_can_be_given_a_short_queue() -> None:
    longest = 0

    def tell(transition: Transition) -> None:
        nonlocal longest
        longest = max(longest, len(transition.after[0].lane.queue))

    walk(prompts=3, cancels=0, crashes=0, queue_runs_max=1, tell=tell)
    assert longest == 1
