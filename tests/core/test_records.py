"""Records: events change them in one place, and the Lane can be read from them again."""

from __future__ import annotations

from itertools import pairwise

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
)
from kedge.core.events import RunAccepted, RunResumed, RunStarted
from kedge.core.lane import Lane, LaneRun, apply_all, decide
from kedge.core.records import (
    Attachment,
    FileVersion,
    LaneRecord,
    Prompt,
    RunOptions,
    RunRecord,
    SessionRecord,
    Usage,
    attachment_digest,
    cancelled_message,
    content_digest,
    file_version_id,
    first_position,
    project,
    restore,
    user_message,
)
from kedge.core.run_trace import TRACE_ENTRIES_MAX, TraceEntry
from kedge.core.transcript import AttachedFile, FinishPart, Message, Text


def new_record(run_id: str) -> RunRecord:
    return RunRecord(run_id, "s", "w", 0, Prompt(f"do {run_id}"), RunOptions(), f"content of {run_id}", 0)


class Rows:
    """A Lane and its records, kept as the engine keeps them."""

    def __init__(self) -> None:
        self.lane = Lane()
        self.runs: dict[str, RunRecord] = {}
        self.changed: dict[str, RunRecord] = {}

    def put(self, command: Command) -> dict[str, RunRecord]:
        events = decide(self.lane, command)
        live = {run_id: record for run_id, record in self.runs.items() if record.state != "ended"}
        if isinstance(command, Submit):
            live[command.run_id] = new_record(command.run_id)
        self.lane = apply_all(self.lane, events)
        self.changed = project(live, events, self.lane)
        self.runs.update(self.changed)
        assert self.restored() == self.lane
        return self.changed

    def restored(self) -> Lane:
        record = LaneRecord("s", self.lane.version, self.lane.next_seq, self.lane.mark)
        live = [run for run in self.runs.values() if run.state != "ended"]
        # A store gives rows in any order it likes.
        assert restore(record, live[::-1]) == restore(record, live)
        return restore(record, live)

    def submit(self, run_id: str, when_busy: WhenBusy = "queue", now: int = 1) -> None:
        self.put(Submit(run_id, f"content of {run_id}", when_busy, now))


@pytest.fixture
def rows() -> Rows:
    """`a` is active, `b`, `c` and `d` queue."""
    rows = Rows()
    for run_id in "abcd":
        rows.submit(run_id)
    return rows


def places(rows: Rows) -> dict[str, int]:
    return {run.run_id: rows.runs[run.run_id].queue_order for run in rows.lane.queue}


# --- project ---------------------------------------------------------------------------------------------------------


def test_an_accepted_run_has_its_seq_its_place_and_its_time() -> None:
    rows = Rows()
    rows.submit("a", now=3)
    assert rows.changed == {
        "a": replace(new_record("a"), seq=1, queue_order=1, accepted_at=3, started_at=3, state="active")
    }
    rows.submit("b", "fold", now=4)
    assert rows.changed == {"b": replace(new_record("b"), seq=2, queue_order=2, accepted_at=4, folds=True)}


def test_a_step_and_a_resume_are_counted(rows: Rows) -> None:
    rows.put(BeginStep("a", 2))
    rows.put(BeginStep("a", 2))
    assert set(rows.changed) == {"a"}
    rows.put(Recover("resume", 2))
    assert (rows.runs["a"].steps, rows.runs["a"].resumes) == (2, 1)


def test_a_folded_run_is_active_in_its_host(rows: Rows) -> None:
    rows.submit("e", "fold")
    rows.put(BeginStep("a", 7))
    folded = rows.changed["e"]
    assert (folded.state, folded.folded_into, folded.started_at) == ("active", "a", 7)


def test_an_end_is_written_with_outcome_reason_and_time(rows: Rows) -> None:
    rows.submit("e", "fold")
    rows.put(BeginStep("a", 2))
    rows.put(Finish("a", "failed", "budget", 8))
    ended = {run_id: run for run_id, run in rows.changed.items() if run.state == "ended"}
    assert {run_id: (run.outcome, run.reason, run.ended_at, run.folded_into) for run_id, run in ended.items()} == {
        "a": ("failed", "budget", 8, None),
        "e": ("failed", "budget", 8, "a"),
    }
    assert (rows.changed["b"].state, rows.changed["b"].started_at) == ("active", 8)


def test_a_cancel_shows_on_the_active_run_until_it_ends(rows: Rows) -> None:
    rows.put(Cancel(5))
    assert (rows.runs["a"].stopping, rows.runs["a"].cancelled, rows.runs["a"].state) == (True, False, "active")
    assert [rows.runs[run_id].outcome for run_id in "bcd"] == ["cancelled"] * 3


