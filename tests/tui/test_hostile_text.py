"""Text crafted to stall the screen or to be omitted from it."""

from __future__ import annotations

import pytest

from kedge.client.safe_text import harmless
from kedge.client.view.workspace_view import WorkspaceView
from kedge.tui.render.markdown import GrowingMarkdown
from kedge.tui.render.renderer import Renderer
from kedge.tui.render.themes import THEMES
from kedge.tui.render.tool_cards import FoldState, ToolCards

RENDERER = Renderer(THEMES["plain"])
CHARS = 1_000_000


def marked(text: str, width: int = 78) -> str:
    return "\n".join(row.strip.text.rstrip() for row in GrowingMarkdown(RENDERER, width).rows(text))


@pytest.mark.found(
    "attack round 2: display",
    "an answer of 100 kB in short lines, quotes, lists or tables stopped the terminal interface for 8 s to minutes; "
    "what would cost more than half a second is drawn as plain text, and a screen has at most 3,000 lines of that",
)
@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ["ab\n", "> a\n", "|a|\n|-|\n", "- a\n", "ab\n\n", "[", "漢", "a\u0301"])
def test_large_answer_does_not_stall_the_screen(piece: str) -> None:
    shown = marked("begin\n\n" + piece * (CHARS // len(piece)))
    assert shown.startswith("begin")
    assert "more characters" in shown
    assert len(shown) < CHARS


@pytest.mark.found(
    "attack round 2: display",
    "12 kB of blank lines in a block of C, or of letters in one of console output, took Pygments many seconds; code is "
    "coloured in pieces of 1.5 kB, and not at all after a third of a second",
)
@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("before", "language", "piece"),
    [("", "c", "\n "), ("", "console", "a"), ("", "html+ng2", "("), ("- ", "console", "a")],
)
def test_code_that_is_slow_to_highlight_does_not_stall(before: str, language: str, piece: str) -> None:
    code = f"x\n{'  ' * bool(before)}{piece * (40_000 // len(piece))}"
    assert "x" in marked(f"{before}```{language}\n{'  ' * bool(before)}{code}\n")


@pytest.mark.timeout(20)
def test_streaming_does_not_rerender_the_full_answer() -> None:
    growing, text = GrowingMarkdown(RENDERER, 78), ""
    for number in range(25):
        text += f"- item {number}\n" * 20
        rows = growing.rows(text, is_complete=False)
    assert "item 24" in rows[-1].strip.text
    assert [row.strip.text for row in growing.rows(text)] == [
        row.strip.text for row in GrowingMarkdown(RENDERER, 78).rows(text)
    ]


@pytest.mark.found(
    "attack round 2: display",
    "words in quotes or lists that were nested deeper than 20, in cells that a table has no column for, in narrow "
    "columns and in long cells were not on the screen; they are drawn as they were written",
)
@pytest.mark.parametrize(
    "text",
    [
        "> " * 30 + "HIDDEN",
        "- " * 30 + "HIDDEN",
        "|a|\n|-|\n|b|HIDDEN|",
        "|a" * 40 + "|\n" + "|-" * 40 + "|\n" + "|b" * 39 + "|HIDDEN|",
        "|a|b|\n|-|-|\n|" + "x" * 100 + "HIDDEN|c|",
    ],
)
def test_no_words_of_an_answer_are_omitted(text: str) -> None:
    assert "HIDDEN" in "".join(marked(text).split())


@pytest.mark.found(
    "attack round 2: display",
    "a letter with a million accents was one line of the screen with a megabyte of text, written again with each "
    "repaint; eight of them are drawn",
)
def test_accents_of_a_letter_are_limited() -> None:
    assert harmless("z" + "\u0301" * CHARS + "y") == "z" + "\u0301" * 8 + "…y"
    assert harmless("\U0001f3f4" + "\U000e0067" * 6) == "\U0001f3f4" + "\U000e0067" * 6, "the flag of a country"


@pytest.mark.timeout(20)
def test_card_head_is_cut_before_it_is_measured() -> None:
    card = ToolCards(WorkspaceView(), RENDERER, 80, FoldState()).head(
        "o", "k.good", "漢" * CHARS, "漢" * CHARS, ("漢" * CHARS, "k.muted")
    )
    assert card.cell_length == 80
