"""The expansion of globs in shell words, as bash does it by default: sorted names, hidden files only where the pattern
has a dot, and the word itself if nothing matches."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

from msgspec import Struct

from kedge.tools.file_threads import checkpoint
from kedge.tools.strict_line import Word

#: Limit of directory entries that are compared with the globs of a line: some 0.1 s, a second for hostile names. Items.
GLOB_ENTRIES_MAX = 5000


class Room(Struct):
    """The budget for the rest of a line: words with its globs expanded, and entries that are compared."""

    words: int
    entries: int = GLOB_ENTRIES_MAX


#: A character of a name, or a wildcard.
_Token = tuple[bool, str]


def expand(word: Word, directory: Path, room: Room) -> list[str] | None:
    """Return the names that a glob stands for, or None for too many. Blocking."""
    levels = _levels(word)
    names = [""]
    for index, level in enumerate(levels):
        is_last = index == len(levels) - 1
        matched: list[str] = []
        for name in names:
            checkpoint()
            if not any(is_wild for is_wild, _ in level):
                path = name + "".join(text for _, text in level)
                matched += [path] if not is_last or os.path.lexists(directory / path) else []
                continue
            try:
                with os.scandir(directory / name) as entries:
                    present = [entry.name for entry in islice(entries, room.entries + 1)]
            except OSError:
                continue
            room.entries -= len(present)
            if room.entries < 0:
                return None
            matched += [name + entry for entry in sorted(present) if _matches(level, entry)]
        names = matched if is_last else [f"{name}/" for name in matched if os.path.isdir(directory / f"{name}/")]
        if len(names) > room.words:
            return None
    return names or [word.text]


def _levels(word: Word) -> list[list[_Token]]:
    """Split a word at its slashes."""
    levels: list[list[_Token]] = [[]]
    for segment in word.segments:
        if segment.kind == "glob":
            levels[-1].append((True, segment.text))
            continue
        for character in segment.text:
            if character == "/":
                levels.append([])
            else:
                levels[-1].append((False, character))
    return levels


def _matches(level: list[_Token], name: str) -> bool:
    """Compare a name with a pattern. Takes at most the product of their lengths."""
    if name.startswith(".") and level[0] != (False, "."):
        return False
    at = token = 0
    star, restart = -1, 0
    while at < len(name):
        if token < len(level) and level[token] == (True, "*"):
            star, restart = token, at
            token += 1
        elif token < len(level) and _matches_one(level[token], name[at]):
            at += 1
            token += 1
        elif star >= 0:
            restart += 1
            at, token = restart, star + 1
        else:
            return False
    return all(rest == (True, "*") for rest in level[token:])


def _matches_one(token: _Token, character: str) -> bool:
    is_wild, text = token
    if not is_wild:
        return character == text
    if text == "?":
        return True
    if text == "*":
        return False
    try:
        return re.fullmatch(f"[^{text[2:]}" if text[1] in "!^" else text, character) is not None
    except re.error:  # `[z-a]`
        return False
