"""Text that people decide on: all of it, folded where a line is too long, scrolled where it is too high, never cut."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from itertools import zip_longest

from rich.cells import cell_len, chop_cells
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kedge.core.untrusted_text import visible, visible_diff
from kedge.tui.render.diff_lines import SIDE_BY_SIDE_WIDTH
from kedge.tui.render.renderer import Renderer
from kedge.tui.render.themes import Theme

#: A line of the screen: pieces of text, each with the name of its style.
TextRow = tuple[tuple[str, str], ...]
#: Further lines of one thing stand below its first, so that none of them can pass for something of ours. Columns.
HANG = 2
#: All else that is to stay in view: the frame of what is asked, its title and its keys, the top line, the Run at work,
#: the first of the queue, the prompt, the hints, and a line of the transcript. Lines.
BESIDE_LINES = 14


def lines_for_asking(screen_lines: int) -> int:
    return max(3, min(screen_lines * 6 // 10 - 5, screen_lines - BESIDE_LINES))


class FullText(ScrollView, can_focus=False):
    DEFAULT_CSS = "FullText { height: 1; scrollbar-size-vertical: 1; overflow-x: hidden; overflow-y: auto; }"

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._renderer = Renderer(theme)
        self._make: Callable[[int], list[TextRow]] = lambda width: []
        self._rows: list[TextRow] = []
        self._width = 0

    def set_theme(self, theme: Theme) -> None:
        self._renderer = Renderer(theme)
        self.refresh()

    def show(self, make: Callable[[int], list[TextRow]], width: int, height_max: int) -> None:
        """What `make` gives for a width, from its first line on."""
        self._make = make
        self._width = 0
        self.scroll_home(animate=False, immediate=True)
        self.fit(width, height_max)

    def fit(self, width: int, height_max: int) -> None:
        """The room has changed. One column is for the bar beside what is scrolled."""
        if width != self._width:
            self._width = width
            self._rows = self._make(max(10, width - 1))
            self.virtual_size = Size(width - 1, len(self._rows))
        self.styles.height = max(1, min(len(self._rows), height_max))
        self.refresh(layout=True)

    def place(self) -> str:
        """Which lines are in view; empty: all of them."""
        height = self.size.height
        if not height or len(self._rows) <= height:
            return ""
        first = round(self.scroll_y) + 1
        return f"lines {first} to {min(first + height - 1, len(self._rows))} of {len(self._rows)}"

    def page(self, by: int) -> None:
        self.scroll_relative(y=by * max(1, self.size.height - 1), animate=False)

    def render_line(self, y: int) -> Strip:
        number, width = self.scroll_offset.y + y, self.scrollable_content_region.width
        if not 0 <= number < len(self._rows):
            return Strip.blank(width, self.rich_style)
        return self._renderer.line(width, *self._rows[number]).apply_style(self.rich_style)


def folded(text: str, width: int, style: str, begin: str = "", begin_style: str = "k.muted") -> Iterator[TextRow]:
    """The text with everything odd in it spelled out, behind what it begins with."""
    lead = cell_len(begin)
    for line in visible(text).split("\n"):
        for piece in _pieces(line, max(4, width - lead)):
            yield ((begin, begin_style), (piece, style))
            begin = " " * lead


def worded(text: str, width: int, style: str) -> Iterator[TextRow]:
    """The same for prose: folded between words."""
    for line in visible(text, mark_ends=False).split("\n"):
        for part in textwrap.wrap(line, width, tabsize=4, break_on_hyphens=False) or [""]:
            yield from (((piece, style),) for piece in _pieces(part, width))


def _pieces(line: str, width: int) -> list[str]:
    spread = line.expandtabs(4)
    if spread.isascii():
        return [spread[at : at + width] for at in range(0, len(spread), width)] or [""]
    return chop_cells(spread, width) or [""]


def diff_rows(diff: str, width: int) -> list[TextRow]:
    """Unified, or side by side where there is room. The lines that name the files are left out, and nothing else: a
    changed line may well begin with the same marks."""
    lines = visible_diff(diff).split("\n")
    if lines and not lines[-1]:
        lines.pop()
    begin = next((number for number, line in enumerate(lines) if line.startswith("@@")), 0)
    wide = width >= SIDE_BY_SIDE_WIDTH
    return list(_beside(lines[begin:], width) if wide else _below(lines[begin:], width))


def _style(line: str) -> str:
    return {"+": "k.added", "-": "k.removed", "@": "k.hunk", "\\": "k.hunk"}.get(line[:1], "k.text")


def _filled(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _below(lines: list[str], width: int) -> Iterator[TextRow]:
    for line in lines:
        for text in _hung(line, width):
            yield ((_filled(text, width), _style(line)),)


def _hung(line: str, width: int) -> list[str]:
    first, *others = _pieces(line, width - HANG)
    return [first, *(" " * HANG + piece for piece in others)]


def _beside(lines: list[str], width: int) -> Iterator[TextRow]:
    left_width = (width - 1) // 2
    right_width = width - 1 - left_width

    def pair(left: str | None, right: str | None) -> Iterator[TextRow]:
        sides = zip_longest(_hung(left or "", left_width), _hung(right or "", right_width), fillvalue="")
        for one, other in sides:
            yield (
                (_filled(one, left_width), _style(left or "")),
                ("│", "k.muted"),
                (_filled(other, right_width), _style(right or "")),
            )

    removed: list[str] = []
    added: list[str] = []
    for line in [*lines, None]:
        if line is not None and line.startswith(("-", "+")):
            (removed if line.startswith("-") else added).append(line)
            continue
        for left, right in zip_longest(removed, added):
            yield from pair(left, right)
        removed, added = [], []
        if line is None:
            return
        if line.startswith(("@", "\\")):
            yield from (((text, "k.hunk"),) for text in _hung(line, width))
        else:
            yield from pair(line, line)
