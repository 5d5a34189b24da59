"""Ways through the core that no other test here takes (test_coverage.py says which are taken)."""

from __future__ import annotations

from typing import cast

import pytest

from kedge.core.commands import Cancel, Command
from kedge.core.events import LaneEvent
from kedge.core.lane import Lane, LaneRun, apply, covered_by, decide
from kedge.core.transcript import (
    SUMMARY,
    AttachedFile,
    Binary,
    FinishPart,
    ImageUrl,
    Message,
    Reasoning,
    Role,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
    chars_of,
    for_model,
)
from kedge.core.untrusted_text import is_invisible, json_object, one_line, visible, visible_diff, without_surrogates


def message(number: int, role: Role, text: str, is_summary: bool = False) -> Message:
    return Message(f"m{number}", "s", role, (Text(text),), 1, 1, "r", is_summary=is_summary)


def test_unknown_command_or_event_is_an_error() -> None:
    lane, stranger = Lane(active=LaneRun("r", 1)), object()
    with pytest.raises(AssertionError, match="unreachable"):
        decide(lane, cast(Command, stranger))
    with pytest.raises(AssertionError, match="unreachable"):
        apply(lane, cast(LaneEvent, stranger))
    with pytest.raises(AssertionError, match="unreachable"):
        covered_by(lane, cast(Cancel, stranger))
    assert lane == Lane(active=LaneRun("r", 1))


def test_a_model_is_sent_the_summary_and_what_came_after_it() -> None:
    told = [
        message(1, "user", "long ago"),
        message(2, "assistant", "an older summary", is_summary=True),
        message(3, "assistant", "the summary", is_summary=True),
        message(4, "user", "and now"),
        message(5, "assistant", "one that was begun and is not in use", is_summary=True),
    ]
    summary, now = for_model(told, summary_message_id="m3")
    assert (summary.role, summary.text, summary.is_summary) == ("user", f"{SUMMARY}the summary", False)
    assert now == told[3]
    assert for_model(told) == [told[0], told[3]]
    assert for_model(told, "gone") == [told[0], told[3]]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("git status", "git status"),
        ("grüße 日本\n\tmore", "grüße 日本\n\tmore"),
        ("a\x1b[0mb\r", "a\\u{1b}[0mb\\u{d}"),
        ("\u202egnp.exe\u200b", "\\u{202e}gnp.exe\\u{200b}"),
        ("a\u00a0b\u2800c", "a\\u{a0}b\\u{2800}c"),
        ("a \\ \nb\t\n  \n\nc\f\x85\u2028", "a \\\\u{20}\nb\\u{9}\n \\u{20}\n\nc\\u{c}\\u{85}\\u{2028}"),
        ("x\ufe0fy\U000e0100z\u180b", "x\\u{fe0f}y\\u{e0100}z\\u{180b}"),
        ("e\u0301 \u0301", "e\u0301 \\u{301}"),
        ("e\u0301\u0302\u0303\u0304", "e\u0301\u0302\u0303\\u{304}"),
        ("r\u0336m\u20dd", "r\\u{336}m\\u{20dd}"),
    ],
)
def test_what_people_are_shown_hides_nothing(text: str, seen: str) -> None:
    assert visible(text) == seen
    assert not any(map(is_invisible, seen.replace("\n", "").replace("\t", "")))


def test_the_sign_of_a_diff_line_is_no_blank_at_its_end() -> None:
    assert visible_diff(" \n+\n+a\t\n-b\r \n  \n") == " \n+\n+a\\u{9}\n-b\\u{d}\\u{20}\n \\u{20}\n"
    assert visible("words  ", mark_ends=False) == "words  "


def test_title_is_the_first_nonblank_line_and_is_cut() -> None:
    assert one_line("\n \n  tell\tme \nmore", 20) == "tell\\u{9}me"
    assert one_line("one two three", 8) == "one two…"
    assert one_line(" \n", 8) == ""
    assert one_line("\u200b" * 1_000_000, 8) == "\\u{200b…"


def test_every_part_of_a_message_counts_for_its_size() -> None:
    parts = (
        Text("1"),
        Reasoning("22"),
        ToolCall("c", "view", "333"),
        Binary("a.png", "image/png", "4444"),
        AttachedFile("b.png", "image/png", 10, "digest"),  # 16 characters as base64
        ToolResult("c", "view", "55555", images=("666666",)),
        ShellCommand("ls", "7777777", 0),
        ImageUrl("88888888"),
        FinishPart("end_turn", 1),
    )
    assert chars_of(Message("m", "s", "user", parts, 1, 1, "r")) == 1 + 2 + 3 + 4 + 16 + 5 + 6 + 2 + 7 + 8


def test_text_for_stores_has_no_lone_surrogates() -> None:
    assert without_surrogates("plain") == "plain"
    assert without_surrogates("é\ud800") == "é?"


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": "\ud800"}', '{"a":' * 5000])
def test_invalid_json_reads_as_an_empty_object(text: str) -> None:
    assert json_object(text) == {}
    assert json_object('{"a": 1}') == {"a": 1}
