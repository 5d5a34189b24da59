"""Faults seeded in the Lane, which the walk must find.

A fault is a small change of `decide` or `apply`, like a careless edit. The test also checks the message, so that the
fault is found for the right reason.
"""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from kedge.core import lane as real
from kedge.core.commands import BeginStep, Cancel, CancelRun, ClearQueue, Command, Finish, Recover, Submit
from kedge.core.events import (
    CancelMarked,
    LaneEvent,
    RunAccepted,
    RunEnded,
    RunFolded,
    RunResumed,
    RunStarted,
    StepStarted,
)
from kedge.core.lane import Lane
from kedge.errors import KedgeError, RunIsFolded, RunIsStopping, RunNotActive
from proof.walk import Apply, Decide, walk

Events = tuple[LaneEvent, ...]


# --- faults of decide ------------------------------------------------------------------------------------------------


def cancel_covers_one_run_too_few(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    return tuple(replace(event, mark=event.mark - 1) if isinstance(event, CancelMarked) else event for event in events)


def cancel_covers_the_next_run_too(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    return tuple(replace(event, mark=event.mark + 1) if isinstance(event, CancelMarked) else event for event in events)


def cancel_of_an_idle_lane_leaves_a_mark(lane: Lane, command: Command) -> Events:
    if isinstance(command, Cancel) and lane.active is None:
        return (CancelMarked(lane.next_seq, "none", command.now),)
    return real.decide(lane, command)


def cancel_forgets_the_queue(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    return events[:1] if isinstance(command, Cancel) else events


def cancel_ends_the_active_run_at_once(lane: Lane, command: Command) -> Events:
    if isinstance(command, Cancel) and lane.active and not lane.queue:
        return (RunEnded(lane.active.run_id, "cancelled", "", 0),)
    return real.decide(lane, command)


def cancel_of_one_run_takes_the_queue_along(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    if isinstance(command, CancelRun) and events and lane.active and command.run_id == lane.active.run_id:
        return (*events, *real.decide(lane, ClearQueue(0)))
    return events


def cancel_of_a_folded_run_ends_it_alone(lane: Lane, command: Command) -> Events:
    try:
        return real.decide(lane, command)
    except RunIsFolded:
        assert isinstance(command, CancelRun)
        return (RunEnded(command.run_id, "cancelled", "", 0),)


def finish_forgets_to_start_the_next(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    return _without_starts(events) if isinstance(command, Finish) else events


def failure_strands_the_queue(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    return _without_starts(events) if isinstance(command, Finish) and command.outcome == "failed" else events


def finish_forgets_the_folded_runs(lane: Lane, command: Command) -> Events:
    return tuple(
        event for event in real.decide(lane, command) if not (isinstance(event, RunEnded) and event.folded_into)
    )


def finish_ends_a_folded_run_twice(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    return (*events, *(event for event in events if isinstance(event, RunEnded) and event.folded_into))


def folded_run_completes_though_its_host_is_cancelled(lane: Lane, command: Command) -> Events:
    return tuple(
        replace(event, outcome="completed") if isinstance(event, RunEnded) and event.folded_into else event
        for event in real.decide(lane, command)
    )


def late_finish_ends_the_active_run(lane: Lane, command: Command) -> Events:
    try:
        return real.decide(lane, command)
    except RunNotActive:
        if isinstance(command, Finish) and lane.active:
            return real.decide(lane, replace(command, run_id=lane.active.run_id))
        raise


def covered_run_is_reported_completed(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    if not isinstance(command, Finish):
        return events
    return tuple(replace(event, outcome=command.outcome) if isinstance(event, RunEnded) else event for event in events)


def stopping_run_folds_another(lane: Lane, command: Command) -> Events:
    try:
        return real.decide(lane, command)
    except RunIsStopping:
        assert isinstance(command, BeginStep)
        joining = tuple(RunFolded(run.run_id, command.run_id, 0) for run in lane.queue if run.folds)
        if joining:
            return (*joining, StepStarted(command.run_id, 1, 0))
        raise


def fold_does_not_reach_past_a_queued_run(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    own = [run.run_id for run in lane.queue if not run.folds]
    return tuple(event for event in events if not (isinstance(event, RunFolded) and own))


def recovery_drops_the_queue(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    return (*real.decide(lane, ClearQueue(0)), *_without_starts(events)) if isinstance(command, Recover) else events


def recovery_resumes_a_covered_run(lane: Lane, command: Command) -> Events:
    if isinstance(command, Recover) and command.on_crash == "resume" and lane.active:
        return (RunResumed(lane.active.run_id, 0),)
    return real.decide(lane, command)


def recovery_ends_a_run_that_did_nothing(lane: Lane, command: Command) -> Events:
    if isinstance(command, Recover) and command.on_crash == "end" and lane.active:
        return real.decide(lane, Finish(lane.active.run_id, "stopped", "", 0))
    return real.decide(lane, command)


def repeated_submit_is_accepted_again(lane: Lane, command: Command) -> Events:
    if isinstance(command, Submit) and command.accepted_content == command.content:
        command = replace(command, accepted_content=None)
    return real.decide(lane, command)


def interrupt_spares_the_queue(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    return tuple(event for event in events if not (isinstance(command, Submit) and isinstance(event, RunEnded)))


def seq_is_used_twice(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    if len(lane.queue) == 1:
        return tuple(replace(event, seq=event.seq - 1) if isinstance(event, RunAccepted) else event for event in events)
    return events


def queue_has_no_bound(lane: Lane, command: Command) -> Events:
    return real.decide(lane, replace(command, queue_runs_max=100) if isinstance(command, Submit) else command)


def authors_take_no_turns(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    return tuple(replace(event, before=None) if isinstance(event, RunAccepted) else event for event in events)


def new_author_overtakes_a_first_round(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    if not isinstance(command, Submit) or command.when_busy == "interrupt" or not lane.queue:
        return events
    if any(run.author == command.author for run in lane.queue):
        return events
    first = lane.queue[0].run_id
    return tuple(replace(event, before=first) if isinstance(event, RunAccepted) else event for event in events)


def one_author_fills_the_queue(lane: Lane, command: Command) -> Events:
    return real.decide(lane, replace(command, queue_runs_per_user_max=100) if isinstance(command, Submit) else command)


def second_run_starts_beside_the_first(lane: Lane, command: Command) -> Events:
    events = real.decide(lane, command)
    if isinstance(command, Submit) and command.when_busy == "queue" and lane.active and not lane.queue and events:
        return (*events, RunStarted(command.run_id, 0))
    return events


def _without_starts(events: Events) -> Events:
    return tuple(event for event in events if not isinstance(event, RunStarted))


# --- faults of apply -------------------------------------------------------------------------------------------------


def new_run_overtakes_the_queue(lane: Lane, event: LaneEvent) -> Lane:
    after = real.apply(lane, event)
    return replace(after, queue=(after.queue[-1], *lane.queue)) if isinstance(event, RunAccepted) else after


def waiting_run_folds_into_the_run_after(lane: Lane, event: LaneEvent) -> Lane:
    after = real.apply(lane, event)
    if isinstance(event, RunEnded) and lane.active and lane.active.run_id == event.run_id:
        return replace(after, queue=lane.queue)
    return after


def mark_is_one_too_low(lane: Lane, event: LaneEvent) -> Lane:
    return real.apply(lane, replace(event, mark=event.mark - 1) if isinstance(event, CancelMarked) else event)


def mark_is_one_too_high(lane: Lane, event: LaneEvent) -> Lane:
    return real.apply(lane, replace(event, mark=event.mark + 1) if isinstance(event, CancelMarked) else event)


def folded_run_stays_in_the_queue(lane: Lane, event: LaneEvent) -> Lane:
    after = real.apply(lane, event)
    return replace(after, queue=lane.queue) if isinstance(event, RunFolded) else after


def mark_is_forgotten_when_a_run_ends(lane: Lane, event: LaneEvent) -> Lane:
    after = real.apply(lane, event)
    return replace(after, mark=0, next_seq=1) if isinstance(event, RunEnded) and not after.live else after


def start_keeps_the_steps_of_another_run(lane: Lane, event: LaneEvent) -> Lane:
    after = real.apply(lane, event)
    if isinstance(event, RunStarted) and after.active and event.run_id != "r1":
        return replace(after, active=replace(after.active, steps=1))
    return after


def step_is_not_counted(lane: Lane, event: LaneEvent) -> Lane:
    return lane if isinstance(event, StepStarted) else real.apply(lane, event)


def place_of_a_new_run_is_lost(lane: Lane, event: LaneEvent) -> Lane:
    return real.apply(lane, replace(event, before=None) if isinstance(event, RunAccepted) else event)


def new_run_revives_a_cancelled_one(lane: Lane, event: LaneEvent) -> Lane:
    after = real.apply(lane, event)
    if isinstance(event, RunAccepted) and after.active:
        return replace(after, active=replace(after.active, cancelled=False))
    return after


FAULTS_OF_DECIDE: dict[Decide, str] = {
    cancel_covers_one_run_too_few: "CancelMarked(mark=0, run_id='r1', at=0, author='') is not possible here",
    cancel_covers_the_next_run_too: "CancelMarked(mark=2, run_id='r1', at=0, author='') is not possible here",
    cancel_of_an_idle_lane_leaves_a_mark: "CancelMarked(mark=1, run_id='none', at=0, author='') is not possible here",
    cancel_forgets_the_queue: "r2 is covered by a cancel and still queued",
    cancel_ends_the_active_run_at_once: "broken promise: it ends all queued Runs and marks the active one",
    cancel_of_one_run_takes_the_queue_along: "RunEnded(run_id='r2', outcome='cancelled'",
    cancel_of_a_folded_run_ends_it_alone: "must be refused with RunIsFolded",
    finish_forgets_to_start_the_next: "the Lane is idle while r2 waits",
    failure_strands_the_queue: "the Lane is idle while r2 waits",
    finish_forgets_the_folded_runs: "r2 did not end with the Run it was folded into",
    finish_ends_a_folded_run_twice: "r2 ends, but is not live",
    folded_run_completes_though_its_host_is_cancelled: "r2 ends with completed in r1",
    late_finish_ends_the_active_run: "must be refused with RunNotActive",
    covered_run_is_reported_completed: "RunEnded(run_id='r1', outcome='completed'",
    stopping_run_folds_another: "must be refused with RunIsStopping",
    fold_does_not_reach_past_a_queued_run: "broken promise: it folds all Runs that wait to fold",
    recovery_drops_the_queue: "RunEnded(run_id='r2', outcome='cancelled'",
    recovery_resumes_a_covered_run: "broken promise: it ends the active Run, starts the first queued one",
    recovery_ends_a_run_that_did_nothing: "broken promise: it only resumes the active Run",
    repeated_submit_is_accepted_again: "r1 is accepted without a Submit, or for the second time",
    interrupt_spares_the_queue: "r2 is covered by a cancel and still queued",
    seq_is_used_twice: "r3 gets seq 2 after seq 2",
    queue_has_no_bound: "must be refused with QueueFull",
    second_run_starts_beside_the_first: "r2 starts while r1 is active",
}

FAULTS_OF_APPLY: dict[Apply, str] = {
    new_run_overtakes_the_queue: "the Lane has the order ['r1', 'r3', 'r2'], the oracle ['r1', 'r2', 'r3']",
    waiting_run_folds_into_the_run_after: "r2 changes from waiting to fold to active by RunStarted",
    folded_run_stays_in_the_queue: "a Run is in two places: r1, r2, r2",
    mark_is_forgotten_when_a_run_ends: "the next seq, 1, was used before",
    start_keeps_the_steps_of_another_run: "the records give",
    step_is_not_counted: "the records give",
    mark_is_one_too_low: "the Lane has {'r1': 'active', 'r2': 'queued'}, the oracle {'r1': 'stopping'",
    mark_is_one_too_high: "after this: r2 changes from queued to stopping by RunStarted",
    new_run_revives_a_cancelled_one: "r1 changes from stopping to active by RunAccepted",
}


@pytest.mark.parametrize("fault", FAULTS_OF_DECIDE, ids=lambda fault: fault.__name__)
def test_walk_finds_fault_of_decide(fault: Decide) -> None:
    with pytest.raises(AssertionError, match=re.escape(FAULTS_OF_DECIDE[fault])) as raised:
        walk(prompts=3, cancels=1, decide=fault)
    assert_has_history(raised.value)


@pytest.mark.parametrize("fault", FAULTS_OF_APPLY, ids=lambda fault: fault.__name__)
def test_walk_finds_fault_of_apply(fault: Apply) -> None:
    with pytest.raises(AssertionError, match=re.escape(FAULTS_OF_APPLY[fault])) as raised:
        walk(prompts=3, cancels=1, apply=fault)
    assert_has_history(raised.value)


FAULTS_OF_ROUNDS: dict[Decide, str] = {
    authors_take_no_turns: "broken promise: it is queued in its round",
    new_author_overtakes_a_first_round: "broken promise: it is queued in its round",
    one_author_fills_the_queue: "must be refused with QueueFull",
}


@pytest.mark.parametrize("fault", FAULTS_OF_ROUNDS, ids=lambda fault: fault.__name__)
def test_walk_with_two_authors_finds_fault(fault: Decide) -> None:
    with pytest.raises(AssertionError, match=FAULTS_OF_ROUNDS[fault]) as raised:
        walk(prompts=4, cancels=0, crashes=0, steps=0, authors=2, decide=fault)
    assert_has_history(raised.value)


def test_walk_with_two_authors_finds_fault_of_apply() -> None:
    with pytest.raises(AssertionError, match=re.escape("the Lane has the order ['r1', 'r2', 'r3', 'r4']")):
        walk(prompts=4, cancels=0, crashes=0, steps=0, authors=2, apply=place_of_a_new_run_is_lost)


def assert_has_history(error: AssertionError) -> None:
    lines = str(error).splitlines()[1:]
    assert [line[:6] for line in lines] == [f"{number:4}  " for number in range(1, len(lines) + 1)]
    assert lines[-1].endswith(" -> here")


def test_walk_without_a_fault_passes() -> None:
    assert walk(prompts=3, cancels=1).states > 0


def test_message_has_the_history() -> None:
    with pytest.raises(AssertionError) as raised:
        walk(prompts=3, cancels=1, decide=failure_strands_the_queue)
    assert str(raised.value).splitlines() == [
        "the Lane is idle while r2 waits",
        "   1  Submit r1 queue 100 -> RunAccepted r1 seq 1, RunStarted r1",
        "   2  Submit r2 queue 100 -> RunAccepted r2 seq 2",
        "   3  Finish r1 failed -> here",
    ]


def test_unexpected_refusal_is_found() -> None:
    def accepts_one_run(lane: Lane, command: Command) -> Events:
        if isinstance(command, Submit) and lane.next_seq > 1:
            raise RunNotActive("no more")
        return real.decide(lane, command)

    with pytest.raises(AssertionError, match="refused with RunNotActive") as raised:
        walk(prompts=2, decide=accepts_one_run)
    assert isinstance(raised.value.__cause__, AssertionError)
    assert isinstance(raised.value.__cause__.__cause__, KedgeError)
