"""Find a text in a file and replace it, without changing anything else.

Texts are compared with LF line endings; the new text gets the line endings of the text it replaces. If there is no
exact match, lines are compared without trailing whitespace, and then without their common indentation: models get those
wrong. Such a match must be the only one.

A thread cannot be killed, and string functions hold the interpreter's lock. Therefore every function takes linear time,
and `WorkBudget` limits one call.
"""

from __future__ import annotations

from itertools import accumulate, islice

from msgspec import Struct

from kedge.tools.disk import READ_FILE_BYTES_MAX
from kedge.tools.file_threads import checkpoint
from kedge.tools.textfile import line_endings, plain_endings, same_start
from kedge.tools.tool_failed import ToolFailed

#: Line numbers in the message for an ambiguous text: enough to choose one. Items.
LINES_NAMED_MAX = 5
#: Limit of the replacements of one edit: each takes time and memory, and a program is better for more. Items.
REPLACEMENTS_MAX = 100_000
#: Limit of a text for a tolerant search, which holds all lines in memory. Characters.
TOLERANT_CHARS_MAX = 1_000_000
#: Cost of a character in a tolerant search, relative to an exact search (measured).
TOLERANT_COST = 20
#: Limit of the matches without any indentation that are compared without their common indentation. Overlapping ones
#: count each. Characters.
INDENTED_CHARS_MAX = 2_000_000
#: Limit of all edits of one call: 20 exact searches of the largest file, about a second. Characters.
WORK_CHARS_MAX = 100_000_000


class Replaced(Struct, frozen=True):
    text: str
    count: int
    #: How the text was matched, for the model; empty for an exact match.
    note: str = ""


class WorkBudget:
    """The remaining work of one call."""

    def __init__(self) -> None:
        self._left = WORK_CHARS_MAX

    def spend(self, chars: int) -> None:
        """Call this before each step. ToolFailed if the budget is exceeded."""
        checkpoint()
        self._left -= chars
        if self._left < 0:
            raise ToolFailed("so many edits of a file of this size take too long; use several calls")


def replace(text: str, old: str, new: str, everywhere: bool, shown: str, work: WorkBudget | None = None) -> Replaced:
    """ToolFailed if `old` is missing, or ambiguous and not replaced `everywhere`."""
    work = work or WorkBudget()
    work.spend(len(text) + len(old) + len(new))
    plain, old, new = plain_endings(text), plain_endings(old), plain_endings(new)
    if not old:
        raise ToolFailed(f"old_string is empty but {shown} exists; give the text to replace, or use write")
    if old == new:
        raise ToolFailed("old_string and new_string are equal; nothing to change")
    if everywhere and (count := plain.count(old)):
        return Replaced(_replace_all(text, plain, old, new, count), count)
    starts = _starts(plain, old, LINES_NAMED_MAX + 1)
    if len(starts) > 1:
        raise _ambiguous(plain, starts, shown)
    if starts:
        span, note = (starts[0], starts[0] + len(old)), ""
    else:
        span, new, note = _tolerant(plain, old, new, shown, work)
        if plain[span[0] : span[1]] == new:
            raise ToolFailed(f"{shown} already has that text; nothing to change")
    _check_size(text, span[1] - span[0], new, 1)
    return Replaced(_put(text, [span], new), 1, note)


def _replace_all(text: str, plain: str, old: str, new: str, count: int) -> str:
    if count > REPLACEMENTS_MAX:
        raise ToolFailed(f"old_string occurs {count} times, more than {REPLACEMENTS_MAX}; use bash, e.g. sed")
    _check_size(text, len(old), new, count)
    endings = line_endings(text)
    if endings in ("none", "LF"):
        return text.replace(old, new)
    if endings == "CRLF":
        return plain.replace(old, new).replace("\n", "\r\n")
    spans: list[tuple[int, int]] = []
    at = plain.find(old)
    while at >= 0:
        spans.append((at, at + len(old)))
        at = plain.find(old, at + len(old))
    return _put(text, spans, new)


def _check_size(text: str, old_chars: int, new: str, count: int) -> None:
    """Check the size before building the result: it has at least as many bytes as characters."""
    new_chars = len(new) + new.count("\n") * ("\r\n" in text)
    if len(text) + count * (new_chars - old_chars) > READ_FILE_BYTES_MAX:
        raise too_large()


def too_large() -> ToolFailed:
    return ToolFailed(f"the file would become larger than {READ_FILE_BYTES_MAX // 1000} kB; use bash")


def _starts(plain: str, old: str, count_max: int) -> list[int]:
    """Return the first matches. Overlapping ones ("aa" in "aaa") count each: they are ambiguous."""
    starts: list[int] = []
    at = plain.find(old)
    while at >= 0 and len(starts) < count_max:
        starts.append(at)
        at = plain.find(old, at + 1)
    return starts


def _ambiguous(plain: str, starts: list[int], shown: str) -> ToolFailed:
    is_more = len(starts) > LINES_NAMED_MAX
    numbers = [str(plain.count("\n", 0, start) + 1) for start in starts[:LINES_NAMED_MAX]]
    times = f"more than {LINES_NAMED_MAX}" if is_more else f"{len(starts)}"
    return ToolFailed(
        f"old_string occurs {times} times in {shown} (lines {', '.join(numbers)}{', …' * is_more}); "
        "add surrounding lines until it is unique, or set replace_all"
    )


