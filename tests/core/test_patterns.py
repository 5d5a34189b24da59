"""Wildcards, held against regular expressions that say the same."""

from __future__ import annotations

import random
import re
from fnmatch import fnmatchcase

import pytest

from kedge.core.patterns import path_matches, word_matches

_AS_EXPRESSIONS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def expression(pattern: str) -> str:
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    return "".join(_AS_EXPRESSIONS.get(piece) or re.escape(piece) for piece in pieces)


def test_wildcards_mean_what_they_mean_as_expressions() -> None:
    draw = random.Random(16)
    matched = 0
    for _ in range(5000):
        pattern = "".join(draw.choices("aab//**?**é", k=draw.randint(1, 9)))
        text = "".join(draw.choices("aab//\n[é", k=draw.randint(0, 9)))
        expected = re.fullmatch(expression(pattern), text, re.DOTALL) is not None
        assert path_matches(pattern, text) is expected, (pattern, text)
        assert word_matches(pattern, text) is fnmatchcase(text, pattern), (pattern, text)
        matched += expected
    assert matched > 200


@pytest.mark.found(
    "attack 16",
    "a path rule with several `**/` took seconds on the event loop for a long path (a regular expression went back and "
    "forth); patterns are matched in a number of steps that is their own length",
)
@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("**/a/**/a/**/a/**/z", "a/" * 2000),
        ("**/a/" * 200, "a/" * 2000 + "b"),
        ("**a" * 300 + "b", "a" * 4000),
        ("*a" * 500, "a" * 4000 + "b"),
        ("*?a" * 300 + "c", "ab" * 2000),
        ("**/*a*" * 160, "ab/" * 1300),
    ],
)
def test_no_pattern_takes_long(pattern: str, text: str) -> None:
    assert not path_matches(pattern, text)
    assert not word_matches(f"{pattern}c", text)
