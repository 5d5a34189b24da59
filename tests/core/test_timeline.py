"""The Steps and tool calls of a Run, from its messages."""

from __future__ import annotations

import pytest

from kedge.core import timeline as module
from kedge.core.timeline import CallItem, StepItem, StepItems
from kedge.core.transcript import FinishPart, Message, Part, Role, Text, ToolCall, ToolResult


def message(number: int, role: Role, at: int, *parts: Part, updated_at: int = 0) -> Message:
    return Message(f"m{number}", "s", role, parts, at, updated_at or at, "r")


def items_of(steps: int, *messages: Message) -> StepItems:
    items = StepItems(steps)
    for one in messages:
        items.add(one)
    return items


def test_steps_and_calls_have_their_times() -> None:
    requested = (ToolCall("a", "view", "{}", title="view x"), ToolCall("b", "bash", "{}"))
    items = items_of(
        2,
        message(0, "user", 1, Text("do it")),
        message(1, "assistant", 10, *requested, FinishPart("tool_use", 20)),
        message(2, "tool", 30, ToolResult("b", "bash", "no", is_error=True, end="not_run")),
        message(3, "tool", 40, ToolResult("a", "view", "text", started_at=22)),
        message(4, "assistant", 50, Text("half")),
        message(5, "tool", 60, ToolResult("unknown", "view", "")),
        message(6, "assistant", 70, FinishPart("canceled", 70)),
    )
    calls = [
        CallItem("a", "view", "view x", 20, 22, 40, False, "returned"),
        CallItem("b", "bash", "", 20, None, 30, True, "not_run"),
    ]
    assert items.steps == [
        StepItem("m1", 10, 20, "tool_use", False, calls),
        StepItem("m4", 50, None, None, False),
    ], "the message of the end is not a Step"
    assert (items.count, items.omitted) == (4, 0)


def test_calls_of_an_unfinished_message_have_a_time() -> None:
    items = items_of(1, message(1, "assistant", 10, ToolCall("a", "view", "{}"), updated_at=15))
    assert items.steps[0].calls[0].requested_at == 15


def test_items_are_bounded_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUN_ITEMS_MAX", 5)
    calls = [(ToolCall(f"a{number}", "view", "{}"), ToolCall(f"b{number}", "view", "{}")) for number in range(3)]
    items = items_of(9, *(message(number, "assistant", number, *calls[number]) for number in range(3)))
    assert [len(step.calls) for step in items.steps] == [2, 1]
    assert (items.count, items.omitted) == (5, 4)
