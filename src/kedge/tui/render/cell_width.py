"""Text measured in cells of the screen, of which some characters take two: cut, wrap, and fit it into a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len, chop_cells, set_cell_size

#: Priority and text of a part of a line. When a line is too long, the highest number is dropped first, 0 never.
Piece = tuple[int, str]


def cut(text: str, width: int) -> str:
    """Return the start of the text, with an ellipsis where something is missing."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 0 else ""


def cut_start(text: str, width: int) -> str:
    """Return the end of the text. Paths differ at the end."""
    if cell_len(text) <= width:
        return text
    end = text
    while end and cell_len(end) > width - 1:
        end = end[1:]
    return "…" + end if width > 0 else ""


def padded(text: str, width: int) -> str:
    """Return the text cut or padded to exactly `width` cells."""
    return set_cell_size(cut(text, width), width)


def wrapped(text: str, width: int) -> list[str]:
    """Wrap between words. A word that is longer than a line is split."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = ""
        *full, word = chop_cells(word, width) if cell_len(word) > width else [word]
        lines += full
        line = f"{line} {word}" if line else word
    return [*lines, line] if line or not lines else lines


def fitted(pieces: Sequence[Piece], width: int, separator: str = " · ") -> list[str]:
    """Return the texts that fit into a line. Pieces of priority 0 stay, even if they do not fit."""
    fitting = [piece for piece in pieces if piece[1]]
    while _width(fitting, separator) > width and any(priority for priority, _ in fitting):
        lowest = max(priority for priority, _ in fitting)
        fitting.remove(next(piece for piece in reversed(fitting) if piece[0] == lowest))
    return [text for _, text in fitting]


def with_tilde(path: str) -> str:
    """Return the path with `~` for the home directory."""
    home = str(Path.home())
    return "~" + path[len(home) :] if path == home or path.startswith(home + "/") else path


def _width(pieces: Sequence[Piece], separator: str) -> int:
    return cell_len(separator.join(text for _, text in pieces))
