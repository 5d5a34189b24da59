"""Positions in texts, as language servers count them, and the comparison of findings."""

from __future__ import annotations

import pytest

from kedge.bridge.lsp_messages import LspFinding, TextChange, new_findings
from kedge.extensions.text_positions import apply_changes, position_of
from kedge.tools.tool_failed import ToolFailed


def test_characters_are_utf_16_units() -> None:
    text = "x = 1\r\ny = '\N{GRINNING FACE}\N{LATIN SMALL LETTER E WITH ACUTE}', name\r\n"
    assert position_of(text, "name", 2, "a.py") == (1, 11)
    assert position_of(text, "name", 0, "a.py") == (1, 11)
    changed = apply_changes(text, [TextChange(1, 11, 1, 15, "other"), TextChange(0, 0, 0, 1, "long_name")], "a.py")
    assert changed == "long_name = 1\r\ny = '\N{GRINNING FACE}\N{LATIN SMALL LETTER E WITH ACUTE}', other\r\n"


def test_symbols_are_whole_words_of_their_line() -> None:
    for symbol, line in (("ad", 0), ("add", 2), ("add", 9), ("", 2)):
        with pytest.raises(ToolFailed):
            position_of("def add():\n    pass", symbol or "(", line, "a.py")


def test_positions_outside_of_the_text_are_its_end() -> None:
    assert apply_changes("a\nb\n", [TextChange(0, 0, 99, 0, "new\n")], "a.py") == "new\n"
    assert apply_changes("ab\nc", [TextChange(0, 9, 0, 99, "!")], "a.py") == "ab!\nc"


@pytest.mark.parametrize("second", [TextChange(0, 1, 0, 3, "y"), TextChange(0, 3, 0, 1, "y")])
def test_overlapping_changes_are_refused(second: TextChange) -> None:
    with pytest.raises(ToolFailed, match="overlap"):
        apply_changes("abcd", [TextChange(0, 0, 0, 2, "x"), second], "a.py")


def test_findings_that_only_moved_are_not_new() -> None:
    def finding(line: int, message: str) -> LspFinding:
        return LspFinding("/a.py", line, 1, message)

    before = [finding(1, "bad"), finding(2, "redefinition of 'x' from line 1")]
    after = [finding(9, "redefinition of 'x' from line 8"), finding(8, "bad"), finding(12, "bad")]
    assert new_findings(before, after) == [finding(12, "bad")]
