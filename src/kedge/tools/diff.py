"""Unified diffs of two texts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from difflib import SequenceMatcher
from itertools import accumulate, pairwise

from msgspec import Struct

from kedge.tools.file_threads import checkpoint
from kedge.tools.known_files import bind
from kedge.tools.textfile import same_start

#: Lines shown around a change.
CONTEXT_LINES = 3
#: Limit of one comparison by lines: about a third of a second. A text that takes more is split at lines that are unique
#: on both sides, and a piece that still exceeds the rest is shown as replaced. Steps, see `_steps`.
COMPARED_STEPS_MAX = 3_000_000
#: Limit of the changed lines of both sides that are compared. With more, the diff is too large to be shown. Items.
SPLIT_LINES_MAX = 100_000
#: Limit of a diff. No user reads a larger one, and every client would have to hold it. A larger change cannot be
#: approved. Bytes.
DIFF_BYTES_MAX = 100_000


#: Lines a to b became c to d.
LineChange = tuple[int, int, int, int]


class Diff(Struct, frozen=True):
    #: Unified, with file headers; cut at DIFF_BYTES_MAX.
    text: str
    #: The text is not cut.
    is_whole: bool
    additions: int
    deletions: int
    #: A digest of the removed and added lines in order, without their positions.
    changed: str
    #: Their positions: lines a to b of the old text became c to d of the new one, from 0, without b and d.
    positions: tuple[LineChange, ...]
    #: The first and the last changed line of the new text, from 1.
    first_line: int
    last_line: int


def lines_of(text: str) -> list[str]:
    """Split a text into lines with their newlines. Only a newline ends a line: form feeds and the like are text."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def compare(old: str, new: str, path: str, *, is_new: bool = False) -> Diff:
    start, old_end, new_end = _span_of_change(old, new)
    lead = old[_lines_back(old, start) : start]
    tail = old[old_end : _lines_on(old, old_end)]
    skipped = old.count("\n", 0, start) - lead.count("\n")  # lines before the compared ones
    removed, added = _count(old, start, old_end), _count(new, start, new_end)
    shift = lead.count("\n")
    is_split = removed + added <= SPLIT_LINES_MAX
    if is_split:
        before, after = lines_of(old[start:old_end]), lines_of(new[start:new_end])
        changes = [
            (a + shift, b + shift, c + shift, d + shift)
            for tag, a, b, c, d in _opcodes(before, after)
            if tag != "equal"
        ]
        before, after = lines_of(lead) + before + lines_of(tail), lines_of(lead) + after
        changed = bind(*("".join(side) for a, b, c, d in changes for side in (before[a:b], after[c:d])))
    else:
        # The beginning is enough to fill a diff.
        before = lines_of(lead + old[start : min(old_end, start + DIFF_BYTES_MAX)])
        after = lines_of(lead + new[start : min(new_end, start + DIFF_BYTES_MAX)])
        changes = [(shift, shift + removed, shift, shift + added)]
        changed = bind(old[start:old_end], new[start:new_end])
    page = _Page(is_whole=is_split)
    if changes:
        page.add(f"--- {'/dev/null' if is_new else 'a/' + path}\n+++ b/{path}\n")
    end = shift + removed + len(lines_of(tail))
    for hunk in _hunks(changes):
        _write_hunk(page, hunk, before, after, end, skipped)
    positions = tuple((a + skipped, b + skipped, c + skipped, d + skipped) for a, b, c, d in changes)
    first, last = (positions[0][2] + 1, max(positions[-1][3], positions[0][2] + 1)) if positions else (1, 1)
    deletions, additions = sum(b - a for a, b, _, _ in positions), sum(d - c for _, _, c, d in positions)
    return Diff(page.text(), page.is_whole, additions, deletions, changed, positions, first, last)


def is_the_same(made: Diff, shown: Diff, between: Diff) -> bool:
    """Return whether `made` changes the same lines in the same way as `shown`, although `between` moved them."""
    inserted = {a: d - c for a, b, c, d in between.positions if a == b}
    ends = [b for _, b, _, _ in between.positions]
    grown = [0, *accumulate(d - c - b + a for a, b, c, d in between.positions)]

    def now(line: int) -> tuple[int, int]:
        after = line + grown[bisect_right(ends, line)]
        return after - inserted.get(line, 0), after  # before or after inserted lines

    if made.changed != shown.changed or len(made.positions) != len(shown.positions):
        return False
    pairs = zip(made.positions, shown.positions, strict=True)
    return all(one[0] in now(other[0]) for one, other in pairs)


def _span_of_change(old: str, new: str) -> tuple[int, int, int]:
    """Return the start of the first differing line, and the ends of the last one in both texts. As fast as a plain
    comparison, since most of a file is equal."""
    start = old.rfind("\n", 0, same_start(old, new)) + 1
    room = min(len(old), len(new)) - start
    same = same_start(old[: start - 1 if start else None : -1][:room], new[: start - 1 if start else None : -1][:room])
    old_end, new_end = len(old) - same, len(new) - same
    if any(end > start and text[end - 1] != "\n" for text, end in ((old, old_end), (new, new_end))):
        cut = old.find("\n", old_end) + 1 or len(old)
        old_end, new_end = cut, new_end + cut - old_end
    return start, old_end, new_end