def _put(text: str, spans: list[tuple[int, int]], new: str) -> str:
    """Replace `spans`, which are offsets in the text with LF line endings, in order. The rest of `text` is kept."""
    has_crlf = "\r\n" in text
    with_crlf = new.replace("\n", "\r\n") if has_crlf else new
    first_newline = text.find("\n")
    newline = -1  # end of the line of the last span; the length of the text if it has no newline
    pieces: list[str] = []
    done = plain_done = 0  # the same position in both texts
    for start, end in spans:
        first = _advance(text, done, start - plain_done) if has_crlf else start
        if has_crlf and newline < first:
            newline = text.find("\n", first)
            newline = len(text) if newline < 0 else newline
        # A line without an end counts as ending like the first one.
        ends_at = newline if newline < len(text) else first_newline
        is_crlf = has_crlf and text[ends_at - 1 : ends_at] == "\r"
        pieces += [text[done:first], with_crlf if is_crlf else new]
        done, plain_done = (_advance(text, first, end - start) if has_crlf else end), end
        checkpoint()
    return "".join([*pieces, text[done:]])


def _advance(text: str, at: int, count: int) -> int:
    """Return the offset `count` characters after `at`, with CR LF as one; `at` is not between them. Each round scans
    only new characters, at most half as many as the round before: linear."""
    while count:
        end = at + count
        end += text[end - 1 : end + 1] == "\r\n"
        count -= end - at - text.count("\r\n", at, end)
        at = end
    return at


def _tolerant(plain: str, old: str, new: str, shown: str, work: WorkBudget) -> tuple[tuple[int, int], str, str]:
    """Return the only span that matches except for whitespace, its new text, and a note."""
    if len(plain) > TOLERANT_CHARS_MAX:
        raise ToolFailed(
            f"old_string has no exact match in {shown}, and the file is too large to search with other whitespace; "
            "view the file and copy the text exactly"
        )
    work.spend(TOLERANT_COST * len(plain))
    has_end = old.endswith("\n")
    old_lines = (old[:-1] if has_end else old).split("\n")
    lines = plain.split("\n")
    stripped = [line.strip() for line in old_lines]
    if not any(stripped):
        raise ToolFailed(f"old_string is not in {shown}; give some text, not whitespace alone")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]

    def whole_lines(at: int, put: str) -> tuple[tuple[int, int], str]:
        """Return the span of these lines, with the last newline if `old` has one. A file without a last newline stays
        so."""
        start, end = starts[at], starts[at + len(old_lines)] - 1
        if not has_end:
            return (start, end), put
        return ((start, end + 1), put) if end < len(plain) else ((start, end), put.removesuffix("\n"))

    places = _places([line.rstrip() for line in lines], [line.rstrip() for line in old_lines], 2)
    if len(places) == 1:
        return (*whole_lines(places[0], new), "ignoring whitespace at line ends")
    checkpoint()
    bare = [line.strip() for line in lines]
    places = _same_shape(lines, starts, old_lines, bare, stripped)
    if len(places) > 1:
        raise ToolFailed(
            f"old_string has no exact match in {shown}, but {len(places)} matches with other whitespace; "
            "view the file and copy the text exactly"
        )
    if places:
        moved = _moved(new, _indent(old_lines), _indent(lines[places[0] : places[0] + len(old_lines)]))
        if moved is not None:
            return (*whole_lines(places[0], moved), "with its own indentation")
    first = next(line for line in stripped if line)
    near = list(islice((str(number) for number, line in enumerate(bare, 1) if line == first), LINES_NAMED_MAX))
    hint = f" (its first line is, at line {', '.join(near)})" if near else ""
    raise ToolFailed(f"old_string is not in {shown}{hint}; view the file and copy the text exactly")


def _places(lines: list[str], old_lines: list[str], count_max: int) -> list[int]:
    """Return the first matches of these lines.

    Each distinct line becomes a character, so that `str.find` searches in linear time."""
    letters = {line: chr(number) for number, line in enumerate(dict.fromkeys(old_lines), 1)}
    text = "".join([letters.get(line, "\0") for line in lines])
    return _starts(text, "".join([letters[line] for line in old_lines]), count_max)


def _same_shape(
    lines: list[str], starts: list[int], old_lines: list[str], bare: list[str], stripped: list[str]
) -> list[int]:
    """Return at most two matches without the common indentation."""
    sought = _without_indent(old_lines)
    left = INDENTED_CHARS_MAX
    matches: list[int] = []
    for at in _places(bare, stripped, INDENTED_CHARS_MAX // len(old_lines) + 1):
        left -= starts[at + len(old_lines)] - starts[at]
        if left < 0:
            raise ToolFailed(
                "old_string has no exact match, but many with other whitespace; view the file and copy the text exactly"
            )
        checkpoint()
        if _without_indent(lines[at : at + len(old_lines)]) == sought:
            matches.append(at)
        if len(matches) == 2:
            break
    return matches


def _indent(lines: list[str]) -> str:
    """Return the common leading whitespace of all lines that are not blank."""
    starts = [line[: len(line) - len(line.lstrip())] for line in lines if line.strip()]
    low, high = min(starts), max(starts)
    return low[: same_start(low, high)]


def _without_indent(lines: list[str]) -> list[str]:
    indent = _indent(lines)
    return [line[len(indent) :].rstrip() if line.strip() else "" for line in lines]


def _moved(new: str, old_indent: str, indent: str) -> str | None:
    """Return `new` with the indentation of the match; None if a line is less indented than the text it replaces."""
    lines = new.split("\n")
    if len(new) + len(lines) * (len(indent) - len(old_indent)) > READ_FILE_BYTES_MAX:
        raise too_large()
    if any(line.strip() and not line.startswith(old_indent) for line in lines):
        return None
    return "\n".join(indent + line[len(old_indent) :] if line.strip() else line for line in lines)
