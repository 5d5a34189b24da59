"""Hooks: which tools a matcher covers, and what exit codes and answers mean."""

from __future__ import annotations

import json

import pytest

from kedge.core.approvals import Confinement, Intent, IntentPart, Permit, Rules
from kedge.core.hooks import (
    HOOK_TEXT_CHARS_MAX,
    NO_ANSWER,
    HookAnswer,
    HookEvent,
    combined,
    hook_input,
    hook_tool_name,
    matcher_mistake,
    matches_tool,
    own_input,
    parse_answer,
)
from kedge.core.modes import permit_in_mode


def answer(output: object, event: HookEvent = "PreToolUse") -> HookAnswer:
    return parse_answer(event, 0, json.dumps(output).encode(), b"")


@pytest.mark.parametrize(
    ("matcher", "covered"),
    [
        ("", {"bash", "edit", "multiedit", "mcp__git__log"}),
        ("*", {"bash", "edit", "multiedit", "mcp__git__log"}),
        ("Bash", {"bash"}),
        ("bash | Edit", {"bash", "edit", "multiedit"}),
        ("MultiEdit", {"multiedit"}),
        ("mcp__.*", {"mcp__git__log"}),
        ("Bas", set()),
        ("^Bash$", {"bash"}),
        ("^(Bash|Edit)$", {"bash", "edit", "multiedit"}),
    ],
)
def test_matchers_take_names_of_both_agents(matcher: str, covered: set[str]) -> None:
    tools = ("bash", "edit", "multiedit", "mcp__git__log")
    assert {tool for tool in tools if matches_tool(matcher, tool)} == covered
    assert matcher_mistake(matcher) == ""


def test_regular_expressions_are_mistakes() -> None:
    for matcher in ("^(Bash|Edit)+$", "^Bas", "Edit|Write$", "^(Bash)|Edit$", "(Bash)"):
        assert "not a valid matcher" in matcher_mistake(matcher)


def test_files_have_the_name_of_other_agents() -> None:
    assert (hook_tool_name("view"), hook_tool_name("mcp__x__y")) == ("Read", "mcp__x__y")
    sent = hook_input("edit", {"path": "a.txt"}, "/w")
    assert sent == {"path": "a.txt", "file_path": "/w/a.txt"}
    assert hook_input("view", {"path": "/etc/x"}, "/w")["file_path"] == "/etc/x"
    assert hook_input("bash", {"command": "ls"}, "/w") == {"command": "ls"}
    assert hook_input("edit", {"path": 1}, "/w") == {"path": 1}
    assert own_input("edit", {**sent, "new_string": "x"}, sent) == {"path": "a.txt", "new_string": "x"}
    assert own_input("edit", {**sent, "file_path": "/w/b"}, sent) == {"path": "/w/b"}
    assert own_input("edit", {"file_path": "/w/a.txt"}, sent) == {"path": "/w/a.txt"}
    assert own_input("bash", {"command": "x"}, {}) == {"command": "x"}


def test_exit_codes() -> None:
    assert parse_answer("Stop", 2, b"{}", b" no \n") == HookAnswer("deny", "no")
    assert parse_answer("PreToolUse", 2, b"", b"") == HookAnswer("deny", "a hook blocks it")
    assert parse_answer("PreToolUse", 1, b"{}", b"") == HookAnswer(errors=("exited with code 1",))
    assert parse_answer("PreToolUse", -9, b"", b"out\nof memory").errors == ("was ended by signal 9: out",)
    long = parse_answer("PreToolUse", 2, b"", b"x" * 2 * HOOK_TEXT_CHARS_MAX).reason
    assert len(long) == HOOK_TEXT_CHARS_MAX + len("\n[cut]")


def test_plain_output_is_context_of_a_prompt_only() -> None:
    assert parse_answer("UserPromptSubmit", 0, b"it rains\n", b"") == HookAnswer(context=("it rains",))
    assert parse_answer("UserPromptSubmit", 0, b"\n", b"") == NO_ANSWER
    assert parse_answer("PreToolUse", 0, b"it rains\n", b"ignored") == NO_ANSWER


