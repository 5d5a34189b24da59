from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.client.safe_text import visible_line
from kedge.core.untrusted_text import visible

HIDDEN = ["\x1b", "\r", "\x7f", "\x9b", "\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\u00ad", "\u2028", "\ufe0f"]
HIDDEN += ["\u3164", "\u2800", "\u00a0", "\u3000", "\U000e0041", "\ue000", "\ud800", "\U000e0101", "\u034f"]


@pytest.mark.parametrize("character", HIDDEN, ids=lambda character: f"u{ord(character):x}")
def test_invisible_characters_are_escaped(character: str) -> None:
    assert visible(f"a{character}b") == f"a\\u{{{ord(character):x}}}b"


def test_visible_text_is_unchanged() -> None:
    for text in ("ls -la 'x y'", "Grüße, 世界", "שלום", "a\n\tb", "🚀"):
        assert visible(text) == text
    assert visible("a\nb", keep="") == "a\\u{a}b"


@given(st.text())
def test_only_visible_text_passes(text: str) -> None:
    seen = visible(text, keep="")
    assert all(unicodedata.category(one)[0] not in "CZ" for one in seen.replace(" ", ""))
    assert "\n" not in seen


def test_line_is_single_and_truncated() -> None:
    assert visible_line("a\n  b\x1b[2J") == "a b\\u{1b}[2J"
    assert visible_line("x" * 50, 10) == "x" * 9 + "…"
