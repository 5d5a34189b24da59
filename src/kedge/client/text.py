"""Text for people, made harmless for a terminal."""

from __future__ import annotations

from kedge.core.shown import shown

# Controls are shown by their picture, so that nothing is hidden and nothing takes effect. A carriage return is left
# out: alone it would let text overwrite what stands before it, and with a line feed it is noise.
_HARMLESS: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(32)}
_HARMLESS |= {0x7F: "\u2421"} | dict.fromkeys(range(0x80, 0xA0), "\ufffd")
_HARMLESS |= {ord("\n"): "\n", ord("\t"): "\t", ord("\r"): None}
# What reorders text, so that it reads as something else than it is, is spelled out.
_REORDERS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HARMLESS |= {code: f"\\u{{{code:x}}}" for code in _REORDERS}


def harmless(text: str) -> str:
    """The text without anything that a terminal would obey, line breaks and tabs excepted."""
    return text.translate(_HARMLESS)


def visible_line(text: str, chars_max: int = 300) -> str:
    """The beginning of the text as one line with nothing hidden in it."""
    line = shown(" ".join(text[: 4 * chars_max].split()), keep="")
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"


def one_line(text: str, chars_max: int = 300) -> str:
    """The beginning of the text as one harmless line."""
    line = harmless(" ".join(text[: 4 * chars_max].split()))
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"
