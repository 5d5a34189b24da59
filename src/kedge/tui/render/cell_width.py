"""Text in cells of the screen, of which some characters take two: cut, wrapped, and fitted into one line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, chop_cells, set_cell_size

#: Something said in a line, and how soon it is left out when there is too little room: the highest first, 0 never.
Piece = tuple[int, str]


def cut(text: str, width: int) -> str:
    """The beginning, with a mark where something is missing."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 0 else ""


def cut_start(text: str, width: int) -> str:
    """The end, which is what tells one path from another."""
    if cell_len(text) <= width:
        return text
    kept = text
    while kept and cell_len(kept) > width - 1:
        kept = kept[1:]
    return "…" + kept if width > 0 else ""


def padded(text: str, width: int) -> str:
    """Exactly so wide."""
    return set_cell_size(cut(text, width), width)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of whole words, where a word is not longer than a line."""
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


def fitted(pieces: Sequence[Piece], width: int, between: str = " · ") -> list[str]:
    """Those that fit into a line of this width. What may not be left out stays, and what stands before it is cut."""
    kept = [piece for piece in pieces if piece[1]]
    while _width(kept, between) > width and any(rank for rank, _ in kept):
        worst = max(rank for rank, _ in kept)
        kept.remove(next(piece for piece in reversed(kept) if piece[0] == worst))
    return [said for _, said in kept]


def _width(pieces: Sequence[Piece], between: str) -> int:
    return cell_len(between.join(said for _, said in pieces))