def test_a_cancel_of_one_run_is_told_apart_from_a_cancel_of_all(rows: Rows) -> None:
    rows.put(CancelRun("a", 5))
    assert set(rows.changed) == {"a"}
    assert (rows.runs["a"].stopping, rows.runs["a"].cancelled) == (True, True)


def test_unfolded_run_changes_with_the_end_of_its_host(rows: Rows) -> None:
    rows.submit("e", "fold")
    rows.submit("f", "fold")
    rows.put(Finish("a", "completed", "", 2))
    assert set(rows.changed) == {"a", "b", "e", "f"}
    assert not rows.runs["e"].folds
    assert not rows.runs["f"].folds


def test_cleared_queue_changes_only_queued_records(rows: Rows) -> None:
    rows.put(ClearQueue(5))
    assert {run_id: run.reason for run_id, run in rows.changed.items()} == dict.fromkeys("bcd", "removed")


def test_messages_of_a_dropped_prompt(rows: Rows) -> None:
    run = rows.runs["b"]
    prompt, answer = user_message("m1", run, 5), cancelled_message("m2", run, 5)
    assert (prompt.role, prompt.text, prompt.run_id) == ("user", run.prompt.text, "b")
    assert user_message("m1", run, 5, chars_max=2).text == "do\n[The run has the complete prompt of 4 characters.]"
    assert (answer.role, answer.parts, answer.run_id) == ("assistant", (FinishPart("canceled", 5),), "b")


def test_edit_leaves_the_content_to_the_engine(rows: Rows) -> None:
    before = rows.runs["b"]
    assert rows.put(EditRun("b", 5)) == {"b": before}


def test_a_run_told_to_fold_later_is_one_that_folds(rows: Rows) -> None:
    before = rows.runs["c"]
    assert rows.put(FoldRun("c", 5)) == {"c": replace(before, folds=True, trace=(TraceEntry("fold", 5),))}


def test_trace_has_the_latest_of_what_happened_to_a_run(rows: Rows) -> None:
    for number in range(TRACE_ENTRIES_MAX):
        rows.put(MoveRun("b", "c" if number % 2 else None, 5 + number))
    rows.put(Recover("resume", 70))
    rows.put(CancelRun("a", 80))
    rows.put(Cancel(90))
    trace = {run_id: run.trace for run_id, run in rows.runs.items()}
    expected = TraceEntry("resume", 70), TraceEntry("cancel_run", 80), TraceEntry("cancel", 90, rows.lane.mark)
    assert trace["a"] == expected
    assert len(trace["b"]) == TRACE_ENTRIES_MAX
    assert trace["b"][-2:] == (TraceEntry("move", 53), TraceEntry("move", 54, before="c"))


def test_no_events_no_changes(rows: Rows) -> None:
    assert project(rows.runs, (), rows.lane) == {}


def test_what_only_the_engine_knows_is_kept() -> None:
    rows = Rows()
    rows.submit("a")
    rows.runs["a"] = replace(rows.runs["a"], text="so far", usage=Usage(1, 2, 0.5), message_id="m", position=4)
    rows.put(Finish("a", "completed", "", 2))
    ended = rows.runs["a"]
    assert (ended.text, ended.usage, ended.message_id, ended.position) == ("so far", Usage(1, 2, 0.5), "m", 4)
    assert (ended.prompt, ended.content) == (Prompt("do a"), "content of a")


# --- moves: places ---------------------------------------------------------------------------------------------------


def test_a_move_deals_the_same_places_out_again(rows: Rows) -> None:
    assert places(rows) == {"b": 2, "c": 3, "d": 4}
    rows.put(MoveRun("d", "b", 2))
    assert places(rows) == {"d": 2, "b": 3, "c": 4}
    rows.put(MoveRun("d", None, 2))
    assert places(rows) == {"b": 2, "c": 3, "d": 4}


def test_a_move_changes_only_the_runs_between(rows: Rows) -> None:
    rows.put(MoveRun("d", "c", 2))
    assert set(rows.changed) == {"c", "d"}


def test_a_run_accepted_after_moves_is_last(rows: Rows) -> None:
    rows.put(MoveRun("b", None, 2))
    rows.submit("e")
    assert list(places(rows)) == ["c", "d", "b", "e"]
    assert sorted(places(rows).values()) == list(places(rows).values())


def test_a_moved_run_starts_where_it_stands(rows: Rows) -> None:
    rows.put(MoveRun("d", "b", 2))
    rows.put(Finish("a", "completed", "", 3))
    assert rows.runs["d"].state == "active"
    assert list(places(rows)) == ["b", "c"]


