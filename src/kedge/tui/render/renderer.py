"""Draws anything of Rich into lines of the screen. What is drawn comes from models, tools and people: it is harmless
here, at the one place where text becomes lines, so that nothing in it can reach the terminal as a command."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from kedge.client.safe_text import harmless
from kedge.tui.render.themes import Theme

#: What a tab is worth. Columns.
TAB_WIDTH = 4
#: Of one text that is drawn line by line: about a third of a second. A screen is no file. Lines.
TEXT_LINES_MAX = 3_000
#: Of one line, for each column: no character that is drawn takes more. Characters.
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

    def lines(self, drawn: RenderableType, width: int, indent: int = 0) -> list[Strip]:
        """Each line exactly `width` wide, the indent included. Text in it was made harmless before it was measured."""
        inner = max(1, width - indent)
        options = self._console.options.update(width=inner, height=None)
        lead = [Segment(" " * indent)] if indent else []
        return [
            Strip([*lead, *map(_disarmed, line)]).simplify().adjust_cell_length(width)
            for line in self._console.render_lines(drawn, options, pad=True)
        ]

    def text(self, text: str, style: str, width: int, indent: int = 0) -> list[Strip]:
        """Wrapped plain text, and at its end how much of it is too long to be drawn."""
        found: list[Strip] = []
        inner = max(1, width - indent)
        rows = clean(text).split("\n")
        for number, row in enumerate(rows):
            chars_max = max(0, TEXT_LINES_MAX - len(found)) * inner
            if not chars_max or len(row) > chars_max:
                found += self.lines(Text(row[:chars_max], self.style(style), overflow="fold"), width, indent)
                missing = sum(map(len, rows[number:])) - chars_max
                found.append(self.line(width, (" " * indent, "none"), (f"… {missing:,} more characters", "k.muted")))
                break
            if row.isascii() and len(row) <= inner:
                # Most lines are of this kind, and there may be thousands: no need to measure and wrap them.
                found.append(self._plain(width, (" " * indent, "none"), (row, style)))
            else:
                drawn = Text(row, self.style(style), overflow="fold")
                found += self.lines(drawn, width, indent)
        return found

    def line(self, width: int, *pieces: tuple[str, str]) -> Strip:
        """One line of (text, style) pieces, cut where it is too long."""
        rows = [(" ".join(clean(shortened(said, width)).split("\n")), style) for said, style in pieces]
        if all(said.isascii() for said, _ in rows) and sum(len(said) for said, _ in rows) <= width:
            return self._plain(width, *rows)
        text = Text(no_wrap=True, overflow="ellipsis")
        for said, style in rows:
            text.append(said, self.style(style))
        text.truncate(width, overflow="ellipsis", pad=True)
        return self.lines(text, width)[0]

    def _plain(self, width: int, *pieces: tuple[str, str]) -> Strip:
        segments = [Segment(said, self.style(style)) for said, style in pieces if said]
        return Strip(segments, sum(len(said) for said, _ in pieces)).adjust_cell_length(width)

    def blank(self, width: int) -> Strip:
        return Strip.blank(width)


def shortened(text: str, width: int) -> str:
    """Of a text that may have megabytes, as much as one line can show, with a mark where something is missing."""
    chars_max = width * COLUMN_CHARS_MAX
    return text if len(text) <= chars_max else text[:chars_max] + "…"


def clean(text: str) -> str:
    """Harmless, and without tabs: as wide as it will be on the screen."""
    return harmless(text).expandtabs(TAB_WIDTH)


def _disarmed(segment: Segment) -> Segment:
    """Rich lets controls pass that are in the text; here none does."""
    if segment.control:
        return Segment("")
    text = harmless(segment.text)
    return segment if text == segment.text else Segment(text, segment.style)
