"""Diffs: applied to the old text they give the new one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.tools.diff import compare, lines_of
from kedge.tools.matching import replace
from kedge.tools.tool_failed import ToolFailed

TEXT = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "-\n", "+x\n"]), max_size=30).map("".join)
END = st.sampled_from(["", "a", "b"])


def apply(diff: str, old: str) -> str:
    """As `patch` does it, with no tolerance."""
    before, after, at = lines_of(old), list[str](), 0
    body = diff.split("\n", 2)[2] if diff else ""
    for row in re.findall(r"[^\n]*\n(?:\\ [^\n]*\n)?", body):
        head = re.match(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", row)
        line = row[1:].replace("\n\\ No newline at end of file\n", "")
        if head:
            start = int(head[1]) - (head[2] != "0")
            after += before[at:start]
            at = start
            assert len(after) == int(head[3]) - (head[4] != "0")
        elif row[0] == "+":
            after.append(line)
        else:
            assert before[at] == line
            after += [line] if row[0] == " " else []
            at += 1
    return "".join(after + before[at:])


@given(TEXT, END, TEXT, END)
def test_applied_diff_gives_the_new_text(old: str, old_end: str, new: str, new_end: str) -> None:
    before, after = old + old_end, new + new_end
    diff = compare(before, after, "x")
    assert apply(diff.text, before) == after
    assert (diff.text == "") == (before == after)
    assert diff.additions - diff.deletions == len(lines_of(after)) - len(lines_of(before))


def test_too_large_text_is_shown_as_replaced() -> None:
    old = "".join(f"{n % 7}\n" for n in range(4000))  # no line stands once, so there is no place to cut
    new = "".join(f"{n % 7}\n" for n in reversed(range(4000)))
    diff = compare("same\n" + old, "same\n" + new, "x")
    assert (diff.additions, diff.deletions) == (4000, 4000)
    assert apply(diff.text, "same\n" + old) == "same\n" + new


@given(st.lists(st.integers(0, 40), max_size=40), st.lists(st.integers(0, 40), max_size=40))
def test_applied_diff_of_a_split_text_gives_the_new_text(old: list[int], new: list[int]) -> None:
    before, after = ("".join(f"{n}\n" for n in lines) for lines in (old, new))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kedge.tools.diff.COMPARED_STEPS_MAX", 30)
        diff = compare(before, after, "x")
    assert apply(diff.text, before) == after


@pytest.mark.found(
    "attack: a diff of a long file",
    "for a file with more than 2,000 lines whose first and last lines changed, the diff showed no added line: "
    "all removed lines came first, and then the diff was cut; long texts are compared piece by piece now, and what is "
    "too large to be shown whole is not done",
)
def test_changes_at_both_ends_are_two_hunks() -> None:
    lines = [f"line {n}\n" for n in range(12_000)]
    diff = compare("".join(lines), "".join(["first\n", *lines[1:-1], "last\n"]), "x")
    assert (diff.additions, diff.deletions) == (2, 2)
    assert diff.is_whole
    assert "+first\n" in diff.text
    assert "+last\n" in diff.text


@given(st.text("ab \n\r", max_size=30), st.text("ab \n", min_size=1, max_size=5), st.text("xy\n", max_size=5))
def test_replacement_keeps_the_rest(text: str, old: str, new: str) -> None:
    """Check that the text before and after the replacement is unchanged, with any line endings."""
    try:
        done = replace(text, old, new, False, "x")
    except ToolFailed:
        return
    same_start = next((at for at, (a, b) in enumerate(zip(text, done.text, strict=False)) if a != b), len(text))
    assert done.count == 1
    if not done.note:
        plain = text.replace("\r\n", "\n")
        start = plain.index(old)
        # A lone carriage return may end up before a line feed, like a CRLF. Ignore carriage returns.
        expected = plain[:start] + new + plain[start + len(old) :]
        assert done.text.replace("\r", "") == expected.replace("\r", "")
        lines_before = plain.count("\n", 0, start)
        assert same_start >= len("".join(line for line in lines_of(text)[:lines_before]))
        tail = lines_of(text)[lines_before + old.count("\n") + 1 :]
        assert done.text.endswith("".join(tail))
