"""The rules of the Lane, one by one, as examples. The proof that they hold always is in test_lane_walk.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import pytest
from msgspec.structs import replace

from kedge.core.commands import (
    BeginStep,
    Cancel,
    CancelRun,
    ClearQueue,
    Command,
    EditRun,
    Finish,
    FoldRun,
    MoveRun,
    Recover,
    Submit,
    WhenBusy,
    when_busy_default,
)
from kedge.core.events import (
    EVENT_TYPES,
    CancelMarked,
    FoldMarked,
    LaneEvent,
    Reason,
    RunAccepted,
    RunCancelMarked,
    RunEdited,
    RunEnded,
    RunFolded,
    RunMoved,
    RunResumed,
    RunStarted,
    StepStarted,
)
from kedge.core.lane import LIFECYCLE, Covered, Lane, apply, apply_all, covered_by, decide
from kedge.errors import (
    Conflict,
    KedgeError,
    LaneBusy,
    QueueFull,
    RunIdReused,
    RunIsFolded,
    RunIsStopping,
    RunNotActive,
    RunNotQueued,
)

#: What the engine may report of a Run.
Reported = Literal["completed", "failed", "stopped"]

NOW = 7
DROPPED: Reason = "cancelled_in_queue"


def submit(run_id: str, when_busy: WhenBusy = "queue", known: str | None = None, queue_runs_max: int = 100) -> Submit:
    return Submit(run_id, f"content of {run_id}", when_busy, NOW, known, queue_runs_max)


def finish(run_id: str) -> Finish:
    return Finish(run_id, "completed", "", NOW)


def lane_after(*commands: Command) -> Lane:
    lane = Lane()
    for command in commands:
        lane = apply_all(lane, decide(lane, command))
    return lane


def assert_refused(lane: Lane, command: Command, error: type[KedgeError], *says: str) -> None:
    """Refused by this error, which is a 409 or 429, names the Run and the way out, and leaves the Lane as it was."""
    before = replace(lane)
    with pytest.raises(error) as refused:
        decide(lane, command)
    for words in says:
        assert words in refused.value.message
    assert lane == before


#: `a` is active, `b` and `c` are queued.
THREE = lane_after(submit("a"), submit("b"), submit("c"))
#: `b` has folded into the active `a`, `c` waits to, `d` queues.
FOLDED = lane_after(submit("a"), submit("b", "fold"), BeginStep("a", NOW), submit("c", "fold"), submit("d"))


# --- 1 submit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when_busy", ["queue", "fold", "reject", "interrupt"])
def test_submit_to_an_idle_lane_accepts_and_starts_in_one_append(when_busy: WhenBusy) -> None:
    assert decide(Lane(), submit("a", when_busy)) == (RunAccepted("a", 1, False, NOW), RunStarted("a", NOW))


def test_submit_to_a_busy_lane_queues_with_the_next_seq() -> None:
    assert decide(THREE, submit("d")) == (RunAccepted("d", 4, False, NOW),)
    assert [run.run_id for run in lane_after(submit("a"), submit("b"), submit("c")).queue] == ["b", "c"]


def test_submit_to_fold_waits_for_the_active_run() -> None:
    lane = lane_after(submit("a"))
    assert decide(lane, submit("b", "fold")) == (RunAccepted("b", 2, True, NOW),)
    assert lane_after(submit("a"), submit("b", "fold")).state_of("b") == "waiting to fold"


def test_reject_leaves_no_trace_on_a_busy_lane() -> None:
    assert_refused(THREE, submit("d", "reject"), LaneBusy, "Run a is active", "Wait for its end")
    assert decide(THREE, submit("e")) == (RunAccepted("e", 4, False, NOW),)


def test_interrupt_cancels_earlier_runs_in_one_append() -> None:
    assert decide(THREE, submit("d", "interrupt")) == (
        CancelMarked(3, "a", NOW),
        RunEnded("b", "cancelled", DROPPED, NOW),
        RunEnded("c", "cancelled", DROPPED, NOW),
        RunAccepted("d", 4, False, NOW),
    )
    lane = lane_after(submit("a"), submit("b"), submit("d", "interrupt"))
    assert decide(lane, finish("a")) == (RunEnded("a", "cancelled", "cancelled", NOW), RunStarted("d", NOW))


def test_interrupt_of_a_lane_that_stops_already_only_queues() -> None:
    lane = lane_after(submit("a"), Cancel(NOW))
    assert decide(lane, submit("b", "interrupt")) == (RunAccepted("b", 2, False, NOW),)


def test_a_second_interrupt_replaces_the_first_before_it_started() -> None:
    lane = lane_after(submit("a"), submit("b", "interrupt"))
    assert decide(lane, submit("c", "interrupt")) == (
        CancelMarked(2, "a", NOW),
        RunEnded("b", "cancelled", DROPPED, NOW),
        RunAccepted("c", 3, False, NOW),
    )


def test_default_is_queue_with_a_run_id_and_fold_without() -> None:
    assert when_busy_default(has_own_run_id=True) == "queue"
    assert when_busy_default(has_own_run_id=False) == "fold"


# --- 2 the run_id is the idempotency key -----------------------------------------------------------------------------


@pytest.mark.parametrize("lane", [THREE, Lane(next_seq=4)], ids=["live", "ended"])
@pytest.mark.parametrize("when_busy", ["queue", "fold", "reject", "interrupt"])
def test_submit_repeated_with_the_same_content_decides_nothing(lane: Lane, when_busy: WhenBusy) -> None:
    assert decide(lane, submit("a", when_busy, known="content of a")) == ()


@pytest.mark.parametrize("lane", [THREE, Lane(next_seq=4)], ids=["live", "ended"])
def test_submit_repeated_with_other_content_is_refused(lane: Lane) -> None:
    assert_refused(lane, submit("a", known="something else"), RunIdReused, "run_id a", "a new run_id")


# --- 3 cancel --------------------------------------------------------------------------------------------------------


def test_cancel_ends_queued_runs_and_stops_the_active_one() -> None:
    assert decide(THREE, Cancel(NOW)) == (
        CancelMarked(3, "a", NOW),
        RunEnded("b", "cancelled", DROPPED, NOW),
        RunEnded("c", "cancelled", DROPPED, NOW),
    )
    lane = apply_all(THREE, decide(THREE, Cancel(NOW)))
    assert (lane.state_of("a"), lane.queue, lane.mark) == ("stopping", (), 3)


def test_cancel_of_an_idle_lane_decides_nothing() -> None:
    assert decide(Lane(), Cancel(NOW)) == ()
    idle = lane_after(submit("a"), finish("a"))
    assert decide(idle, Cancel(NOW)) == ()
    assert decide(idle, submit("b")) == (RunAccepted("b", 2, False, NOW), RunStarted("b", NOW))


def test_cancel_spares_a_run_accepted_later() -> None:
    lane = lane_after(submit("a"), submit("b"), Cancel(NOW), submit("c"))
    assert [run.run_id for run in lane.live] == ["a", "c"]
    assert decide(lane, finish("a")) == (RunEnded("a", "cancelled", "cancelled", NOW), RunStarted("c", NOW))
    lane = apply_all(lane, decide(lane, finish("a")))
    assert decide(lane, finish("c")) == (RunEnded("c", "completed", "", NOW),)


def test_a_second_cancel_decides_nothing() -> None:
    assert decide(lane_after(submit("a"), submit("b"), Cancel(NOW)), Cancel(NOW)) == ()


def test_a_later_cancel_extends_to_the_runs_accepted_since() -> None:
    lane = lane_after(submit("a"), Cancel(NOW), submit("b"))
    assert decide(lane, Cancel(NOW)) == (CancelMarked(2, "a", NOW), RunEnded("b", "cancelled", DROPPED, NOW))


@pytest.mark.parametrize(
    "lane",
    [
        lane_after(submit("a"), CancelRun("a", NOW)),
        lane_after(submit("a"), Cancel(NOW), submit("b"), CancelRun("b", NOW)),
    ],
    ids=["told by its id", "the later ones have ended"],
)
def test_cancel_of_covered_runs_decides_nothing(lane: Lane) -> None:
    assert decide(lane, Cancel(NOW)) == ()


# --- 4 cancel of one Run ---------------------------------------------------------------------------------------------


def test_cancel_of_a_queued_run_ends_it_and_touches_no_other() -> None:
    assert decide(THREE, CancelRun("b", NOW)) == (RunEnded("b", "cancelled", "removed", NOW),)
    abandoned = decide(THREE, CancelRun("b", NOW, is_abandoned=True))
    assert abandoned == (RunEnded("b", "cancelled", DROPPED, NOW),)
    lane = apply_all(THREE, decide(THREE, CancelRun("b", NOW)))
    assert [(run.run_id, lane.state_of(run.run_id)) for run in lane.live] == [("a", "active"), ("c", "queued")]


def test_cancel_of_a_run_that_waits_to_fold_ends_it() -> None:
    assert decide(FOLDED, CancelRun("c", NOW)) == (RunEnded("c", "cancelled", "removed", NOW),)


def test_cancel_of_the_active_run_leaves_the_queue_which_goes_on() -> None:
    assert decide(THREE, CancelRun("a", NOW)) == (RunCancelMarked("a", NOW),)
    lane = apply_all(THREE, decide(THREE, CancelRun("a", NOW)))
    assert (lane.state_of("a"), lane.state_of("b"), lane.mark) == ("stopping", "queued", 0)
    assert decide(lane, finish("a")) == (RunEnded("a", "cancelled", "cancelled", NOW), RunStarted("b", NOW))


def test_cancel_of_a_folded_run_is_refused_and_names_its_host() -> None:
    assert_refused(FOLDED, CancelRun("b", NOW), RunIsFolded, "Run b joined run a", "Cancel that run instead.")


@pytest.mark.parametrize("run_id", ["a", "ended", "unknown"])
def test_cancel_of_a_stopping_or_ended_run_decides_nothing(run_id: str) -> None:
    lane = lane_after(submit("ended"), finish("ended"), submit("a"), CancelRun("a", NOW))
    assert decide(lane, CancelRun(run_id, NOW)) == ()


# --- 5 finish --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["completed", "failed"])
def test_finish_ends_the_run_and_starts_the_next_in_one_append(outcome: Literal["completed", "failed"]) -> None:
    command = Finish("a", outcome, "timeout", NOW)
    assert decide(THREE, command) == (RunEnded("a", outcome, "timeout", NOW), RunStarted("b", NOW))


def test_a_run_stopped_without_a_cancel_is_interrupted() -> None:
    command = Finish("a", "stopped", "", NOW)
    assert decide(THREE, command) == (RunEnded("a", "interrupted", "shutdown", NOW), RunStarted("b", NOW))


def test_finish_ends_the_folded_runs_with_their_host() -> None:
    assert decide(FOLDED, finish("a")) == (
        RunEnded("a", "completed", "", NOW),
        RunEnded("b", "completed", "", NOW, "a"),
        RunStarted("c", NOW),
    )


def test_finish_of_the_last_run_leaves_an_idle_lane() -> None:
    lane = lane_after(submit("a"), finish("a"))
    assert lane == Lane(next_seq=2, version=3)


@pytest.mark.parametrize("run_id", ["gone", "b", "unknown"], ids=["ended", "queued", "unknown"])
@pytest.mark.parametrize("command", [finish, lambda run_id: BeginStep(run_id, NOW)], ids=["finish", "step"])
def test_only_the_active_run_is_finished_or_begins_a_step(run_id: str, command: Callable[[str], Command]) -> None:
    lane = lane_after(submit("gone"), finish("gone"), submit("a"), submit("b"))
    assert_refused(lane, command(run_id), RunNotActive, f"Run {run_id} is not active")


# --- 6 the first durable fact wins -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [Cancel(NOW), CancelRun("a", NOW)], ids=["cancel", "cancel of the Run"])
@pytest.mark.parametrize("outcome", ["completed", "failed", "stopped"])
def test_covered_run_ends_cancelled_whatever_is_reported(stop: Command, outcome: Reported) -> None:
    lane = lane_after(submit("a"), submit("b", "fold"), BeginStep("a", NOW), stop)
    assert decide(lane, Finish("a", outcome, "timeout", NOW)) == (
        RunEnded("a", "cancelled", "cancelled", NOW),
        RunEnded("b", "cancelled", "cancelled", NOW, "a"),
    )


def test_a_cancel_after_the_end_does_not_change_the_outcome() -> None:
    lane = lane_after(submit("a"), submit("b"), finish("a"))
    assert decide(lane, Cancel(NOW)) == (CancelMarked(2, "b", NOW),)
    assert_refused(lane, finish("a"), RunNotActive, "Run a")


# --- 7 and 8 folding -------------------------------------------------------------------------------------------------


def test_a_step_takes_in_the_runs_that_wait_to_fold() -> None:
    lane = lane_after(submit("a"), submit("b", "fold"), submit("c", "fold"))
    assert decide(lane, BeginStep("a", NOW)) == (
        RunFolded("b", "a", NOW),
        RunFolded("c", "a", NOW),
        StepStarted("a", 1, NOW),
    )
    assert [run.run_id for run in FOLDED.folded] == ["b"]


def test_a_fold_reaches_past_a_run_that_queues() -> None:
    lane = lane_after(submit("a"), submit("b"), submit("c", "fold"))
    assert decide(lane, BeginStep("a", NOW)) == (RunFolded("c", "a", NOW), StepStarted("a", 1, NOW))


def test_steps_are_counted_for_each_run_from_one() -> None:
    lane = lane_after(submit("a"), submit("b"), BeginStep("a", NOW), BeginStep("a", NOW))
    assert decide(lane, BeginStep("a", NOW)) == (StepStarted("a", 3, NOW),)
    lane = apply_all(lane, decide(lane, finish("a")))
    assert decide(lane, BeginStep("b", NOW)) == (StepStarted("b", 1, NOW),)


def test_unfolded_run_keeps_its_place_in_the_queue() -> None:
    lane = lane_after(submit("a"), submit("b"), submit("c", "fold"), submit("d"), finish("a"))
    assert [(run.run_id, lane.state_of(run.run_id)) for run in lane.live] == [
        ("b", "active"),
        ("c", "queued"),
        ("d", "queued"),
    ]
    assert decide(lane, BeginStep("b", NOW)) == (StepStarted("b", 1, NOW),)


@pytest.mark.parametrize("stop", [Cancel(NOW), CancelRun("a", NOW)], ids=["cancel", "cancel of the Run"])
def test_a_run_that_is_told_to_stop_takes_in_nobody(stop: Command) -> None:
    lane = lane_after(submit("a"), stop, submit("b", "fold"))
    assert_refused(lane, BeginStep("a", NOW), RunIsStopping, "Run a is being cancelled.")
    assert decide(lane, finish("a")) == (RunEnded("a", "cancelled", "cancelled", NOW), RunStarted("b", NOW))


# --- 9 recovery ------------------------------------------------------------------------------------------------------


def test_recovery_of_an_idle_lane_decides_nothing() -> None:
    assert decide(Lane(), Recover("end", NOW)) == ()


@pytest.mark.parametrize("stop", [Cancel(NOW), CancelRun("a", NOW)], ids=["cancel", "cancel of the Run"])
def test_recovery_cancels_a_covered_run_and_starts_the_next(stop: Command) -> None:
    lane = lane_after(submit("a"), BeginStep("a", NOW), stop, submit("b"))
    assert decide(lane, Recover("resume", NOW)) == (RunEnded("a", "cancelled", "cancelled", NOW), RunStarted("b", NOW))


def test_recovery_resumes_if_policy_says_so() -> None:
    lane = lane_after(submit("a"), submit("b"), BeginStep("a", NOW))
    assert decide(lane, Recover("resume", NOW)) == (RunResumed("a", NOW),)
    assert apply_all(lane, decide(lane, Recover("resume", NOW))).queue == lane.queue


def test_recovery_always_resumes_a_run_without_a_step() -> None:
    assert decide(THREE, Recover("end", NOW)) == (RunResumed("a", NOW),)


def test_recovery_interrupts_a_run_and_those_folded_into_it() -> None:
    assert decide(FOLDED, Recover("end", NOW)) == (
        RunEnded("a", "interrupted", "server_lost", NOW),
        RunEnded("b", "interrupted", "server_lost", NOW, "a"),
        RunStarted("c", NOW),
    )


def test_a_run_that_keeps_taking_its_process_down_is_ended() -> None:
    lane = lane_after(submit("a"), *[Recover("resume", NOW)] * 2, submit("b"))
    assert decide(lane, Recover("resume", NOW, resumes_max=3)) == (RunResumed("a", NOW),)
    assert decide(lane, Recover("resume", NOW, resumes_max=2)) == (
        RunEnded("a", "interrupted", "server_lost", NOW),
        RunStarted("b", NOW),
    )


# --- 10 the bound ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when_busy", ["queue", "fold"])
def test_over_the_bound_a_prompt_is_refused_and_nothing_recorded(when_busy: WhenBusy) -> None:
    assert_refused(THREE, submit("d", when_busy, queue_runs_max=2), QueueFull, "is full (2 runs)", "cancel some")
    assert decide(THREE, submit("d", when_busy, queue_runs_max=3))


def test_full_queue_does_not_refuse_an_interrupt() -> None:
    lane = apply_all(THREE, decide(THREE, submit("d", "interrupt", queue_runs_max=2)))
    assert [run.run_id for run in lane.queue] == ["d"]


# --- the queue: clear, edit, move ------------------------------------------------------------------------------------


def test_clearing_the_queue_spares_the_active_run() -> None:
    assert decide(FOLDED, ClearQueue(NOW)) == (
        RunEnded("c", "cancelled", "removed", NOW),
        RunEnded("d", "cancelled", "removed", NOW),
    )
    lane = apply_all(FOLDED, decide(FOLDED, ClearQueue(NOW)))
    assert (lane.state_of("a"), lane.state_of("b"), lane.queue) == ("active", "folded", ())
    assert decide(lane, ClearQueue(NOW)) == ()


def test_a_queued_run_can_be_edited() -> None:
    assert decide(THREE, EditRun("b", NOW)) == (RunEdited("b", NOW),)
    assert apply(THREE, RunEdited("b", NOW)) == replace(THREE, version=THREE.version + 1)


@pytest.mark.parametrize(
    ("run_id", "before", "order"),
    [("d", "b", "dbc"), ("d", "c", "bdc"), ("b", None, "cdb"), ("b", "d", "cbd")],
)
def test_a_queued_run_can_be_moved(run_id: str, before: str | None, order: str) -> None:
    lane = lane_after(submit("a"), submit("b"), submit("c"), submit("d"))
    events = decide(lane, MoveRun(run_id, before, NOW))
    assert events == (RunMoved(run_id, before, NOW),)
    assert "".join(run.run_id for run in apply_all(lane, events).queue) == order


@pytest.mark.parametrize(("run_id", "before"), [("b", "b"), ("b", "c"), ("c", None)])
def test_a_move_to_the_same_place_decides_nothing(run_id: str, before: str | None) -> None:
    assert decide(THREE, MoveRun(run_id, before, NOW)) == ()


def test_fold_mark_keeps_seq_and_place_of_a_queued_run() -> None:
    events = decide(THREE, FoldRun("c", NOW))
    assert events == (FoldMarked("c", NOW),)
    lane = apply_all(THREE, events)
    assert [(run.run_id, run.seq, run.folds) for run in lane.queue] == [("b", 2, False), ("c", 3, True)]
    assert decide(lane, BeginStep("a", NOW)) == (RunFolded("c", "a", NOW), StepStarted("a", 1, NOW))
    assert decide(lane, FoldRun("c", NOW)) == (), "it waits to fold already"
    assert covered_by(lane, Cancel(NOW)) == covered_by(THREE, Cancel(NOW))


def test_run_marked_to_fold_starts_if_the_host_stops() -> None:
    lane = apply_all(THREE, decide(THREE, CancelRun("a", NOW)))
    lane = apply_all(lane, decide(lane, FoldRun("b", NOW)))
    lane = apply_all(lane, decide(lane, Finish("a", "completed", "", NOW)))
    assert (lane.state_of("b"), lane.state_of("c")) == ("active", "queued")


@pytest.mark.parametrize(("run_id", "state"), [("a", "active"), ("b", "folded"), ("gone", "ended")])
def test_only_a_queued_run_can_be_edited_moved_or_folded(run_id: str, state: str) -> None:
    for command in (EditRun(run_id, NOW), MoveRun(run_id, None, NOW), MoveRun("d", run_id, NOW), FoldRun(run_id, NOW)):
        assert_refused(FOLDED, command, RunNotQueued, f"Run {run_id} is {state}", "Only queued runs")


# --- what a cancel covered -------------------------------------------------------------------------------------------


def test_the_answer_to_a_cancel_names_every_live_run() -> None:
    assert covered_by(FOLDED, Cancel(NOW)) == (
        Covered("a", 1, "active"),
        Covered("b", 2, "folded"),
        Covered("c", 3, "queued"),
        Covered("d", 4, "queued"),
    )
    assert covered_by(Lane(), Cancel(NOW)) == ()


def test_cancel_of_a_run_reports_it_and_those_folded_into_it() -> None:
    assert covered_by(FOLDED, CancelRun("a", NOW)) == (Covered("a", 1, "active"), Covered("b", 2, "folded"))
    assert covered_by(FOLDED, CancelRun("c", NOW)) == (Covered("c", 3, "queued"),)
    assert covered_by(FOLDED, CancelRun("gone", NOW)) == ()


def test_the_answer_to_clearing_the_queue_names_the_queue() -> None:
    assert covered_by(FOLDED, ClearQueue(NOW)) == (Covered("c", 3, "queued"), Covered("d", 4, "queued"))


# --- the table and the values ----------------------------------------------------------------------------------------


def test_the_lifecycle_begins_with_accepted_and_ends_with_ended() -> None:
    assert {event for was, event, _ in LIFECYCLE if was is None} == {RunAccepted}
    assert {event for _, event, is_now in LIFECYCLE if is_now == "ended"} == {RunEnded}
    assert "ended" not in {was for was, _, _ in LIFECYCLE}
    assert len(set(LIFECYCLE)) == len(LIFECYCLE)


def test_every_event_counts_for_the_version() -> None:
    events: list[LaneEvent] = []
    lane = Lane()
    for command in (submit("a"), submit("b", "fold"), BeginStep("a", NOW), CancelRun("a", NOW), finish("a")):
        events += (decided := decide(lane, command))
        lane = apply_all(lane, decided)
    assert lane.version == len(events) == 8


def test_the_log_stores_each_event_under_its_class_name() -> None:
    assert all(kind.__name__ == name for name, kind in EVENT_TYPES.items())
    assert {event for _, event, _ in LIFECYCLE} <= set(EVENT_TYPES.values())


def test_every_refusal_is_a_conflict_or_retryable() -> None:
    refusals = (LaneBusy, RunIdReused, RunIsFolded, RunIsStopping, RunNotActive, RunNotQueued)
    assert all(issubclass(refusal, Conflict) and refusal.status == 409 for refusal in refusals)
    assert (QueueFull.status, QueueFull.retry_after_s) == (429, 1)
    assert all(re.fullmatch("[a-z_]+", refusal.code) for refusal in refusals)
