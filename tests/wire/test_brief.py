"""Tool calls and results in one line."""

from __future__ import annotations

import pytest

from kedge.wire.brief import call_text, diff_of, result_brief


@pytest.mark.parametrize(
    ("display", "arguments", "text"),
    [
        ("command", '{"command": "cd x\\nmake"}', "$ cd x\nmake"),
        ("command", '{"command": " "}', "the title"),
        ("command", '{"command": 3}', "the title"),
        ("command", '{"command": ', "the title"),
        ("compact", '{"command": "cd x\\nmake"}', "the title"),
    ],
)
def test_call_text_is_the_title_or_the_whole_command(display: str, arguments: str, text: str) -> None:
    assert call_text("the title", display, arguments) == text


@pytest.mark.parametrize(
    ("summary", "is_error", "brief"),
    [
        ("exit 1, 2.3 s", False, "exit 1, 2.3 s"),
        ("denied", True, "denied"),
        ("", True, "failed: the content"),
        ("", False, ""),
    ],
)
def test_result_brief(summary: str, is_error: bool, brief: str) -> None:
    assert result_brief(summary, "the content", is_error=is_error) == brief


def test_diff_of_metadata() -> None:
    assert diff_of('{"diff": "+x"}') == "+x"
    assert diff_of("") == diff_of("{}") == diff_of("not json") == ""
