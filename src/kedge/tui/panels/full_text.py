"""Text that the user decides on: long lines are folded, long texts scroll, and nothing is cut."""

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
#: Continuation lines are indented, so that none of them can be mistaken for a line of kedge. Columns.
HANG_COLUMNS = 2
#: What must stay visible beside an Ask: its frame, title and keys, the top line, the active Run, the first line of the
#: queue, the prompt, the hints, and a line of the transcript. Lines.
OTHER_LINES = 14


def ask_lines_max(screen_lines: int) -> int:
    return max(3, min(screen_lines * 6 // 10 - 5, screen_lines - OTHER_LINES))


class FullText(ScrollView, can_focus=False):
    DEFAULT_CSS = "FullText { height: 1; scrollbar-size-vertical: 1; overflow-x: hidden; overflow-y: auto; }"

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._renderer = Renderer(theme)
        self._make_rows: Callable[[int], list[TextRow]] = lambda width: []
        self._rows: list[TextRow] = []
        self._width = 0

    def set_theme(self, theme: Theme) -> None:
        self._renderer = Renderer(theme)
        self.refresh()

    def show(self, make_rows: Callable[[int], list[TextRow]], width: int, height_max: int) -> None:
        """Show the rows that `make_rows` returns for a width, from the first one."""
        self._make_rows = make_rows
        self._width = 0
        self.scroll_home(animate=False, immediate=True)
        self.fit(width, height_max)

    def fit(self, width: int, height_max: int) -> None:
        """Adapt to a new size. One column is reserved for the scrollbar."""
        if width != self._width:
            self._width = width
            self._rows = self._make_rows(max(10, width - 1))
            self.virtual_size = Size(width - 1, len(self._rows))
        self.styles.height = max(1, min(len(self._rows), height_max))
        self.refresh(layout=True)

    def visible_range(self) -> str:
        """Describe which lines are visible; empty if all are."""
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


def folded(text: str, width: int, style: str, label: str = "", label_style: str = "k.muted") -> Iterator[TextRow]:
    """Yield the text after its label, with invisible characters spelled out."""
    indent = cell_len(label)
    for line in visible(text).split("\n"):
        for piece in _pieces(line, max(4, width - indent)):
            yield ((label, label_style), (piece, style))
            label = " " * indent


def folded_prose(text: str, width: int, style: str) -> Iterator[TextRow]:
    """Like `folded`, but break lines between words."""
    for line in visible(text, mark_ends=False).split("\n"):
        for part in textwrap.wrap(line, width, tabsize=4, break_on_hyphens=False) or [""]:
            yield from (((piece, style),) for piece in _pieces(part, width))


def _pieces(line: str, width: int) -> list[str]:
    expanded = line.expandtabs(4)
    if expanded.isascii():
        return [expanded[at : at + width] for at in range(0, len(expanded), width)] or [""]
    return chop_cells(expanded, width) or [""]


def diff_rows(diff: str, width: int) -> list[TextRow]:
    """Return a diff as rows, side by side where there is room. Only the file names at its start are omitted: a changed
    line can begin with the same characters."""
    lines = visible_diff(diff).split("\n")
    if lines and not lines[-1]:
        lines.pop()
    start = next((number for number, line in enumerate(lines) if line.startswith("@@")), 0)
    rows = _side_by_side if width >= SIDE_BY_SIDE_WIDTH else _unified
    return list(rows(lines[start:], width))


def _style(line: str) -> str:
    return {"+": "k.added", "-": "k.removed", "@": "k.hunk", "\\": "k.hunk"}.get(line[:1], "k.text")


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _unified(lines: list[str], width: int) -> Iterator[TextRow]:
    for line in lines:
        for text in _hanging(line, width):
            yield ((_padded(text, width), _style(line)),)


def _hanging(line: str, width: int) -> list[str]:
    first, *others = _pieces(line, width - HANG_COLUMNS)
    return [first, *(" " * HANG_COLUMNS + piece for piece in others)]


def _side_by_side(lines: list[str], width: int) -> Iterator[TextRow]:
    left_width = (width - 1) // 2
    right_width = width - 1 - left_width

    def pair(left: str | None, right: str | None) -> Iterator[TextRow]:
        sides = zip_longest(_hanging(left or "", left_width), _hanging(right or "", right_width), fillvalue="")
        for left_text, right_text in sides:
            yield (
                (_padded(left_text, left_width), _style(left or "")),
                ("│", "k.muted"),
                (_padded(right_text, right_width), _style(right or "")),
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
            yield from (((text, "k.hunk"),) for text in _hanging(line, width))
        else:
            yield from pair(line, line)
