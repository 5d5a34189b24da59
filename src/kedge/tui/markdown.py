"""Markdown as lines of the screen, also while it is being written.

A text that grows is cut into its outermost blocks. All but the last one will not change any more, so each is drawn
once, and a long answer costs its length and not its square. Finished texts are drawn in the same way: nothing jumps
when an answer ends.
"""

from __future__ import annotations

from markdown_it import MarkdownIt
from rich.markdown import Markdown
from textual.strip import Strip

from kedge.tui.pen import Pen

_parser = MarkdownIt().enable("table").enable("strikethrough")


class Growing:
    """One text, drawn at one width with one pen."""

    def __init__(self, pen: Pen, width: int) -> None:
        self.pen, self.width = pen, width
        self._text = ""
        #: How much of the text is in `_done`, which will not change any more.
        self._done_chars = 0
        self._done: list[Strip] = []
        self._last: list[Strip] = []

    def lines(self, text: str) -> list[Strip]:
        if text != self._text:
            if not text.startswith(self._text):
                self._done_chars, self._done = 0, []
            self._text = text
            self._draw_rest()
        return self._done + self._last

    def _draw_rest(self) -> None:
        blocks = _blocks(self._text[self._done_chars :])
        for block in blocks[:-1]:
            self._done += self._drawn(block)
            self._done_chars += len(block)
        self._last = self._drawn(blocks[-1]) if blocks else []

    def _drawn(self, block: str) -> list[Strip]:
        if not block.strip():
            return []
        drawn = Markdown(block, code_theme=self.pen.look.code, hyperlinks=False)
        lines = _trimmed(self.pen.lines(drawn, self.width))
        is_first = not self._done
        return lines if is_first else [self.pen.blank(self.width), *lines]


def _blocks(text: str) -> list[str]:
    """The text in pieces, each of which begins with an outermost block; together they are the text."""
    rows = text.splitlines(keepends=True)
    starts = sorted({token.map[0] for token in _parser.parse(text) if token.map and token.level == 0})
    if not starts:
        return [text] if text else []
    starts[0] = 0
    return ["".join(rows[start:end]) for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)]


def _trimmed(lines: list[Strip]) -> list[Strip]:
    """Without empty lines at either end: the space between blocks is ours."""
    while lines and not lines[0].text.strip():
        lines = lines[1:]
    while lines and not lines[-1].text.strip():
        lines = lines[:-1]
    return lines
