"""A diff as lines of the screen: unified, or side by side where there is room."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from textual.strip import Strip

from kedge.tui.pen import Pen

#: From here on both sides have room for code. Columns.
SIDE_BY_SIDE_WIDTH = 120


def diff_lines(diff: str, pen: Pen, width: int) -> list[Strip]:
    rows = [row for row in diff.splitlines() if not row.startswith(("--- ", "+++ "))]
    if width >= SIDE_BY_SIDE_WIDTH:
        return list(_side_by_side(rows, pen, width))
    return [pen.line(width, (row.expandtabs(4).ljust(width), _style(row))) for row in rows]


def _style(row: str) -> str:
    match row[:1]:
        case "+":
            return "k.added"
        case "-":
            return "k.removed"
        case "@" | "\\":
            return "k.hunk"
    return "k.text"


def _side_by_side(rows: list[str], pen: Pen, width: int) -> Iterator[Strip]:
    left_width = (width - 1) // 2
    right_width = width - 1 - left_width

    def pair(left: str | None, right: str | None) -> Strip:
        return Strip.join(
            [
                pen.line(left_width, ((left or "").expandtabs(4).ljust(left_width), _style(left or " "))),
                pen.line(1, ("│", "k.muted")),
                pen.line(right_width, ((right or "").expandtabs(4).ljust(right_width), _style(right or " "))),
            ]
        )

    removed: list[str] = []
    added: list[str] = []
    for row in [*rows, "@"]:
        if row.startswith("-"):
            removed.append(row)
            continue
        if row.startswith("+"):
            added.append(row)
            continue
        for left, right in zip_longest(removed, added):
            yield pair(left, right)
        removed, added = [], []
        if row.startswith(("@", "\\")):
            if row != "@":
                yield pen.line(width, (row, "k.hunk"))
        else:
            yield pair(row, row)
