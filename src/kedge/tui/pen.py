"""Draws anything of Rich into lines of the screen. What is drawn comes from models, tools and people: it is harmless
here, at the one place where text becomes lines, so that nothing in it can reach the terminal as a command."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from kedge.client.text import harmless
from kedge.tui.looks import Look


class Pen:
    def __init__(self, look: Look) -> None:
        self.look = look
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            legacy_windows=False,
            theme=look.styles,
            emoji=False,
            markup=False,
            highlight=False,
            width=80,
        )

    def style(self, name: str) -> Style:
        return self._console.get_style(name)

    def lines(self, drawn: RenderableType, width: int, indent: int = 0) -> list[Strip]:
        """Each line exactly `width` wide, the indent included."""
        inner = max(1, width - indent)
        options = self._console.options.update(width=inner, height=None)
        lead = [Segment(" " * indent)] if indent else []
        return [
            Strip([*lead, *map(_disarmed, line)], width).simplify()
            for line in self._console.render_lines(drawn, options, pad=True)
        ]

    def text(self, text: str, style: str, width: int, indent: int = 0) -> list[Strip]:
        """Wrapped plain text."""
        drawn = Text(harmless(text).expandtabs(4), self.style(style), overflow="fold")
        return self.lines(drawn, width, indent)

    def line(self, width: int, *pieces: tuple[str, str]) -> Strip:
        """One line of (text, style) pieces, cut where it is too long."""
        text = Text(no_wrap=True, overflow="ellipsis")
        for said, style in pieces:
            text.append(" ".join(harmless(said).split("\n")), self.style(style))
        text.truncate(width, overflow="ellipsis", pad=True)
        return self.lines(text, width)[0]

    def blank(self, width: int) -> Strip:
        return Strip.blank(width)


def _disarmed(segment: Segment) -> Segment:
    """Rich lets controls pass that are in the text; here none does."""
    if segment.control:
        return Segment("")
    text = harmless(segment.text)
    return segment if text == segment.text else Segment(text, segment.style)
