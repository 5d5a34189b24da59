"""Text for people, made harmless for a terminal."""

from __future__ import annotations

import unicodedata

# Controls are shown by their picture, so that nothing is hidden and nothing takes effect. A carriage return is left
# out: alone it would let text overwrite what stands before it, and with a line feed it is noise.
_HARMLESS: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(32)}
_HARMLESS |= {0x7F: "\u2421"} | dict.fromkeys(range(0x80, 0xA0), "\ufffd")
_HARMLESS |= {ord("\n"): "\n", ord("\t"): "\t", ord("\r"): None}


def harmless(text: str) -> str:
    """The text without anything that a terminal would obey, line breaks and tabs excepted."""
    return text.translate(_HARMLESS)


#: Show as nothing although their category is a visible one: fillers, the blank of Braille, variation selectors.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_SELECTORS = (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))


def visible(text: str, keep: str = "\n\t") -> str:
    """The whole text with nothing hidden in it: what a person would not see, or not see as what it is (controls, text
    that runs backwards, characters without width, spaces that are none), is written as \\u{...}."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"\\u{{{ord(one):x}}}" if one not in keep and _is_unseen(one) else one for one in text)


def _is_unseen(character: str) -> bool:
    if character.isascii():
        return not character.isprintable()
    # C*: controls, format characters, surrogates, private and unassigned ones. Z*: separators, which all look alike.
    is_unseen = unicodedata.category(character)[0] in "CZ" or character in _BLANKS
    return is_unseen or any(ord(character) in selectors for selectors in _SELECTORS)


def visible_line(text: str, chars_max: int = 300) -> str:
    """The beginning of the text as one line with nothing hidden in it."""
    line = visible(" ".join(text[: 4 * chars_max].split()), keep="")
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"


def one_line(text: str, chars_max: int = 300) -> str:
    """The beginning of the text as one harmless line."""
    line = harmless(" ".join(text[: 4 * chars_max].split()))
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"
