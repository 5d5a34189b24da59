"""Rendering of text and Rich renderables to lines of the screen.

The text comes from models, tools and users. Control characters are replaced here, the only place where text becomes
lines, so that no text reaches the terminal as a control sequence."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from kedge.client.safe_text import harmless
from kedge.tui.render.themes import Theme

#: Width of a tab. Columns.
TAB_WIDTH = 4
#: Of one plain text: rendering them takes about a third of a second. Lines.
TEXT_LINES_MAX = 3_000
#: Characters per column that are rendered at most: combining characters have no width. Characters.
COLUMN_CHARS_MAX = 10


class Renderer:
    def __init__(self, theme: Theme) -> None:
        self.theme = theme
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            legacy_windows=False,
            theme=theme.styles,
            emoji=False,
            markup=False,
            highlight=False,
            width=80,
        )

    def style(self, name: str) -> Style:
        return self._console.get_style(name)

    def lines(self, renderable: RenderableType, width: int, indent: int = 0) -> list[Strip]:
        """Render to lines of exactly `width` columns, with the indent. Control characters must already be replaced."""
        inner = max(1, width - indent)
        options = self._console.options.update(width=inner, height=None)
        lead = [Segment(" " * indent)] if indent else []
        return [
            Strip([*lead, *map(_without_controls, line)]).simplify().adjust_cell_length(width)
            for line in self._console.render_lines(renderable, options, pad=True)
        ]

    def text(self, text: str, style: str, width: int, indent: int = 0) -> list[Strip]:
        """Wrap plain text. A note at the end counts the characters that were not rendered."""
        strips: list[Strip] = []
        inner = max(1, width - indent)
        rows = clean(text).split("\n")
        for number, row in enumerate(rows):
            chars_max = max(0, TEXT_LINES_MAX - len(strips)) * inner
            if not chars_max or len(row) > chars_max:
                strips += self.lines(Text(row[:chars_max], self.style(style), overflow="fold"), width, indent)
                missing = sum(map(len, rows[number:])) - chars_max
                strips.append(self.line(width, (" " * indent, "none"), (f"… {missing:,} more characters", "k.muted")))
                break
            if row.isascii() and len(row) <= inner:
                # Most lines are short ASCII: they need no measuring and wrapping.
                strips.append(self._plain(width, (" " * indent, "none"), (row, style)))
            else:
                drawn = Text(row, self.style(style), overflow="fold")
                strips += self.lines(drawn, width, indent)
        return strips

    def line(self, width: int, *pieces: tuple[str, str]) -> Strip:
        """Render one line of (text, style) pieces, cut to `width`."""
        rows = [(" ".join(clean(shortened(text, width)).split("\n")), style) for text, style in pieces]
        if all(text.isascii() for text, _ in rows) and sum(len(text) for text, _ in rows) <= width:
            return self._plain(width, *rows)
        line = Text(no_wrap=True, overflow="ellipsis")
        for text, style in rows:
            line.append(text, self.style(style))
        line.truncate(width, overflow="ellipsis", pad=True)
        return self.lines(line, width)[0]

    def _plain(self, width: int, *pieces: tuple[str, str]) -> Strip:
        segments = [Segment(text, self.style(style)) for text, style in pieces if text]
        return Strip(segments, sum(len(text) for text, _ in pieces)).adjust_cell_length(width)

    def blank(self, width: int) -> Strip:
        return Strip.blank(width)


def shortened(text: str, width: int) -> str:
    """Return as much of a very long text as one line can show, with an ellipsis."""
    chars_max = width * COLUMN_CHARS_MAX
    return text if len(text) <= chars_max else text[:chars_max] + "…"


def clean(text: str) -> str:
    """Replace control characters and tabs, so that the text has its width on the screen."""
    return harmless(text).expandtabs(TAB_WIDTH)


def _without_controls(segment: Segment) -> Segment:
    """Remove control segments and control characters, which Rich passes through."""
    if segment.control:
        return Segment("")
    text = harmless(segment.text)
    return segment if text == segment.text else Segment(text, segment.style)
