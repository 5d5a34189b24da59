"""Wildcard patterns of rules, matched without backtracking.

A pattern is matched token by token. An integer holds every length of text that the tokens so far can match (bit i:
the first i characters), so a token costs a few integer operations. A regular expression would try those lengths one
after the other: for `**/a/**/b/**` their product.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

from msgspec import Struct

#: Parsed patterns in the cache: more than a configuration has rules. Items.
PARSED_MAX = 1000


class _Wild(Enum):
    #: One character; one that is not a slash.
    ONE = "any ?"
    ONE_IN_PART = "?"
    #: Any number of characters; of those that are not slashes.
    ANY = "**"
    ANY_IN_PART = "*"
    #: Nothing, or anything that ends with a slash.
    DIRECTORIES = "**/"


_IN_PATHS = {wild.value: wild for wild in (_Wild.ONE_IN_PART, _Wild.ANY, _Wild.ANY_IN_PART, _Wild.DIRECTORIES)}
_IN_WORDS = {"?": _Wild.ONE, "*": _Wild.ANY}


class _Pattern(Struct, frozen=True):
    #: Literal text before the first wildcard and after the last one.
    start: str
    end: str
    #: Wildcards, with literal texts in between. Empty: the pattern is literal, and all of it is in `start`.
    middle: tuple[str | _Wild, ...]


def path_matches(pattern: str, path: str) -> bool:
    """Match a path: `*` and `?` stay within one part of it, `**` spans any number of parts."""
    return _matches(_parsed(pattern, in_paths=True), path)


def word_matches(pattern: str, word: str) -> bool:
    """Match a word: `*` and `?` stand for any characters."""
    return _matches(_parsed(pattern, in_paths=False), word)


def has_wildcard(text: str) -> bool:
    return "*" in text or "?" in text


@lru_cache(maxsize=PARSED_MAX)
def _parsed(pattern: str, *, in_paths: bool) -> _Pattern:
    expression, wilds = (r"(\*\*/|\*\*|\*|\?)", _IN_PATHS) if in_paths else (r"(\*|\?)", _IN_WORDS)
    pieces = re.split(expression, pattern)  # literal texts at even indexes, including the first and the last
    if len(pieces) == 1:
        return _Pattern(pattern, "", ())
    tokens: list[str | _Wild] = []
    for index, piece in enumerate(pieces[1:-1], start=1):
        token = wilds[piece] if index % 2 else piece
        if token and not (tokens and token is tokens[-1] is _Wild.ANY):
            tokens.append(token)
    return _Pattern(pieces[0], pieces[-1], tuple(tokens))


def _matches(pattern: _Pattern, text: str) -> bool:
    if not pattern.middle:
        return text == pattern.start
    start, end = len(pattern.start), len(text) - len(pattern.end)
    if end < start or not (text.startswith(pattern.start) and text.endswith(pattern.end)):
        return False
    if pattern.middle == (_Wild.ANY,):
        return True
    text = text[start:end]
    # Most texts lack one of the literals: this check is much cheaper.
    has_all = all(token in text for token in pattern.middle if isinstance(token, str))
    return has_all and _spans(pattern.middle, text)


def _spans(tokens: tuple[str | _Wild, ...], text: str) -> bool:
    """Return whether the tokens match the whole text."""
    everywhere = (1 << (len(text) + 1)) - 1
    backwards = text[::-1]
    known: dict[str, int] = {}

    def positions(character: str) -> int:
        """Bit i: text[i] is this character."""
        if character not in known:
            known[character] = int("1".join(["0" * len(gap) for gap in backwards.split(character)]) or "0", 2)
        return known[character]

    reached = 1
    for token in tokens:
        first = reached & -reached
        if token is _Wild.ANY:
            reached = everywhere & -first
        elif token is _Wild.ONE:
            reached = (reached << 1) & everywhere
        elif token is _Wild.DIRECTORIES:
            reached |= (positions("/") & -first) << 1
        elif isinstance(token, str):
            for character in token:
                reached = (reached & positions(character)) << 1
        else:
            in_part = (everywhere >> 1) & ~positions("/")
            if token is _Wild.ONE_IN_PART:
                reached = (reached & in_part) << 1
            else:  # the carry of the addition runs from each position to the end of its part
                reached |= ((reached & in_part) + in_part) ^ in_part
        if not reached:
            return False
    return bool(reached >> len(text) & 1)
