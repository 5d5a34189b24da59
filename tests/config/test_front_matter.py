"""Front matter: what is understood, what is refused, and any text at all."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from kedge.config.front_matter import CHARS_MAX, LINES_MAX, FrontMatterError, Value, parse_front_matter

EVERYTHING = """---
# a comment
name: review
description: Use it when: a change is ready. See issue #12,
  and say so.

model: "a \\"b\\" \\n c"
other: 'it''s'
tools: [view, "a, b", 'c']
listed:
- one
  - "two: 2"
enabled: True
empty:
folded: >-
  one
  two

  three
kept: |
    a
      b
argument-hint: [number] [more]
metadata:
  version: 2
  author: 'x'
---

The body.
---
more
"""


def test_all_forms() -> None:
    parsed = parse_front_matter(EVERYTHING, frozenset({"argument-hint"}))
    assert parsed.fields == {
        "name": "review",
        "description": "Use it when: a change is ready. See issue #12, and say so.",
        "model": 'a "b" \n c',
        "other": "it's",
        "tools": ("view", "a, b", "c"),
        "listed": ("one", "two: 2"),
        "enabled": True,
        "empty": "",
        "folded": "one two\n\nthree",
        "kept": "a\n  b",
        "argument-hint": "[number] [more]",
        "metadata": {"version": "2", "author": "x"},
    }
    assert parsed.body == "The body.\n---\nmore\n"
    assert parsed.lines["name"] == 3
    assert parse_front_matter(EVERYTHING.replace("\n", "\r\n"), frozenset({"argument-hint"})).fields == parsed.fields


def test_file_without_settings_is_all_body() -> None:
    assert parse_front_matter("# Title\n---\nx: 1\n---\n") == parse_front_matter("\ufeff# Title\n---\nx: 1\n---\n")
    assert parse_front_matter("# Title\n---\n").body == "# Title\n---\n"


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ("name: x\nname: y", 3),
        ("just text", 2),
        ("name: x\n\ttabbed: y", 3),
        ("tools: [a, [b]]", 2),
        ("tools: [a, b", 2),
        ("tools: [a,, b]", 2),
        ("tools: {a: b}", 2),
        ("name: &anchor x", 2),
        ("name: *anchor", 2),
        ("name: !tag x", 2),
        ('name: "open', 2),
        ('name: "a" b', 2),
        ('name: "a"b"', 2),
        ('name: "\\x41"', 2),
        ("name: 'it's'", 2),
        ("hooks:\n  a:\n    - b\n  - c", 4),
        ("hooks:\n  - a\n  b: c", 4),
        ("text: |\n    a\n  b", 4),
        ("name: a\x00b", 2),
    ],
)
def test_other_forms_are_errors_with_their_line(lines: str, number: int) -> None:
    with pytest.raises(FrontMatterError) as error:
        parse_front_matter(f"---\n{lines}\n---\nbody")
    assert error.value.line == number, error.value


def test_limits() -> None:
    with pytest.raises(FrontMatterError, match="not closed"):
        parse_front_matter("---\n" + "\n" * LINES_MAX * 2 + "---\n")
    with pytest.raises(FrontMatterError, match="more than"):
        parse_front_matter(f"---\nname: {'x' * CHARS_MAX}\n---\n")


def test_any_text_gives_values_or_the_typed_error() -> None:
    """Also linear: each text has the largest allowed size, and the whole test takes a second."""
    pieces = ["---\n", "a: ", "b:", "\n", "  ", "- ", "[", "]", ",", '"', "'", "\\", "|", ">", "#", "x", "é", "\t", "{"]
    lines = []
    for seed in range(2000):
        source = random.Random(seed)
        text = "---\n" + "".join(source.choices(pieces, k=source.choice((5, 20, 80)))) + "\n---\n"
        try:
            parsed = parse_front_matter(text)
        except FrontMatterError as error:
            lines.append(error.line)
        else:
            assert all(isinstance(value, Value) for value in parsed.fields.values()), seed
    assert min(lines) >= 1
    assert max(lines) <= 100
    for piece in pieces:
        for start in ("a: ", "a: [", 'a: "', "a: '", "a: >\n ", "a:\n - "):
            with suppress(FrontMatterError):
                parse_front_matter("---\n" + start + piece.replace("\n", "") * (CHARS_MAX // 2) + "]\n---\n")