def test_answers_in_json() -> None:
    specific = {
        "permissionDecision": "ask",
        "permissionDecisionReason": "why",
        "updatedInput": {"command": "x"},
        "additionalContext": "more",
    }
    assert answer({"hookSpecificOutput": specific, "systemMessage": "hi", "other": 1}) == HookAnswer(
        "ask", "why", {"command": "x"}, ("more",), ("hi",)
    )
    assert answer({"hookSpecificOutput": specific}, "PostToolUse") == HookAnswer(context=("more",))
    assert answer({"decision": "approve"}).decision == "allow"
    assert answer({"decision": "approve"}, "Stop") == NO_ANSWER
    assert answer({"decision": "block", "reason": "no"}, "Stop") == HookAnswer("deny", "no")
    assert answer({"continue": False, "stopReason": "enough"}) == HookAnswer("deny", "enough")
    assert answer({"continue": False}, "Stop") == NO_ANSWER


def test_answers_that_are_not_valid_decide_nothing() -> None:
    assert "not valid: Invalid enum" in answer({"decision": "maybe"}).errors[0]
    assert parse_answer("PreToolUse", 0, b"{oops", b"").errors == ("printed an answer that is not valid JSON",)
    assert parse_answer("PreToolUse", 0, b"[" * 100_000, b"") == NO_ANSWER
    cut = parse_answer("PreToolUse", 0, b'{"decision": "block"}', b"", is_cut=True)
    assert (cut.decision, len(cut.errors)) == ("", 1)


def test_deny_counts_before_ask_and_ask_before_allow() -> None:
    allow, ask = HookAnswer("allow", "a", context=("1",)), HookAnswer("ask", "b", context=("2",), errors=("e",))
    deny = HookAnswer("deny", "c", messages=("m",))
    assert combined([allow]) is allow
    assert combined([allow, ask, deny, HookAnswer("deny", "d")]) == HookAnswer(
        "deny", "c\nd", None, ("1", "2"), ("m",), ("e",)
    )
    assert combined([allow, ask]).decision == "ask"
    assert combined([NO_ANSWER, allow]).decision == "allow"


def test_an_allow_does_not_count_for_the_input_of_another_hook() -> None:
    allow, update = HookAnswer("allow"), HookAnswer(updated_input={"a": 1})
    assert combined([allow, update]) == HookAnswer(updated_input={"a": 1})
    own = HookAnswer("allow", updated_input={"a": 2})
    assert combined([update, own]) == HookAnswer("allow", updated_input={"a": 2})


def intent(action: str = "execute", **fields: object) -> Intent:
    return Intent(("bash",), action, "x", "x", "/w", "{}", "b", **fields)  # type: ignore[arg-type]


PLAIN = (IntentPart(("make",)),)


@pytest.mark.parametrize(
    ("given", "decision", "confinement"),
    [
        (intent(parts=PLAIN), "allow", "workspace"),
        (intent("write"), "allow", "configured"),
        (intent("write", exact_only=True), "ask", "configured"),
        (intent(parts=PLAIN, outlives_run=True), "ask", "configured"),
        (intent(parts=None), "ask", "configured"),
        (intent(parts=(IntentPart(None),)), "ask", "configured"),
        (intent(parts=(IntentPart(("env", "x"), exact_only=True),)), "ask", "configured"),
        (intent(parts=PLAIN, escalation="why"), "ask", "configured"),
    ],
)
def test_an_allow_covers_what_a_wildcard_would(given: Intent, decision: str, confinement: Confinement) -> None:
    permit = permit_in_mode("ask", given, Rules(), (), can_confine=True, hook="allow")
    assert (permit.decision, permit.confinement) == (decision, confinement)


def test_an_ask_asks_wherever_it_would_be_allowed() -> None:
    reading = intent(needs_approval=False)
    assert permit_in_mode("yolo", reading, Rules(), (), can_confine=True, hook="ask") == Permit(
        "ask", confinement="read_only"
    )
    hidden = intent("write", unshown="it is too large")
    assert permit_in_mode("yolo", hidden, Rules(), (), can_confine=True, hook="ask").decision == "refuse"
    assert permit_in_mode("plan", intent("write"), Rules(), (), can_confine=True, hook="ask").decision == "refuse"
