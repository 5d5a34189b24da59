"""What people are asked about, made visible: nothing in it may hide, reorder or move the cursor."""

from __future__ import annotations

import re
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


#: Accents and other marks on one letter that are drawn as they are. More than that no script needs, and terminals draw
#: them over what stands above, or not at all. Characters.
_MARKS_MAX = 3
#: Strokes and frames over a character, which hide it: the combining class, and the category.
_OVERLAY_CLASS, _FRAME_CATEGORY = 1, "Me"


def _without_marks(text: str) -> str:
    """The text with those marks spelled out that stand on no letter, hide what they stand on, or are too many."""
    if text.isascii():
        return text
    odd = {character for character in set(text) if unicodedata.category(character)[0] == "M"}
    if not odd:
        return text
    hiding = {
        character
        for character in odd
        if unicodedata.combining(character) == _OVERLAY_CLASS or unicodedata.category(character) == _FRAME_CATEGORY
    }
    pieces: list[str] = []
    marks = _MARKS_MAX  # at the start of a text there is no letter
    for character in text:
        if character not in odd:
            marks = 0 if character.isalnum() else _MARKS_MAX
            pieces.append(character)
        elif marks >= _MARKS_MAX or character in hiding:
            pieces.append(_spelled(character))
        else:
            marks += 1
            pieces.append(character)
    return "".join(pieces)


#: The blank that ends a line. A backslash before it no longer continues the line in a shell.
_LAST_BLANK = re.compile(r"[ \t](?=\n|\Z)")


def shown(text: str, *, keep: str = "\n\t", mark_ends: bool = True) -> str:
    """The whole text, with what cannot be seen written as \\u{...}.

    `mark_ends`: so is the blank or tab that ends a line. Not for prose, where it has no meaning. Takes linear time."""
    # Each distinct character is judged once: `translate` does the rest.
    table = {ord(character): _spelled(character) for character in set(text) if is_unseen(character)}
    for character in keep:
        table.pop(ord(character), None)
    if table:
        text = text.translate(table)
    text = _without_marks(text)
    return _LAST_BLANK.sub(lambda blank: _spelled(blank[0]), text) if mark_ends else text


def shown_diff(diff: str) -> str:
    """A unified diff as `shown`. The sign of a line is no part of the line: an empty one ends in no blank."""
    return "\n".join(line[:1] + shown(line[1:], keep="\t") for line in diff.split("\n"))


def _spelled(character: str) -> str:
    return f"\\u{{{ord(character):x}}}"


def one_line(text: str, chars_max: int) -> str:
    """A title: the first line that says something, cut. Never what an approval is decided on."""
    line = next((line for line in text.splitlines() if line.strip()), "").strip()
    # Cut before, too: a line may have megabytes.
    line = shown(line[: chars_max + 1], keep="", mark_ends=False)
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"
