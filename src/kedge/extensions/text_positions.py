"""Positions of the Language Server Protocol in texts: lines from 0, characters in UTF-16 code units."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable

from kedge.bridge.lsp_messages import TextChange
from kedge.tools.tool_failed import ToolFailed

#: The line endings of the protocol.
_ENDING = re.compile(r"\r\n|\n|\r")


def position_of(text: str, symbol: str, line: int, shown: str) -> tuple[int, int]:
    """Return line and character of a symbol. `line`: counted from 1; 0 for its first occurrence."""
    word = re.compile(rf"(?<!\w){re.escape(symbol)}(?!\w)")
    starts = _line_starts(text)
    if line > len(starts):
        raise ToolFailed(f"{shown} has {len(starts)} lines; line {line} is beyond its end")
    begin = starts[line - 1] if line else 0
    end = starts[line] if 0 < line < len(starts) else len(text)
    match = word.search(text, begin, end)
    if match is None:
        where = f"line {line} of {shown}" if line else shown
        raise ToolFailed(f"{symbol} does not occur in {where}; view the file for its line and spelling")
    index = bisect_right(starts, match.start()) - 1
    return index, _units(text[starts[index] : match.start()])


def apply_changes(text: str, changes: Iterable[TextChange], shown: str) -> str:
    """Return the text with all changes. ToolFailed if they overlap or are not in the text."""
    starts = _line_starts(text)
    spans = sorted(
        (
            _offset(text, starts, change.start_line, change.start_character),
            _offset(text, starts, change.end_line, change.end_character),
            change.text,
        )
        for change in changes
    )
    parts, at = [], 0
    for start, end, new in spans:
        if start < at or end < start:
            raise ToolFailed(f"the language server sent changes of {shown} that overlap")
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])


def lines_of_text(text: str) -> list[str]:
    """Return the lines without their endings."""
    return _ENDING.split(text)


def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in _ENDING.finditer(text))]


def _offset(text: str, starts: list[int], line: int, character: int) -> int:
    """Return the index of a position; one after the last line or the end of its line is that end."""
    if line >= len(starts):
        return len(text)
    end = starts[line + 1] if line + 1 < len(starts) else len(text)
    content = _ENDING.split(text[starts[line] : end], maxsplit=1)[0]
    if content.isascii():
        return starts[line] + min(character, len(content))
    units = content.encode("utf-16-le", "surrogatepass")[: 2 * character]
    return starts[line] + len(units.decode("utf-16-le", "ignore"))


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
