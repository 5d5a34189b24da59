"""Text from models, tools and users, made safe to display, store and parse."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import msgspec

#: Characters that are drawn as a blank although their category is a visible one: fillers and the blank of Braille.
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5")
#: Control, format (bidi, zero-width, tags), surrogate, private, unassigned, line and paragraph separators.
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def is_invisible(character: str) -> bool:
    """Return True for a character that is not drawn, or that looks like a space and is not U+0020."""
    if character.isascii():
        return not character.isprintable()
    category = unicodedata.category(character)
    if category in _INVISIBLE_CATEGORIES or category == "Zs" or character in _BLANK:
        return True
    # Variation selectors.
    return (
        0xFE00 <= ord(character) <= 0xFE0F or 0xE0100 <= ord(character) <= 0xE01EF or 0x180B <= ord(character) <= 0x180F
    )


#: Combining marks on one letter that are drawn. No script needs more, and terminals draw a higher stack over other
#: lines, or not at all. Characters.
_MARKS_MAX = 3
#: Strokes and frames that cover their base character: the combining class, and the category.
_OVERLAY_CLASS, _FRAME_CATEGORY = 1, "Me"


def _escape_marks(text: str) -> str:
    """Escape combining marks that have no base letter, cover it, or are too many."""
    if text.isascii():
        return text
    marks = {character for character in set(text) if unicodedata.category(character)[0] == "M"}
    if not marks:
        return text
    covering = {
        character
        for character in marks
        if unicodedata.combining(character) == _OVERLAY_CLASS or unicodedata.category(character) == _FRAME_CATEGORY
    }
    pieces: list[str] = []
    stacked = _MARKS_MAX  # the start of the text has no base letter
    for character in text:
        if character not in marks:
            stacked = 0 if character.isalnum() else _MARKS_MAX
            pieces.append(character)
        elif stacked >= _MARKS_MAX or character in covering:
            pieces.append(_escape(character))
        else:
            stacked += 1
            pieces.append(character)
    return "".join(pieces)


#: The blank that ends a line. A backslash before it no longer continues the line in a shell.
_LAST_BLANK = re.compile(r"[ \t](?=\n|\Z)")


def visible(text: str, *, keep: str = "\n\t", mark_ends: bool = True) -> str:
    """Return the text with invisible characters escaped as \\u{...}, for approvals: nothing can hide, reorder text or
    move the cursor. Takes linear time.

    `mark_ends` also escapes the blank or tab that ends a line; pass False for prose, where it has no meaning."""
    # Each distinct character is checked once; `translate` does the rest.
    table = {ord(character): _escape(character) for character in set(text) if is_invisible(character)}
    for character in keep:
        table.pop(ord(character), None)
    if table:
        text = text.translate(table)
    text = _escape_marks(text)
    return _LAST_BLANK.sub(lambda blank: _escape(blank[0]), text) if mark_ends else text


def visible_diff(diff: str) -> str:
    """Apply `visible` to the lines of a unified diff, each without its leading sign: an empty line ends in no blank."""
    return "\n".join(line[:1] + visible(line[1:], keep="\t") for line in diff.split("\n"))


def _escape(character: str) -> str:
    return f"\\u{{{ord(character):x}}}"


def one_line(text: str, chars_max: int) -> str:
    """Return the first line that is not blank, cut: a title. Never base an approval on it."""
    line = next((line for line in text.splitlines() if line.strip()), "").strip()
    # Cut before escaping, too: a line may have megabytes.
    line = visible(line[: chars_max + 1], keep="", mark_ends=False)
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"


def without_surrogates(text: str) -> str:
    """Replace lone surrogates with "?": a `str` may contain them, but UTF-8 cannot encode them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; {} for anything else, since models write invalid tool input."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
