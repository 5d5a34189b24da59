"""Names that match the letters that a user has typed."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

from kedge.core.untrusted_text import visible


def best_matches(word: str, names: Iterable[str], count: int) -> list[str]:
    """Return the names that contain all letters of the word in this order, the best match first."""
    letters = word.lower()
    ranked = ((_rank(letters, name.lower()), name) for name in names)
    return [name for _, name in nsmallest(count, ((rank, name) for rank, name in ranked if rank is not None))]


def can_be_mentioned(name: str) -> bool:
    """Return whether the name can be typed and shown: no quotes, no invisible characters."""
    return '"' not in name and visible(name, keep="") == name


def _rank(letters: str, name: str) -> tuple[int, int, int] | None:
    """Return a sort key, lower for a better match; None: no match."""
    index = -1
    for letter in letters:
        index = name.find(letter, index + 1)
        if index < 0:
            return None
    last = name.rpartition("/")[2]
    if last.startswith(letters):
        kind = 0
    elif letters in last:
        kind = 1
    else:
        kind = 2 if letters in name else 3
    return kind, name.count("/"), len(name)