# --- restore ---------------------------------------------------------------------------------------------------------


def test_idle_lane_is_restored_from_its_record_alone() -> None:
    assert restore(LaneRecord("s", 9, 4, 2), []) == Lane(next_seq=4, mark=2, version=9)


def test_the_first_record_of_a_lane_is_the_empty_lane() -> None:
    assert restore(LaneRecord("s"), []) == Lane()


def test_a_lane_is_restored_whole() -> None:
    rows = Rows()
    rows.submit("a")
    rows.submit("b", "fold")
    rows.put(BeginStep("a", 1))
    rows.put(Recover("resume", 1))
    rows.submit("c", "fold")
    rows.submit("d")
    rows.put(CancelRun("a", 1))
    assert rows.restored() == Lane(
        next_seq=5,
        mark=0,
        active=LaneRun("a", 1, steps=1, resumes=1, cancelled=True),
        queue=(LaneRun("c", 3, folds=True), LaneRun("d", 4)),
        folded=(LaneRun("b", 2, folds=True),),
        version=9,
    )


def test_a_restored_lane_still_knows_what_a_cancel_covered(rows: Rows) -> None:
    rows.put(Cancel(2))
    rows.submit("e")
    restored = rows.restored()
    assert restored.state_of("a") == "stopping"
    assert restored.state_of("e") == "queued"


def test_runs_folded_after_a_move_are_restored_as_they_were() -> None:
    rows = Rows()
    rows.submit("a")
    rows.submit("b", "fold")
    rows.submit("c", "fold")
    rows.put(MoveRun("c", "b", 2))
    rows.put(BeginStep("a", 3))


# --- what a Run is asked to do ---------------------------------------------------------------------------------------

PROMPT = Prompt("hello", (Attachment("a.txt", "a.txt", "text/plain", 2, "digest"),))


def test_the_same_request_has_the_same_digest() -> None:
    again = Prompt("hello", (Attachment("a.txt", "a.txt", "text/plain", 2, "digest"),))
    assert content_digest("s", PROMPT, RunOptions()) == content_digest("s", again, RunOptions())
    assert len(content_digest("s", PROMPT, RunOptions())) == 64


@pytest.mark.parametrize(
    ("session_id", "prompt", "options"),
    [
        ("t", PROMPT, RunOptions()),
        ("s", replace(PROMPT, text="hello "), RunOptions()),
        ("s", replace(PROMPT, attachments=()), RunOptions()),
        ("s", replace(PROMPT, attachments=PROMPT.attachments * 2), RunOptions()),
        ("s", Prompt("hello", (replace(PROMPT.attachments[0], digest="other"),)), RunOptions()),
        ("s", PROMPT, RunOptions(model="other")),
        ("s", PROMPT, RunOptions(max_steps=1)),
        ("s", PROMPT, RunOptions(timeout_s=1.0)),
        ("s", PROMPT, RunOptions(budget_usd=1.0)),
        ("s", PROMPT, RunOptions(on_disconnect="cancel")),
        ("s", PROMPT, RunOptions(on_approval="fail")),
        ("s", PROMPT, RunOptions(allow=("bash",))),
        ("s", PROMPT, RunOptions(deny=("bash",))),
        ("s", PROMPT, RunOptions(mode="yolo")),
    ],
)
def test_another_request_has_another_digest(session_id: str, prompt: Prompt, options: RunOptions) -> None:
    assert content_digest(session_id, prompt, options) != content_digest("s", PROMPT, RunOptions())


def test_text_cannot_be_made_to_look_like_another_field() -> None:
    assert content_digest("s", Prompt("a', 'b"), RunOptions()) != content_digest("s', 'a", Prompt("b"), RunOptions())


def test_text_that_is_no_valid_unicode_has_a_digest_too() -> None:
    assert content_digest("s", Prompt("\ud800"), RunOptions()) != content_digest("s", Prompt("?"), RunOptions())


# --- the rest --------------------------------------------------------------------------------------------------------


def test_usage_adds_up() -> None:
    assert Usage(1, 2, 0.5) + Usage(10, 20, 0.25) + Usage() == Usage(11, 22, 0.75)


def test_positions_of_logs_are_disjoint_and_below_2_to_53() -> None:
    bases = sorted(first_position(f"w{number}") for number in range(1000))
    assert min(later - earlier for earlier, later in pairwise(bases)) > 1_000_000
    assert bases[-1] + 10**12 < 2**53
    assert first_position("w1") == first_position("w1")


