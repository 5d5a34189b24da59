"""Untrusted text made safe for a terminal."""

from __future__ import annotations

import re

from kedge.core.untrusted_text import visible

# Control characters become control pictures: visible and without effect. A carriage return is dropped: alone it would
# let text overwrite the text before it, and before a line feed it is noise.
_HARMLESS: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(32)}
_HARMLESS |= {0x7F: "\u2421"} | dict.fromkeys(range(0x80, 0xA0), "\ufffd")
_HARMLESS |= {ord("\n"): "\n", ord("\t"): "\t", ord("\r"): None}
# Bidirectional controls reorder text, so that it reads differently. They are spelled out.
_REORDERS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HARMLESS |= {code: f"\\u{{{code:x}}}" for code in _REORDERS}
# Zero-width characters (accents, joiners) in longer stacks than any script or emoji uses. Terminals draw them over
# neighbouring lines, or stall: one line of the screen may hold a million of them.
_STACK_CHARS_MAX = 8
_STACKED = "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u064b-\u065f\u0e31-\u0e3a\u0e47-\u0e4e\u1ab0-\u1aff\u1dc0-\u1dff"
_STACKED += "\u200b-\u200d\u2060-\u2064\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\ufeff\u00ad\U000e0000-\U000e01ef"
_STACK = re.compile(f"([{_STACKED}]{{{_STACK_CHARS_MAX}}})[{_STACKED}]+")


def harmless(text: str) -> str:
    """Return the text without terminal controls, except line feeds and tabs. Takes linear time."""
    text = text.translate(_HARMLESS)
    return text if text.isascii() else _STACK.sub(r"\1…", text)


def visible_line(text: str, chars_max: int = 300) -> str:
    """Return the start of the text as one line in which nothing is hidden."""
    line = visible(" ".join(text[: 4 * chars_max].split()), keep="")
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"


def one_line(text: str, chars_max: int = 300) -> str:
    """Return the start of the text as one line without terminal controls."""
    line = harmless(" ".join(text[: 4 * chars_max].split()))
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"
