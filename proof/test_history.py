"""Hand-written histories, and the walk itself. proof/test_lane_faults.py proves that the walk finds faults."""

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


def test_history_returns_the_answers_of_the_lane() -> None:
    history = History()
    assert history.execute(submit("a")) == (RunAccepted("a", 1, False, 0), RunStarted("a", 0))
    assert history.execute(Finish("a", "completed", "", 0)) == (RunEnded("a", "completed", "", 0),)
    assert isinstance(history.execute(Finish("a", "completed", "", 0)), RunNotActive)
    assert history.execute(Cancel(0)) == ()
    assert history.state.lane == Lane(next_seq=2, version=3)


def test_history_as_text() -> None:
    history = History()
    for command in (submit("a"), Submit("a", "other", "queue", 0, "content of a"), submit("b"), CancelRun("b", 0)):
        history.execute(command)
    assert history.text().splitlines() == [
        "   1  Submit a queue 100 -> RunAccepted a seq 1, RunStarted a",
        "   2  Submit a queue 100 again with other content -> RunIdReused",
        "   3  Submit b queue 100 -> RunAccepted b seq 2",
        "   4  CancelRun b False -> RunEnded b cancelled",
    ]


def test_broken_promise_is_reported_with_its_history() -> None:
    def ignores_cancels(lane: Lane, command: Command) -> tuple[LaneEvent, ...]:
        return () if isinstance(command, Cancel) else real.decide(lane, command)

    history = History(Checker(decide=ignores_cancels))
    history.execute(submit("a"))
    history.execute(submit("b"))
    with pytest.raises(AssertionError, match=r"(?s)b is covered by a cancel.*1  Submit a.*3  Cancel -> here"):
        history.execute(Cancel(0))
    assert len(history.entries) == 2


def test_replay_detects_a_lost_event() -> None:
    history = History()
    history.execute(submit("a"))
    history.check_replay()
    history.events.pop()
    with pytest.raises(AssertionError, match="the log gives"):
        history.check_replay()


def test_smallest_walk_has_4_states() -> None:
    """4 states: idle, active, active in its one Step, ended."""
    result = walk(prompts=1, cancels=0, crashes=0, run_cancels=0, steps=1)
    assert (result.states, result.ended) == (4, 2)


def test_walk_reports_each_transition_once() -> None:
    """Three ways to submit, one Step of two kinds, and three outcomes, each with and without the Step."""
    transitions: list[Transition] = []
    walk(prompts=1, cancels=0, crashes=0, run_cancels=0, steps=1, on_transition=transitions.append)
    assert Counter(type(transition.command) for transition in transitions) == {Submit: 3, BeginStep: 2, Finish: 6}
    first = transitions[0]
    assert first.before[0].lane == Lane()
    assert first.events == (RunAccepted("r1", 1, False, 0), RunStarted("r1", 0))
    assert first.after[0].lane.state_of("r1") == "active"


def test_walk_reports_only_commands_with_an_effect() -> None:
    transitions: list[Transition] = []
    walk(prompts=1, cancels=2, crashes=0, run_cancels=0, steps=0, on_transition=transitions.append)
    cancels = [transition for transition in transitions if isinstance(transition.command, Cancel)]
    assert [(cancel.before[1], cancel.after[1]) for cancel in cancels] == [(Used(), Used(cancels=1))]


def test_walk_with_a_short_queue() -> None:
    longest = 0

    def on_transition(transition: Transition) -> None:
        nonlocal longest
        longest = max(longest, len(transition.after[0].lane.queue))

    walk(prompts=3, cancels=0, crashes=0, queue_runs_max=1, on_transition=on_transition)
    assert longest == 1
