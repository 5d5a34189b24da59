"""Messages, their parts, and what of them a model is sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kedge.core.reversal import Reversal
from kedge.core.transcript import (
    NO_RESULT,
    NOT_RUN,
    PART_TYPES,
    AttachedFile,
    Binary,
    FinishPart,
    FinishReason,
    ImageUrl,
    Message,
    Part,
    Reasoning,
    Role,
    ShellCommand,
    Tail,
    Text,
    ToolCall,
    ToolResult,
    for_model,
    result_without_return,
    with_tails,
)


def message(id: str, role: Role, *parts: Part, run_id: str = "r") -> Message:  # noqa: A002 - the word of the wire
    return Message(id, "s", role, parts, 1, 1, run_id)


def user(id: str, text: str, run_id: str = "r") -> Message:  # noqa: A002
    return message(id, "user", Text(text), run_id=run_id)


def end(reason: FinishReason) -> FinishPart:
    return FinishPart(reason, 9)


CALL = ToolCall("c1", "shell", "{}")
RESULT = ToolResult("c1", "shell", "ok")
MISSING = ToolResult("c1", "shell", NO_RESULT, is_error=True)


# --- a message -------------------------------------------------------------------------------------------------------


def test_the_text_of_a_message_is_all_its_text_and_nothing_else() -> None:
    said = message("m", "assistant", Reasoning("hm"), Text("a"), CALL, Text("b"), end("end_turn"))
    assert said.text == "ab"
    assert said.all(ToolCall) == [CALL]
    assert said.finish == end("end_turn")


def test_a_message_without_an_end_is_open() -> None:
    assert message("m", "assistant", Text("a")).finish is None


def test_closing_a_message_adds_its_end_and_the_time_of_it() -> None:
    closed = message("m", "assistant", Text("a")).closed(end("canceled"))
    assert closed.parts == (Text("a"), end("canceled"))
    assert closed.updated_at == 9


def test_the_first_end_of_a_message_stays() -> None:
    closed = message("m", "assistant").closed(end("canceled"))
    assert closed.closed(FinishPart("end_turn", 99)) is closed


def test_defaults_of_calls_and_results() -> None:
    assert CALL.finished
    assert not RESULT.is_error


def test_every_part_is_known_by_its_kind() -> None:
    assert {
        "text": Text,
        "reasoning": Reasoning,
        "tool_call": ToolCall,
        "tool_result": ToolResult,
        "finish": FinishPart,
        "file": AttachedFile,
        "image_url": ImageUrl,
        "shell_command": ShellCommand,
        "reversal": Reversal,
    } == PART_TYPES


# --- tails -----------------------------------------------------------------------------------------------------------


def tail(part: int, text: str, *, reasoning: bool = False) -> Tail:
    return Tail("m", "s", part, "reasoning" if reasoning else "text", text)


def test_tails_add_to_the_parts_they_name() -> None:
    stored = message("m", "assistant", Reasoning("so", "signed", 1, 2), Text("He"))
    grown = with_tails(stored, [tail(0, " be it", reasoning=True), tail(1, "llo")])
    assert grown.parts == (Reasoning("so be it", "signed", 1, 2), Text("Hello"))


def test_a_tail_makes_the_part_that_is_not_there_yet() -> None:
    grown = with_tails(message("m", "assistant"), [tail(0, "hm", reasoning=True), tail(1, "a"), tail(1, "b")])
    assert grown.parts == (Reasoning("hm"), Text("ab"))


def test_a_message_without_tails_is_the_stored_one() -> None:
    stored = message("m", "assistant", Text("a"), CALL)
    assert with_tails(stored, []) == stored


def test_a_tail_for_a_part_that_cannot_grow_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError, match="part 0 of message m"):
        with_tails(message("m", "assistant", CALL), [tail(0, "a")])


@given(st.lists(st.text(), max_size=20))
def test_text_cut_into_tails_anywhere_comes_back_whole(pieces: list[str]) -> None:
    grown = with_tails(message("m", "assistant", Text("")), [tail(0, piece) for piece in pieces])
    assert grown.text == "".join(pieces)


# --- what a model is sent --------------------------------------------------------------------------------------------


def test_a_whole_transcript_is_sent_as_it_is() -> None:
    said = [
        user("u1", "list the files"),
        message("a1", "assistant", Reasoning("hm"), Text("I look."), CALL, end("tool_use")),
        message("t1", "tool", RESULT),
        message("a2", "assistant", Text("Two files."), end("end_turn")),
        user("u2", "thanks", run_id="r2"),
    ]
    sent = for_model(said)
    assert [one.parts for one in sent] == [one.parts for one in said]
    assert [one.role for one in sent] == ["user", "assistant", "tool", "assistant", "user"]


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    said = [user("u1", "go"), message("a1", "assistant", CALL, end("canceled")), user("u2", "and now?", run_id="r2")]
    sent = for_model(said)
    assert sent == [
        said[0],
        said[1],
        replace(said[1], id="a1-results", role="tool", parts=(MISSING,)),
        said[2],
    ]


def test_of_parallel_calls_only_the_one_cut_off_is_said_to_be() -> None:
    both = message("a1", "assistant", CALL, ToolCall("c2", "read", "{}"), end("canceled"))
    sent = for_model([both, message("t1", "tool", ToolResult("c2", "read", "text"))])
    assert sent[1].parts == (MISSING, ToolResult("c2", "read", "text"))


def test_results_stand_right_behind_their_call_in_its_order() -> None:
    said = [
        message("a1", "assistant", CALL, ToolCall("c2", "read", "{}"), end("tool_use")),
        user("u2", "by the way", run_id="r"),
        message("t2", "tool", ToolResult("c2", "read", "text")),
        message("t1", "tool", RESULT),
    ]
    sent = for_model(said)
    assert [one.role for one in sent] == ["assistant", "tool", "user"]
    assert sent[1].parts == (RESULT, ToolResult("c2", "read", "text"))


def test_a_result_without_its_call_is_left_out() -> None:
    assert for_model([user("u1", "go"), message("t1", "tool", RESULT)]) == [user("u1", "go")]


def test_a_result_before_its_call_does_not_count() -> None:
    sent = for_model([message("t1", "tool", RESULT), message("a1", "assistant", CALL)])
    assert sent[1].parts == (MISSING,)


def test_a_result_of_another_run_does_not_count() -> None:
    sent = for_model([message("a1", "assistant", CALL, run_id="r1"), message("t1", "tool", RESULT, run_id="r2")])
    assert sent[1].parts == (MISSING,)


def test_a_call_id_used_in_two_steps_keeps_each_steps_own_result() -> None:
    """Some providers count the calls of each Step from 0: call_0, call_0."""
    said = [
        message("a1", "assistant", CALL, end("tool_use")),
        message("t1", "tool", ToolResult("c1", "shell", "first")),
        message("a2", "assistant", CALL, end("tool_use")),
        message("t2", "tool", ToolResult("c1", "shell", "second")),
    ]
    sent = for_model(said)
    assert [part.content for one in sent for part in one.all(ToolResult)] == ["first", "second"]


def test_a_failed_attempt_that_was_tried_again_is_left_out() -> None:
    said = [
        user("u1", "go"),
        message("a1", "assistant", Text("Two fi"), end("error")),
        message("a2", "assistant", Text("Two files."), end("end_turn")),
    ]
    assert for_model(said) == [said[0], said[2]]


def test_a_failed_attempt_takes_its_results_along() -> None:
    said = [
        message("a1", "assistant", CALL, end("error")),
        message("t1", "tool", RESULT),
        message("a2", "assistant", Text("Two files."), end("end_turn")),
    ]
    assert for_model(said) == [said[2]]


def test_a_failed_attempt_that_was_the_last_of_its_run_stays() -> None:
    said = [
        message("a1", "assistant", Text("Two fi"), end("error"), run_id="r1"),
        message("a2", "assistant", Text("Hello"), end("end_turn"), run_id="r2"),
    ]
    assert for_model(said) == said


def test_cancelled_prompts_and_their_answers_are_omitted() -> None:
    said = [
        user("u1", "first", run_id="r1"),
        user("u2", "folded into it", run_id="r2"),
        message("a1", "assistant", Text("Two fi"), end("canceled"), run_id="r1"),
        user("u3", "dropped from the queue", run_id="r3"),
        message("a3", "assistant", end("canceled"), run_id="r3"),
        message("u4", "user", ShellCommand("ls", "", 0), run_id=""),
        user("u5", "next", run_id="r5"),
    ]
    assert for_model(said) == said[-2:]


def test_steps_before_a_cancel_are_sent_with_their_prompt() -> None:
    """They may have had effects."""
    said = [
        user("u1", "before", run_id="r0"),
        user("u2", "go", run_id="r"),
        message("a1", "assistant", CALL, end("tool_use")),
        message("t1", "tool", RESULT),
        user("u3", "folded", run_id="r1"),
        message("a2", "assistant", Text("Two fi"), end("canceled")),
    ]
    sent = for_model(said)
    assert [one.parts for one in sent] == [one.parts for one in said[:4]]


def test_cancelled_attempt_omits_the_failed_ones_before_it() -> None:
    said = [
        user("u1", "go"),
        message("a1", "assistant", Text("Two"), end("error")),
        message("a2", "assistant", Text("Two fi"), end("canceled")),
    ]
    assert for_model(said) == []


def test_summary_that_failed_has_no_text() -> None:
    half = Message("m", "s", "assistant", (Text("half"),), 1, 1, is_summary=True)
    assert half.closed(end("error")).parts == (end("error"),)
    assert half.closed(end("end_turn")).parts == (Text("half"), end("end_turn"))


def test_result_of_a_call_that_returned_none() -> None:
    assert result_without_return(CALL, has_begun=True).end == "cut_off"
    not_run = result_without_return(CALL, has_begun=False)
    assert (not_run.end, not_run.content) == ("not_run", NOT_RUN)


@pytest.mark.parametrize(
    "parts", [(), (Text(""),), (end("canceled"),), (Reasoning("hm"), end("canceled")), (Text(""), end("error"))]
)
def test_a_message_with_nothing_in_it_for_a_model_is_left_out(parts: tuple[Part, ...]) -> None:
    assert for_model([message("a1", "assistant", *parts)]) == []


@pytest.mark.parametrize(
    "part", [Text("a"), CALL, Binary("a.png", "image/png", "aGk="), ImageUrl("http://x"), ShellCommand("ls", "", 0)]
)
def test_a_message_with_anything_else_is_sent(part: Part) -> None:
    assert for_model([message("a1", "user", part)]) == [message("a1", "user", part)]


CALL_IDS = ["c1", "c2", "c3"]
PARTS = st.one_of(
    st.sampled_from([Text(""), Text("a"), Reasoning("hm"), end("canceled"), end("error"), end("tool_use")]),
    st.sampled_from(CALL_IDS).map(lambda call: ToolCall(call, "shell", "{}")),
)
SAID = st.one_of(
    st.tuples(st.just("assistant"), st.lists(PARTS, max_size=4)),
    st.tuples(st.just("tool"), st.lists(st.sampled_from(CALL_IDS).map(lambda call: ToolResult(call, "shell", "ok")))),
    st.tuples(st.just("user"), st.just([Text("go")])),
)


@given(st.lists(st.tuples(SAID, st.sampled_from(["r1", "r2"])), max_size=8))
def test_whatever_was_cut_off_no_call_and_no_result_dangles(
    history: list[tuple[tuple[Role, list[Part]], str]],
) -> None:
    said = [message(f"m{n}", role, *parts, run_id=run) for n, ((role, parts), run) in enumerate(history)]
    sent = for_model(said)
    for index, one in enumerate(sent):
        calls = [call.id for call in one.all(ToolCall)]
        follows = [result.tool_call_id for result in sent[index + 1].all(ToolResult)] if index + 1 < len(sent) else []
        assert follows == calls or one.role != "assistant"
        if one.role == "tool":
            assert index > 0
            assert [call.id for call in sent[index - 1].all(ToolCall)] == [r.tool_call_id for r in one.all(ToolResult)]
    # The user's text is omitted only before an answer that was cancelled, and nothing changes the order.
    cancelled = [n for n, one in enumerate(said) if one.finish and one.finish.reason == "canceled"]
    uncancelled = said[max(cancelled, default=-1) + 1 :]
    assert all(one in sent for one in uncancelled if one.role == "user")
    ids = [one.id for one in sent if one.role in ("user", "assistant")]
    assert ids == [one.id for one in said if one.id in ids]
    # What is complete is not changed any more.
    assert [one.parts for one in for_model(sent)] == [one.parts for one in sent]
