"""core/step: what a Run does next. One test for each line of the policy, and for what wins over what."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kedge.core.records import Purpose
from kedge.core.step import (
    CHARS_PER_TOKEN,
    IMAGE_TOKENS,
    RECENT_CALLS,
    REPEATS_MAX,
    CallModel,
    CallTools,
    Compact,
    End,
    Limits,
    Progress,
    estimated_tokens,
    next_action,
    repeats,
    signature,
    signatures,
)
from kedge.core.transcript import (
    Binary,
    FinishPart,
    FinishReason,
    ImageUrl,
    Message,
    Part,
    Reasoning,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
)

LIMITS = Limits(steps_max=10, budget_usd=1.0, compact_at_tokens=1000)
CALL = ToolCall("c1", "view", '{"path": "x"}')
#: All reasons to end at once. Each test removes those that take precedence.
WORST = Progress(
    steps=10,
    cost_usd=1.0,
    context_tokens=1000,
    context_is_full=True,
    is_compacted=True,
    open_calls=(CALL,),
    last="end_turn",
    repeats=REPEATS_MAX,
    unapproved="bash needs an approval",
)


def ended(progress: Progress, limits: Limits = LIMITS) -> End:
    action = next_action(progress, limits)
    assert isinstance(action, End), action
    return action


def test_a_run_begins_by_asking_the_model() -> None:
    assert next_action(Progress(), Limits(1)) == CallModel()


def test_calls_without_a_result_come_before_everything_else() -> None:
    assert next_action(WORST, LIMITS) == CallTools((CALL,))


def test_all_open_calls_are_made_at_once_and_in_their_order() -> None:
    other = ToolCall("c2", "ls", "{}")
    assert next_action(Progress(open_calls=(other, CALL), last="tool_use"), LIMITS) == CallTools((other, CALL))


def test_run_that_needs_an_impossible_approval_ends() -> None:
    assert ended(replace(WORST, open_calls=())) == End("failed", "approval_needed", "bash needs an approval")
    assert ended(Progress(last="tool_use", unapproved="x")).reason == "approval_needed"


@pytest.mark.parametrize("last", ["end_turn", "max_tokens", "canceled", "error", "content_filter", "unknown"])
def test_reply_without_tools_ends_the_run_before_any_limit(last: FinishReason) -> None:
    """Its answer is there: a limit that it reached on the way must not make a failure of it."""
    assert ended(replace(WORST, open_calls=(), unapproved="", last=last)) == End(finish=last)


@pytest.mark.parametrize("last", [None, "tool_use"])
def test_run_continues_after_tools_and_for_a_repeated_step(last: FinishReason | None) -> None:
    assert next_action(Progress(last=last, steps=9, cost_usd=0.99, context_tokens=999), LIMITS) == CallModel()


def test_going_round_in_circles_ends_the_run() -> None:
    action = ended(replace(WORST, open_calls=(), unapproved="", last="tool_use"))
    assert (action.outcome, action.reason) == ("failed", "loop")
    assert str(REPEATS_MAX) in action.error
    assert "another prompt" in action.error
    assert next_action(Progress(last="tool_use", repeats=REPEATS_MAX - 1), LIMITS) == CallModel()


def test_run_ends_exactly_at_max_steps() -> None:
    action = ended(replace(WORST, open_calls=(), unapproved="", last="tool_use", repeats=0))
    assert (action.outcome, action.reason) == ("failed", "max_steps")
    assert "10 steps" in action.error
    assert next_action(Progress(last="tool_use", steps=9), LIMITS) == CallModel()


def test_run_ends_when_its_budget_is_spent() -> None:
    spent = replace(WORST, open_calls=(), unapproved="", last="tool_use", repeats=0, steps=0)
    action = ended(spent)
    assert (action.outcome, action.reason) == ("failed", "budget")
    assert "1 USD" in action.error
    assert ended(Progress(), replace(LIMITS, budget_usd=0.0)).reason == "budget"
    assert next_action(Progress(cost_usd=1e9), replace(LIMITS, budget_usd=None)) == CallModel()


def test_a_history_near_the_limit_is_compacted_first() -> None:
    assert next_action(Progress(context_tokens=1000), LIMITS) == Compact()
    assert next_action(Progress(context_tokens=999), LIMITS) == CallModel()


def test_unknown_context_window_is_checked_by_the_provider() -> None:
    unknown = replace(LIMITS, compact_at_tokens=None)
    assert next_action(Progress(context_tokens=10**9), unknown) == CallModel()
    assert next_action(Progress(context_is_full=True), unknown) == Compact()


def test_what_was_just_compacted_is_not_compacted_again() -> None:
    """Else a summary that is itself near the limit would be summarised for ever."""
    assert next_action(Progress(context_tokens=1000, is_compacted=True), LIMITS) == CallModel()


def test_overlong_request_after_compaction_ends_the_run() -> None:
    action = ended(Progress(context_is_full=True, is_compacted=True))
    assert (action.outcome, action.reason) == ("failed", "context_full")
    assert "too long" in action.error


@pytest.mark.parametrize("last", [None, "end_turn", "tool_use"])
def test_summary_run_ignores_the_limits(last: FinishReason | None) -> None:
    summary: Purpose = "summary"
    used_up = replace(WORST, open_calls=(), unapproved="", purpose=summary, last=last)
    assert next_action(replace(used_up, is_compacted=False), LIMITS) == Compact()
    assert next_action(used_up, LIMITS) == End()


# --- circles -----------------------------------------------------------------------------------------------------


def message(role: str, *parts: Part) -> Message:
    return Message("m", "s", role, parts, 0, 0, "r")  # type: ignore[arg-type]


def step(number: int, name: str = "view", given: str = "{}", said: str = "same") -> list[Message]:
    call = ToolCall(f"c{number}", name, given)
    return [message("assistant", Text("hm"), call), message("tool", ToolResult(call.id, name, said))]


def test_same_call_and_result_have_the_same_signature() -> None:
    one, other = signatures([*step(1), *step(2)])
    assert one == other
    assert repeats([one, other]) == 2


@pytest.mark.parametrize("change", [{"name": "ls"}, {"given": '{"path": "y"}'}, {"said": "another"}])
def test_another_tool_input_or_result_is_another_signature(change: dict[str, str]) -> None:
    one, other = signatures([*step(1), *step(2, **change)])
    assert one != other
    assert repeats([one, other]) == 1


def test_signature_separates_the_parts_of_a_call() -> None:
    first = signature(ToolCall("c", "a", "b"), ToolResult("c", "a", "c"))
    assert first != signature(ToolCall("c", "a", "b', 'c"), ToolResult("c", "a", ""))
    assert first == signature(ToolCall("other", "a", "b"), ToolResult("other", "a", "c", "{}", True))


def test_half_a_surrogate_pair_has_a_signature_too() -> None:
    assert signature(ToolCall("c", "a", "\ud800"), ToolResult("c", "a", "\udfff"))


def test_only_the_latest_calls_are_looked_at() -> None:
    own = [made for number in range(REPEATS_MAX) for made in step(number)]
    own += [made for number in range(100, 100 + RECENT_CALLS) for made in step(number, said=str(number))]
    assert len(signatures(own)) == RECENT_CALLS
    assert repeats(signatures(own)) == 1
    assert repeats(signatures(own[: 2 * REPEATS_MAX])) == REPEATS_MAX


def test_a_call_without_a_result_does_not_count() -> None:
    assert signatures([message("assistant", CALL), *step(2)]) == signatures(step(2))
    assert repeats([]) == 0


def test_loop_of_three_calls_is_detected_within_seven_rounds() -> None:
    own = [made for number in range(RECENT_CALLS) for made in step(number, given=str(number % 3))]
    assert repeats(signatures(own)) >= REPEATS_MAX


# --- tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (Text("x" * 40), 10),
        (ToolCall("c", "view", "x" * 40), 10),
        (ToolResult("c", "view", "x" * 40), 10),
        (ToolResult("c", "view", "x" * 40, images=("data:a", "data:b")), 10 + 2 * IMAGE_TOKENS),
        (ShellCommand("ls", "x" * 40, 0), 10),
        (Binary("a.png", "image/png", "A" * 4000), IMAGE_TOKENS),
        (ImageUrl("https://host/a.png"), IMAGE_TOKENS),
        (Reasoning("x" * 40), 0),
        (FinishPart("end_turn", 0), 0),
    ],
)
def test_each_part_costs_roughly_its_length(part: Part, tokens: int) -> None:
    assert estimated_tokens([message("user", part)]) == tokens


def test_the_parts_of_all_messages_are_counted_together() -> None:
    short = [message("user", Text("x")) for _ in range(CHARS_PER_TOKEN)]
    assert estimated_tokens(short) == 1
    assert estimated_tokens([]) == 0
