"""What changed between two texts, for people: a unified diff, and how much it is."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from difflib import SequenceMatcher
from itertools import pairwise

from msgspec import Struct

#: Lines around a change.
CONTEXT_LINES = 3
#: Lines compared one by one, both sides together; what is larger is cut at lines that both sides have once, and a piece
#: without any is shown as replaced whole. The comparison takes quadratic time at worst: for this many about a second.
COMPARED_LINES_MAX = 4000
#: Of a diff on people's screens, in bytes: larger ones are not read, and each client would have to hold them. Nobody is
#: asked to approve what is larger.
DIFF_BYTES_MAX = 100_000


class Diff(Struct, frozen=True):
    #: Unified, with file headers, whole.
    text: str
    additions: int
    deletions: int
    #: The removed and added lines in order, without their place.
    changed: tuple[str, ...]
    #: Their place: lines a to b of the old text have become c to d of the new one, counted from 0, without b and d.
    places: tuple[tuple[int, int, int, int], ...]
    #: The first and the last line of the new text that belong to the change, counted from 1.
    first_line: int
    last_line: int

    @property
    def is_whole(self) -> bool:
        """Whether all of it is shown."""
        return self.bounded() is self.text

    def bounded(self, bytes_max: int = DIFF_BYTES_MAX) -> str:
        data = self.text.encode("utf-8", "replace")
        if len(data) <= bytes_max:
            return self.text
        kept = data[:bytes_max].decode("utf-8", "ignore").rpartition("\n")[0]
        return f"{kept}\n(cut here: the diff has {len(data)} bytes)\n"


def lines_of(text: str) -> list[str]:
    """Each with its newline. Only a newline ends a line: form feeds and the like are text."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def compare(old: str, new: str, path: str, *, is_new: bool = False) -> Diff:
    before, after = lines_of(old), lines_of(new)
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    rest = 0
    while rest < min(len(before), len(after)) - start and before[-1 - rest] == after[-1 - rest]:
        rest += 1
    changes = [
        (tag, a + start, b + start, c + start, d + start)
        for tag, a, b, c, d in _opcodes(before[start : len(before) - rest], after[start : len(after) - rest])
        if tag != "equal"
    ]
    body: list[str] = []
    for hunk in _hunks(changes):
        body += _hunk(hunk, before, after)
    head = f"--- {'/dev/null' if is_new else 'a/' + path}\n+++ b/{path}\n" if body else ""
    changed = tuple(
        line
        for _, a, b, c, d in changes
        for line in [*("-" + one for one in before[a:b]), *("+" + one for one in after[c:d])]
    )
    deletions = sum(line.startswith("-") for line in changed)
    first, last = (changes[0][3] + 1, max(changes[-1][4], changes[0][3] + 1)) if changes else (1, 1)
    places = tuple((a, b, c, d) for _, a, b, c, d in changes)
    return Diff(head + "".join(body), len(changed) - deletions, deletions, changed, places, first, last)


def is_the_same(made: Diff, shown: Diff, between: Diff) -> bool:
    """Whether `made` does what `shown` does, and to the same lines, although `between` has moved them meanwhile."""

    def now(line: int) -> tuple[int, int]:
        moved = line + sum(d - c - b + a for a, b, c, d in between.places if a < line and b <= line)
        return moved, moved + sum(d - c for a, b, c, d in between.places if a == b == line)  # before or behind new ones

    starts = [place[0] for place in made.places]
    if made.changed != shown.changed or len(starts) != len(shown.places):
        return False
    return all(start in now(place[0]) for start, place in zip(starts, shown.places, strict=True))


Opcode = tuple[str, int, int, int, int]


def _opcodes(before: list[str], after: list[str]) -> list[Opcode]:
    if not before and not after:
        return []
    found: list[Opcode] = []
    left = COMPARED_LINES_MAX
    cuts = [(-1, -1), *_landmarks(before, after, left), (len(before), len(after))]
    for (before_cut, after_cut), (a_end, c_end) in pairwise(cuts):
        a, c = before_cut + 1, after_cut + 1
        size = a_end - a + c_end - c
        if size > left:
            found.append(("replace", a, a_end, c, c_end))
        elif size:
            left -= size
            pieces = SequenceMatcher(None, before[a:a_end], after[c:c_end]).get_opcodes()
            found += [(tag, a + i, a + j, c + k, c + m) for tag, i, j, k, m in pieces]
    return found


def _landmarks(before: list[str], after: list[str], lines_max: int) -> list[tuple[int, int]]:
    """Where to cut what is too long to be compared at once: at lines that stand once on either side, in one order."""
    if len(before) + len(after) <= lines_max:
        return []
    counts, others = Counter(before), Counter(after)
    places = {line: place for place, line in enumerate(after)}
    pairs = [(a, places[line]) for a, line in enumerate(before) if counts[line] == 1 and others[line] == 1]
    # The longest run of pairs that is in order on both sides, by patience sorting.
    ends: list[int] = []  # the least place at which a run of so many ends
    last_of: list[int] = []  # which pair that is
    earlier: list[int] = []  # for each pair, the one before it in its run
    for number, (_, place) in enumerate(pairs):
        length = bisect_left(ends, place)
        earlier.append(last_of[length - 1] if length else -1)
        ends[length : length + 1] = [place]
        last_of[length : length + 1] = [number]
    run: list[tuple[int, int]] = []
    number = last_of[-1] if last_of else -1
    while number >= 0:
        run.append(pairs[number])
        number = earlier[number]
    return run[::-1]


def _hunks(changes: list[Opcode]) -> list[list[Opcode]]:
    """Changes whose surrounding lines would touch are shown together."""
    hunks: list[list[Opcode]] = []
    for change in changes:
        if hunks and change[1] - hunks[-1][-1][2] <= 2 * CONTEXT_LINES:
            hunks[-1].append(change)
        else:
            hunks.append([change])
    return hunks


def _hunk(changes: list[Opcode], before: list[str], after: list[str]) -> list[str]:
    lead = min(CONTEXT_LINES, changes[0][1])
    end = min(len(before), changes[-1][2] + CONTEXT_LINES)
    old_start, new_start = changes[0][1] - lead, changes[0][3] - lead
    new_end = changes[-1][4] + end - changes[-1][2]
    lines = [f"@@ -{_span(old_start, end)} +{_span(new_start, new_end)} @@\n"]
    at = old_start
    for _, a, b, c, d in changes:
        lines += [_line(" ", line) for line in before[at:a]]
        lines += [_line("-", line) for line in before[a:b]]
        lines += [_line("+", line) for line in after[c:d]]
        at = b
    return lines + [_line(" ", line) for line in before[at:end]]


def _span(start: int, end: int) -> str:
    """As diff writes it: an empty span is named by the line before it."""
    count = end - start
    return f"{start + 1}" if count == 1 else f"{start + 1 if count else start},{count}"


def _line(sign: str, line: str) -> str:
    return sign + (line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
