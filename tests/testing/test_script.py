from __future__ import annotations

from typing import Any

import pytest

from kedge.testing.script import ScriptError, parse, plan

SCRIPT = {"role": "user", "content": "script: tag t | pause 5 | say a | tool x {} | tool y {} | say b | tool z | say c"}
CALLS = {"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}, {"id": "2"}]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "ok"}
SPOKEN = {"role": "assistant", "content": "c"}
PLAIN = {"role": "user", "content": "hello"}


def verbs(*messages: dict[str, Any]) -> list[str]:
    return [f"{directive.verb} {directive.rest}".strip() for directive in plan(list(messages)).directives]


def test_a_script_is_the_message_that_starts_with_the_mark() -> None:
    assert verbs({"role": "user", "content": "script: say a | hold k"}) == ["say a", "hold k"]
    parts = [{"type": "text", "text": "script: say a"}, {"type": "image_url", "image_url": {}}]
    assert verbs({"role": "user", "content": parts}) == ["say a"]
    assert verbs(PLAIN) == ["echo"]
    assert verbs({"role": "system", "content": "script: say a"}, PLAIN) == ["echo"]


def test_tool_results_carry_the_script_on_behind_their_tools() -> None:
    assert verbs(SCRIPT, CALLS, RESULT, RESULT) == ["pause 5", "say b", "tool z", "say c"]
    assert verbs(SCRIPT, CALLS, RESULT, RESULT, CALLS, RESULT) == ["pause 5", "say c"]


def test_a_plain_message_after_a_tool_result_joins_the_script() -> None:
    assert verbs(SCRIPT, CALLS, RESULT, RESULT, PLAIN) == ["pause 5", "say b", "tool z", "say c"]


def test_a_plain_message_after_the_scripts_run_is_echoed() -> None:
    assert verbs(SCRIPT, CALLS, RESULT, RESULT, CALLS, RESULT, SPOKEN, PLAIN) == ["echo"]
    assert verbs(SCRIPT, PLAIN) == ["echo"]


def test_the_last_script_is_in_force_and_its_tag_stays() -> None:
    assert verbs(SCRIPT, SPOKEN, {"role": "user", "content": "script: say new"}) == ["say new"]
    assert plan([SCRIPT, CALLS, RESULT, RESULT]).tag == "t"
    assert plan([SCRIPT, SPOKEN, PLAIN]).tag == "t"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("script:", "unknown directive ''"),
        ("script: sing a song", "unknown directive 'sing'; known are say, think"),
        ("script: say", "'say' needs an argument"),
        ("script: hang now", "'hang' takes no argument"),
        ("script: pause x", r"'pause' needs 1 number\(s\), not 'x'"),
        ("script: usage 1", r"'usage' needs 2 number\(s\)"),
        ("script: usage 1 2 x", r"'usage' needs 3 number\(s\)"),
        ("script: fail times=2", r"'fail' needs 1 number\(s\)"),
        ("script: fail 500 times=x", "'times' of 'fail' must be a number, not 'x'"),
        ("script: cut now", "'cut' takes only times=N, got 'now'"),
        ("script: title", "unknown directive ''"),
        ("script: title tool x {}", "'title' takes say, wait, hold, fail, cut, garbage, hang, not 'tool'"),
        ("script: summary hold", "'hold' needs an argument"),
    ],
)
def test_a_wrong_directive_is_named(script: str, says: str) -> None:
    with pytest.raises(ScriptError, match=says):
        parse(script)


def test_more_results_than_tools_are_an_error() -> None:
    with pytest.raises(ScriptError, match="4 tool results came for a script with 3 tools"):
        plan([SCRIPT, RESULT, RESULT, RESULT, RESULT])
