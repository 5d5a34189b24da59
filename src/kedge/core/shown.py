"""What people are asked about, made visible: nothing in it may hide, reorder or move the cursor."""

from __future__ import annotations

import unicodedata

#: Characters that show as nothing although their category is a visible one: fillers and the blank of Braille.
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5")
#: Control, format (bidi, zero-width, tags), surrogate, private, unassigned, line and paragraph separators.
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def is_unseen(character: str) -> bool:
    """Whether a person would not see it, or not see what it is: a space that is none, an accent over its neighbour."""
    if character.isascii():
        return not character.isprintable()
    category = unicodedata.category(character)
    if category in _UNSEEN_CATEGORIES or category == "Zs" or character in _BLANK:
        return True
    # Variation selectors show as nothing.
    return (
        0xFE00 <= ord(character) <= 0xFE0F or 0xE0100 <= ord(character) <= 0xE01EF or 0x180B <= ord(character) <= 0x180F
    )


def shown(text: str, *, keep: str = "\n\t") -> str:
    """The whole text, with what cannot be seen written as \\u{...}."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"\\u{{{ord(character):x}}}" if is_unseen(character) and character not in keep else character
        for character in text
    )


def one_line(text: str, chars_max: int) -> str:
    """A title: the first line that says something, cut. Never what an approval is decided on."""
    line = next((line for line in text.splitlines() if line.strip()), "").strip()
    line = shown(line, keep="")
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"
