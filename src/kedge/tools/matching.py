"""Finding the text an agent wants to replace, and replacing it without touching anything else.

Texts are compared with every line ending as a newline, whatever the file has; what is put in gets the endings of what
it replaces. When the text is not there as given, lines are compared without the whitespace at their ends, and then
without their common indentation: models get those wrong. Both only where there is exactly one such place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from msgspec import Struct

from kedge.tools.processes import ToolFailed
from kedge.tools.textfile import plain_endings

#: Line numbers told when a text is there several times: enough to choose one.
PLACES_TOLD_MAX = 5


class Replaced(Struct, frozen=True):
    text: str
    count: int
    #: How the text was found, for the agent; empty: as given.
    how: str = ""


def replace(text: str, old: str, new: str, everywhere: bool, shown: str) -> Replaced:
    """ToolFailed if `old` is not there, or is there more than once and not `everywhere`."""
    plain, old, new = plain_endings(text), plain_endings(old), plain_endings(new)
    if not old:
        raise ToolFailed(f"old_string is empty but {shown} exists; give the text to replace, or use write")
    if old == new:
        raise ToolFailed("old_string and new_string are the same: there is nothing to change")
    spans = _exact(plain, old, everywhere)
    if len(spans) > 1 and not everywhere:
        lines = ", ".join(str(plain.count("\n", 0, start) + 1) for start, _ in spans[:PLACES_TOLD_MAX])
        raise ToolFailed(
            f"old_string is in {shown} {len(spans)} times (lines {lines}{', …' * (len(spans) > PLACES_TOLD_MAX)}); "
            "add lines around it until there is one such place, or set replace_all"
        )
    how = ""
    if not spans:
        span, new, how = _tolerant(plain, old, new, shown)
        spans = [span]
        if plain[span[0] : span[1]] == new:
            raise ToolFailed(f"{shown} has that text already: there is nothing to change")
    return Replaced(_put(text, plain, spans, new), len(spans), how)


def _exact(plain: str, old: str, everywhere: bool) -> list[tuple[int, int]]:
    """Places that overlap ("aa" in "aaa") are counted each when one is wanted: it is not clear which is meant."""
    spans = []
    at = plain.find(old)
    while at >= 0:
        spans.append((at, at + len(old)))
        at = plain.find(old, at + (len(old) if everywhere else 1))
    return spans


def _put(text: str, plain: str, spans: list[tuple[int, int]], new: str) -> str:
    """`spans` are places in `plain`; all else of `text` stays as it is."""
    crlf: list[int] = []  # where in `plain` the newlines are that were two characters
    if len(text) != len(plain):
        at = text.find("\r\n")
        while at >= 0:
            crlf.append(at - len(crlf))
            at = text.find("\r\n", at + 2)
    pieces = []
    done = 0
    for start, end in spans:
        first, last = start + bisect_left(crlf, start), end + bisect_left(crlf, end)
        is_crlf = bool(crlf) and _is_crlf(text, first)
        pieces += [text[done:first], new.replace("\n", "\r\n") if is_crlf else new]
        done = last
    return "".join([*pieces, text[done:]])


def _is_crlf(text: str, start: int) -> bool:
    """How the line ends that this place is in; for an unfinished one, how the first line does."""
    at = text.find("\n", start)
    at = text.find("\n") if at < 0 else at
    return text[at - 1 : at] == "\r"


def _tolerant(plain: str, old: str, new: str, shown: str) -> tuple[tuple[int, int], str, str]:
    """The one place whose lines are these but for whitespace, what to put there, and how it was found."""
    has_end = old.endswith("\n")
    wanted = (old[:-1] if has_end else old).split("\n")
    lines = plain.split("\n")
    stripped = [line.strip() for line in wanted]
    if not any(stripped):
        raise ToolFailed(f"old_string is not in {shown}; give some text, not whitespace alone")
    places = _places([line.rstrip() for line in lines], [line.rstrip() for line in wanted])
    if len(places) == 1:
        return (*_whole_lines(plain, lines, places[0], len(wanted), has_end, new), "ignoring whitespace at line ends")
    places = [
        at
        for at in _places([line.strip() for line in lines], stripped)
        if _without_indent(lines[at : at + len(wanted)]) == _without_indent(wanted)
    ]
    if len(places) > 1:
        raise ToolFailed(
            f"old_string is not in {shown} as given, and {len(places)} places have it with other whitespace; "
            "view the file and copy the text exactly"
        )
    if places:
        moved = _moved(new, _indent(wanted), _indent(lines[places[0] : places[0] + len(wanted)]))
        if moved is not None:
            return (*_whole_lines(plain, lines, places[0], len(wanted), has_end, moved), "with its own indentation")
    first = next(line for line in stripped if line)
    near = [str(number) for number, line in enumerate(lines, 1) if line.strip() == first][:PLACES_TOLD_MAX]
    hint = f" (its first line is, at line {', '.join(near)})" if near else ""
    raise ToolFailed(f"old_string is not in {shown}{hint}; view the file and copy the text exactly")


def _places(lines: list[str], wanted: list[str]) -> list[int]:
    """Where these lines are, one after the other. Looked for by the rarest: blank lines cost nothing."""
    counts = Counter(lines)
    anchor = min(range(len(wanted)), key=lambda at: counts[wanted[at]])
    return [
        at - anchor
        for at, line in enumerate(lines)
        if line == wanted[anchor] and at >= anchor and lines[at - anchor : at - anchor + len(wanted)] == wanted
    ]


def _indent(lines: list[str]) -> str:
    """The whitespace all lines begin with, blank ones aside."""
    starts = [line[: len(line) - len(line.lstrip())] for line in lines if line.strip()]
    low, high = min(starts), max(starts)
    same = next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[:same]


def _without_indent(lines: list[str]) -> list[str]:
    indent = _indent(lines)
    return [line[len(indent) :].rstrip() if line.strip() else "" for line in lines]


def _moved(new: str, old_indent: str, indent: str) -> str | None:
    """`new` as it looks at the place's own indentation; None if it goes further out than the text it replaces."""
    lines = new.split("\n")
    if any(line.strip() and not line.startswith(old_indent) for line in lines):
        return None
    return "\n".join(indent + line[len(old_indent) :] if line.strip() else line for line in lines)


def _whole_lines(
    plain: str, lines: list[str], at: int, count: int, has_end: bool, new: str
) -> tuple[tuple[int, int], str]:
    """The span of these lines, with the last newline if the wanted text had one. A file without a last newline stays
    so."""
    start = sum(len(line) + 1 for line in lines[:at])
    end = start + sum(len(line) + 1 for line in lines[at : at + count]) - 1
    if not has_end:
        return (start, end), new
    return ((start, end + 1), new) if end < len(plain) else ((start, end), new.removesuffix("\n"))
