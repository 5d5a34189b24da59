"""A diff as lines of the screen: unified, or side by side where there is room. Long lines are folded, not cut."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from rich.cells import cell_len, chop_cells
from textual.strip import Strip

from kedge.tui.render.renderer import Renderer, clean

#: Minimum width for two sides of code. Columns.
SIDE_BY_SIDE_WIDTH = 120

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_STYLES = {"+": "k.added", "-": "k.removed", "@": "k.hunk", "\\": "k.hunk"}


class DiffRow(NamedTuple):
    #: `+`, `-` or a blank; `@` and a backslash for hunk headers and remarks.
    sign: str
    text: str
    #: Line number, in the old file for removed lines, else in the new one. 0: none.
    number: int = 0
    #: Line number of an unchanged line in the old file.
    old: int = 0


class DiffPair(NamedTuple):
    """A row with both sides."""

    left: DiffRow | None
    right: DiffRow | None


def diff_rows(diff: str, width: int) -> list[DiffRow | DiffPair]:
    """Return rows of about one line each, so that a caller can draw only the first ones."""
    rows = list(_numbered(diff))
    return list(_paired(rows)) if width >= SIDE_BY_SIDE_WIDTH else list(rows)


def draw_row(row: DiffRow | DiffPair, renderer: Renderer, width: int) -> list[Strip]:
    if isinstance(row, DiffRow):
        return _draw(row, row.number, renderer, width)
    left_width = (width - 1) // 2
    right_width = width - 1 - left_width
    left = _draw(row.left, row.left.old or row.left.number, renderer, left_width) if row.left else []
    right = _draw(row.right, row.right.number, renderer, right_width) if row.right else []
    bar, no_left, no_right = renderer.line(1, ("│", "k.muted")), renderer.blank(left_width), renderer.blank(right_width)
    return [Strip.join([a or no_left, bar, b or no_right]) for a, b in zip_longest(left, right)]


def _numbered(diff: str) -> Iterator[DiffRow]:
    old = new = 0
    for row in clean_rows(diff):
        sign, text = row[:1], row[1:]
        if sign == "@" and (hunk := _HUNK.match(row)):
            old, new = int(hunk[1]), int(hunk[2])
            yield DiffRow("@", row)
        elif not old and not new and row.startswith(("--- ", "+++ ")):
            continue  # the file name is shown above the diff
        elif sign == "+":
            yield DiffRow("+", text, new)
            new += 1
        elif sign == "-":
            yield DiffRow("-", text, old)
            old += 1
        elif sign == "\\":
            yield DiffRow("\\", row)
        else:
            yield DiffRow(" ", text, new, old)
            old, new = old + 1, new + 1


def clean_rows(diff: str) -> list[str]:
    rows = diff.split("\n")
    # The sign is not part of the line: a tab after it has the same width as in the file.
    return [row[:1] + clean(row[1:]) for row in (rows[:-1] if rows[-1] == "" else rows)]


def _paired(rows: Iterable[DiffRow]) -> Iterator[DiffRow | DiffPair]:
    removed: list[DiffRow] = []
    added: list[DiffRow] = []
    for row in rows:
        if row.sign == "-" and not added:
            removed.append(row)
        elif row.sign == "+":
            added.append(row)
        else:
            yield from (DiffPair(*both) for both in zip_longest(removed, added))
            removed, added = [], []
            if row.sign == "-":
                removed = [row]
            else:
                yield DiffPair(row, row) if row.sign == " " else row
    yield from (DiffPair(*both) for both in zip_longest(removed, added))


def _draw(row: DiffRow, number: int, renderer: Renderer, width: int) -> list[Strip]:
    style = _STYLES.get(row.sign, "k.text")
    if row.sign in "@\\":
        return [renderer.line(width, (row.text, style))]
    gutter = f"{number or '':>5} "
    room = max(1, width - len(gutter) - 2)
    strips = []
    for piece in chop_cells(row.text, room) or [""]:
        filled = f"{row.sign} {piece}{' ' * (room - cell_len(piece))}"
        strips.append(renderer.line(width, (gutter, "k.muted"), (filled, style)))
        gutter = " " * len(gutter)
    return strips