def _lines_back(text: str, at: int) -> int:
    for _ in range(CONTEXT_LINES):
        at = text.rfind("\n", 0, max(0, at - 1)) + 1
    return at


def _lines_on(text: str, at: int) -> int:
    for _ in range(CONTEXT_LINES):
        at = text.find("\n", at) + 1 or len(text)
    return at


def _count(text: str, start: int, end: int) -> int:
    """Count lines; the last one may have no newline."""
    return text.count("\n", start, end) + (end > start and text[end - 1] != "\n")


Opcode = tuple[str, int, int, int, int]


def _opcodes(before: list[str], after: list[str]) -> list[Opcode]:
    left = COMPARED_STEPS_MAX
    opcodes: list[Opcode] = []
    cuts = [(-1, -1), (len(before), len(after))]
    if _steps(before, after) > left:
        cuts[1:1] = _landmarks(before, after)
    for (before_cut, after_cut), (a_end, c_end) in pairwise(cuts):
        a, c = before_cut + 1, after_cut + 1
        if a == a_end and c == c_end:
            continue
        checkpoint()
        steps = _steps(before[a:a_end], after[c:c_end])
        if steps > left:
            opcodes.append(("replace", a, a_end, c, c_end))
        else:
            left -= steps
            pieces = SequenceMatcher(None, before[a:a_end], after[c:c_end]).get_opcodes()
            opcodes += [(tag, a + i, a + j, c + k, c + m) for tag, i, j, k, m in pieces]
    return opcodes


def _steps(before: list[str], after: list[str]) -> int:
    """Return the cost of a comparison at worst: SequenceMatcher visits every pair of equal lines to find the longest
    block, and again to the left and right of it, for each block."""
    counts = Counter(after)
    pairs = sum(counts[line] for line in before)
    return (len(before) + pairs) * (min(len(before), len(after), pairs) + 1) + len(after)


def _landmarks(before: list[str], after: list[str]) -> list[tuple[int, int]]:
    """Return where to split a long comparison: at lines that are unique on both sides and in the same order."""
    counts, others = Counter(before), Counter(after)
    positions = {line: position for position, line in enumerate(after)}
    pairs = [(a, positions[line]) for a, line in enumerate(before) if counts[line] == 1 and others[line] == 1]
    # The longest sequence of pairs that is in order on both sides, by patience sorting.
    ends: list[int] = []  # for each length, the least end of a sequence
    last_of: list[int] = []  # the pair at that end
    earlier: list[int] = []  # for each pair, the one before it in its sequence
    for number, (_, position) in enumerate(pairs):
        length = bisect_left(ends, position)
        earlier.append(last_of[length - 1] if length else -1)
        ends[length : length + 1] = [position]
        last_of[length : length + 1] = [number]
    run: list[tuple[int, int]] = []
    number = last_of[-1] if last_of else -1
    while number >= 0:
        run.append(pairs[number])
        number = earlier[number]
    return run[::-1]


def _hunks(changes: list[LineChange]) -> list[list[LineChange]]:
    """Group changes whose surrounding lines touch."""
    hunks: list[list[LineChange]] = []
    for change in changes:
        if hunks and change[0] - hunks[-1][-1][1] <= 2 * CONTEXT_LINES:
            hunks[-1].append(change)
        else:
            hunks.append([change])
    return hunks


class _Page:
    """The text of a diff, up to its limit."""

    def __init__(self, *, is_whole: bool) -> None:
        self.is_whole = is_whole
        self.is_full = False
        self._pieces: list[str] = []
        self._left = DIFF_BYTES_MAX

    def add(self, piece: str) -> None:
        # A piece may have megabytes: check its length before it is encoded.
        if self.is_full or len(piece) > self._left or len(piece.encode("utf-8", "replace")) > self._left:
            self.is_full, self.is_whole = True, False
            return
        self._left -= len(piece.encode("utf-8", "replace"))
        self._pieces.append(piece)

    def text(self) -> str:
        cut = "" if self.is_whole else f"(cut here: the diff is larger than {DIFF_BYTES_MAX // 1000} kB)\n"
        return "".join(self._pieces) + cut


def _write_hunk(
    page: _Page, changes: list[LineChange], before: list[str], after: list[str], lines_end: int, skipped: int
) -> None:
    """`lines_end`: end of the compared lines of the old text. `skipped`: lines before them."""
    lead = min(CONTEXT_LINES, changes[0][0])
    end = min(lines_end, changes[-1][1] + CONTEXT_LINES)
    old_start, new_start = changes[0][0] - lead, changes[0][2] - lead
    new_end = changes[-1][3] + end - changes[-1][1]
    old_span = _span(old_start + skipped, end + skipped)
    page.add(f"@@ -{old_span} +{_span(new_start + skipped, new_end + skipped)} @@\n")
    at = old_start
    for a, b, c, d in changes:
        for sign, lines in ((" ", before[at:a]), ("-", before[a:b]), ("+", after[c:d])):
            for line in lines:
                if page.is_full:
                    return
                page.add(_line(sign, line))
        at = b
    for line in before[at:end]:
        page.add(_line(" ", line))


def _span(start: int, end: int) -> str:
    """Return a span as diff writes it: an empty one is named by the line before it."""
    count = end - start
    return f"{start + 1}" if count == 1 else f"{start + 1 if count else start},{count}"


def _line(sign: str, line: str) -> str:
    return sign + (line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
