"""Long histories with every command there is, made up by Hypothesis and held to the same oracle as the walk."""

from __future__ import annotations

from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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
)
from kedge.core.events import RunEnded
from proof.walk import History

#: Small, so that histories reach it.
QUEUE_RUNS_MAX = 5
RESUMES_MAX = 2

#: Which Run of several a command names.
PICK = st.integers(0, 30)


def from_the_live(machine: LaneHistory) -> bool:
    return bool(machine.history.state.oracle.live)


def from_a_stop(machine: LaneHistory) -> bool:
    return machine.history.state.oracle.active in machine.history.state.oracle.told


def from_a_queue(machine: LaneHistory) -> bool:
    return len(machine.history.state.oracle.line) > 1


class LaneHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self.now = 0

    def tick(self) -> int:
        self.now += 1
        return self.now

    def submit_new(self, when_busy: WhenBusy) -> None:
        run_id = f"r{len(self.history.state.oracle.accepted) + 1}"
        self.history.put(Submit(run_id, f"content of {run_id}", when_busy, self.tick(), None, QUEUE_RUNS_MAX))

    @rule(when_busy=st.sampled_from(["queue", "fold", "reject", "interrupt"]))
    def submit(self, when_busy: WhenBusy) -> None:
        self.submit_new(when_busy)

    # Queues with something in them to move, fold and cancel come from prompts that arrive together.
    @rule(burst=st.lists(st.sampled_from(["queue", "fold", "fold"]), min_size=2, max_size=5))
    def submit_burst(self, burst: list[WhenBusy]) -> None:
        for when_busy in burst:
            self.submit_new(when_busy)

    @precondition(from_the_live)
    @rule()
    def begin_step(self) -> None:
        self.history.put(BeginStep(self.history.state.oracle.active or "", self.tick()))

    @precondition(from_a_queue)
    @rule(pick=PICK, before=st.none() | PICK)
    def move(self, pick: int, before: int | None) -> None:
        line = self.history.state.oracle.line
        place = None if before is None else line[before % len(line)]
        self.history.put(MoveRun(line[pick % len(line)], place, self.tick()))

    @precondition(from_a_queue)
    @rule(pick=PICK)
    def fold(self, pick: int) -> None:
        line = self.history.state.oracle.line
        self.history.put(FoldRun(line[pick % len(line)], self.tick()))

    @precondition(from_a_queue)
    @rule(pick=PICK)
    def cancel_run(self, pick: int) -> None:
        live = self.history.state.oracle.live
        self.history.put(CancelRun(live[pick % len(live)], self.tick()))

    @precondition(from_the_live)
    @rule(outcome=st.sampled_from(["completed", "failed", "stopped"]))
    def finish(self, outcome: Literal["completed", "failed", "stopped"]) -> None:
        self.history.put(Finish(self.history.state.oracle.active or "", outcome, "", self.tick()))

    # A Run that is told to stop takes in nobody: left alone, most of a history would pass with one of those active.
    @precondition(from_a_stop)
    @rule()
    def finish_what_stops(self) -> None:
        self.history.put(Finish(self.history.state.oracle.active or "", "completed", "", self.tick()))

    @rule(what=st.sampled_from(["cancel", "cancel", "clear", "crash and resume", "crash and end"]))
    def sweep(self, what: str) -> None:
        now = self.tick()
        commands: dict[str, Command] = {
            "cancel": Cancel(now),
            "clear": ClearQueue(now),
            "crash and resume": Recover("resume", now, RESUMES_MAX),
            "crash and end": Recover("end", now, RESUMES_MAX),
        }
        self.history.put(commands[what])

    @rule(pick=PICK, what=st.sampled_from(["same", "other", "edit", "move", "fold", "step", "finish", "cancel"]))
    def name_any_run(self, pick: int, what: str) -> None:
        """Also those that have ended, or never were."""
        oracle, now = self.history.state.oracle, self.tick()
        run_id = [*(run_id for run_id, _, _ in oracle.accepted), "unknown"][-1 - pick % (len(oracle.accepted) + 1)]
        known = oracle.content_of(run_id)
        commands: dict[str, Command] = {
            "same": Submit(run_id, known or "new", "interrupt", now, known, QUEUE_RUNS_MAX),
            "other": Submit(run_id, "other", "interrupt", now, known or "some", QUEUE_RUNS_MAX),
            "edit": EditRun(run_id, now),
            "move": MoveRun(run_id, "unknown", now),
            "fold": FoldRun(run_id, now),
            "step": BeginStep(run_id, now),
            "finish": Finish(run_id, "completed", "", now),
            "cancel": CancelRun(run_id, now),
        }
        if known is not None or what not in ("same", "other"):
            self.history.put(commands[what])

    @invariant()
    def the_queue_keeps_its_bound(self) -> None:
        assert len(self.history.state.lane.queue) <= QUEUE_RUNS_MAX

    def teardown(self) -> None:
        history = self.history
        history.check_replay()
        while (active := history.state.oracle.active) is not None:
            history.put(Finish(active, "completed", "", self.tick()))
        ends = [event.run_id for event in history.events if isinstance(event, RunEnded)]
        accepted = [run_id for run_id, _, _ in history.state.oracle.accepted]
        assert sorted(ends) == sorted(accepted), f"not every Run ended exactly once:\n{history.text()}"


TestLaneHistory = LaneHistory.TestCase
TestLaneHistory.settings = settings(max_examples=250, stateful_step_count=60, deadline=None)