def test_the_prompt_is_shown_as_the_users_message() -> None:
    run = replace(new_record("a"), prompt=PROMPT)
    assert user_message("m", run, 5) == Message(
        "m", "s", "user", (Text("hello"), AttachedFile("a.txt", "text/plain", 2, "digest")), 5, 5, "a"
    )


def test_a_prompt_of_attachments_alone_has_no_empty_text() -> None:
    run = replace(new_record("a"), prompt=replace(PROMPT, text=""))
    assert user_message("m", run, 5).parts == (AttachedFile("a.txt", "text/plain", 2, "digest"),)


def test_size_of_a_prompt_is_that_of_its_text_and_files() -> None:
    assert (PROMPT.size, replace(PROMPT, text="é\ud800").size, Prompt("").size) == (7, 2 + 3 + 2, 0)


def test_equal_contents_have_equal_digests() -> None:
    assert attachment_digest(b"a") == attachment_digest(bytes([97])) != attachment_digest(b"b")


def test_merged_options_allow_what_all_runs_allow() -> None:
    host = RunOptions(allow=("bash", "fetch"), deny=("edit",), mode="yolo", on_approval="fail", max_steps=3)
    assert host.merged_with([]) == host
    cautious = RunOptions(allow=("fetch",), deny=("edit", "view(.env)"))
    expected = replace(host, allow=("fetch",), deny=("edit", "view(.env)"), on_approval="ask")
    assert host.merged_with([cautious]) == expected
    bold = RunOptions(mode="yolo", on_approval="fail")
    assert host.merged_with([bold]) == replace(host, deny=("edit",))


def test_a_version_keeps_the_content_before_the_first_change() -> None:
    first = FileVersion(file_version_id("w", "r", "/f"), "w", "s", "r", "/f", before="a", after=("b",), created_at=1)
    assert first.id == file_version_id("w", "r", "/f") != file_version_id("w", "r", "/g")
    second = first.changed("b", "c")
    assert (second.before, second.after) == ("a", ("b", "c"))
    assert second.changed("b", "c") == second, "a repeated append changes nothing"
    assert first.changed("elsewhere", "c").after == ("c",), "another program has changed the file in between"
    assert [second.is_own(digest) for digest in ("a", "b", "c", "d")] == [True, True, True, False]


def test_effort_of_the_session_is_for_its_model() -> None:
    session = SessionRecord("s", "w", "", 0, 0, model="p/m", effort="high")
    assert session.effort_of(RunOptions()) == "high"
    assert session.effort_of(RunOptions(model="p/m")) == "high"
    assert session.effort_of(RunOptions(model="p/other")) == "", "another model may refuse it"
    assert session.effort_of(RunOptions(effort="")) == "", "the default of the model, for this Run"
    assert session.effort_of(RunOptions(model="p/other", effort="low")) == "low"


def test_resumed_run_waits_for_no_node() -> None:
    waiting = replace(new_record("a"), state="active", waits_for_node=True, started_at=1)
    lane = apply_all(Lane(), (RunAccepted("a", 1, False, 1), RunStarted("a", 1), RunResumed("a", 5)))
    resumed = project({"a": waiting}, (RunResumed("a", 5),), lane)["a"]
    assert (resumed.waits_for_node, resumed.started_at, resumed.resumes, resumed.trace) == (False, 5, 1, ())


# --- authors ---------------------------------------------------------------------------------------------------------


def test_place_of_a_run_that_overtakes_is_stored() -> None:
    rows = Rows()
    for run_id, author in (("a", "ann"), ("b", "ann"), ("c", "ann"), ("d", "ann"), ("e", "bob")):
        rows.put(Submit(run_id, f"content of {run_id}", "queue", 1, author=author))
    assert places(rows) == {"b": 2, "e": 3, "c": 4, "d": 5}
    assert set(rows.changed) == {"c", "d", "e"}
    assert [run.author for run in rows.restored().queue] == ["ann", "bob", "ann", "ann"]


def test_records_name_the_user_who_cancelled() -> None:
    rows = Rows()
    rows.submit("a")
    rows.submit("b", "fold")
    rows.put(BeginStep("a", 1))
    for run_id in ("c", "d", "e"):
        rows.submit(run_id)
    rows.put(CancelRun("c", 2, author="ann"))
    rows.put(CancelRun("a", 2, author="bob"))
    rows.put(Cancel(3, "ann"))
    assert rows.runs["a"].trace == (TraceEntry("cancel_run", 2, author="bob"), TraceEntry("cancel", 3, 5, author="ann"))
    rows.put(Finish("a", "completed", "", 4))
    by = {run_id: run.cancelled_by for run_id, run in rows.runs.items()}
    assert by == {"a": "bob", "b": "bob", "c": "ann", "d": "ann", "e": "ann"}
