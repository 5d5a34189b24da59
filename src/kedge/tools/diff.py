"""What changed between two texts, for people: a unified diff, and how much it is."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from difflib import SequenceMatcher
from itertools import accumulate, pairwise

from msgspec import Struct

from kedge.tools.known_files import bind
from kedge.tools.textfile import same_start
from kedge.tools.tool_threads import checkpoint

#: Lines around a change.
CONTEXT_LINES = 3
#: Of one comparison, line by line: about a third of a second. What would take more is cut at lines that both sides have
#: once, and a piece that still takes more than is left is shown as replaced whole. Steps, see `_steps`.
COMPARED_STEPS_MAX = 3_000_000
#: Changed lines of both sides together that are held one by one. With more, the diff is too large to be shown whole.
SPLIT_LINES_MAX = 100_000
#: Of a diff on people's screens, in bytes: larger ones are not read, and each client would have to hold them. Nobody is
#: asked to approve what is larger.
DIFF_BYTES_MAX = 100_000


class Diff(Struct, frozen=True):
    #: Unified, with file headers; cut at DIFF_BYTES_MAX.
    text: str
    #: Whether that is all of it.
    is_whole: bool
    additions: int
    deletions: int
    #: A digest of the removed and added lines in order, without their place.
    changed: str
    #: Their place: lines a to b of the old text have become c to d of the new one, counted from 0, without b and d.
    places: tuple[tuple[int, int, int, int], ...]
    #: The first and the last line of the new text that belong to the change, counted from 1.
    first_line: int
    last_line: int


def lines_of(text: str) -> list[str]:
    """Each with its newline. Only a newline ends a line: form feeds and the like are text."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def compare(old: str, new: str, path: str, *, is_new: bool = False) -> Diff:
    start, old_end, new_end = _span_of_change(old, new)
    lead = old[_lines_back(old, start) : start]
    tail = old[old_end : _lines_on(old, old_end)]
    skipped = old.count("\n", 0, start) - lead.count("\n")  # lines before those that are looked at
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
        # The beginning of it fills a diff.
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
    places = tuple((a + skipped, b + skipped, c + skipped, d + skipped) for a, b, c, d in changes)
    first, last = (places[0][2] + 1, max(places[-1][3], places[0][2] + 1)) if places else (1, 1)
    deletions, additions = sum(b - a for a, b, _, _ in places), sum(d - c for _, _, c, d in places)
    return Diff(page.text(), page.is_whole, additions, deletions, changed, places, first, last)


def is_the_same(made: Diff, shown: Diff, between: Diff) -> bool:
    """Whether `made` does what `shown` does, and to the same lines, although `between` has moved them meanwhile."""
    inserted = {a: d - c for a, b, c, d in between.places if a == b}
    ends = [b for _, b, _, _ in between.places]
    grown = [0, *accumulate(d - c - b + a for a, b, c, d in between.places)]

    def now(line: int) -> tuple[int, int]:
        after = line + grown[bisect_right(ends, line)]
        return after - inserted.get(line, 0), after  # before or behind new ones

    if made.changed != shown.changed or len(made.places) != len(shown.places):
        return False
    pairs = zip(made.places, shown.places, strict=True)
    return all(one[0] in now(other[0]) for one, other in pairs)


def _span_of_change(old: str, new: str) -> tuple[int, int, int]:
    """Where the first line that differs begins, in both, and where the last one ends in either. At the speed of a plain
    comparison, since most of a file is the same."""
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
    """Lines, the last one with or without a newline."""
    return text.count("\n", start, end) + (end > start and text[end - 1] != "\n")


Opcode = tuple[str, int, int, int, int]
#: Lines a to b have become c to d.
Change = tuple[int, int, int, int]


def _opcodes(before: list[str], after: list[str]) -> list[Opcode]:
    left = COMPARED_STEPS_MAX
    found: list[Opcode] = []
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
            found.append(("replace", a, a_end, c, c_end))
        else:
            left -= steps
            pieces = SequenceMatcher(None, before[a:a_end], after[c:c_end]).get_opcodes()
            found += [(tag, a + i, a + j, c + k, c + m) for tag, i, j, k, m in pieces]
    return found


def _steps(before: list[str], after: list[str]) -> int:
    """What comparing them takes at most: SequenceMatcher looks at every pair of equal lines to find the longest block,
    and then again to the left and right of it, as often as there are blocks."""
    counts = Counter(after)
    pairs = sum(counts[line] for line in before)
    return (len(before) + pairs) * (min(len(before), len(after), pairs) + 1) + len(after)


def _landmarks(before: list[str], after: list[str]) -> list[tuple[int, int]]:
    """Where to cut what is too long to be compared at once: at lines that stand once on either side, in one order."""
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


def _hunks(changes: list[Change]) -> list[list[Change]]:
    """Changes whose surrounding lines would touch are shown together."""
    hunks: list[list[Change]] = []
    for change in changes:
        if hunks and change[0] - hunks[-1][-1][1] <= 2 * CONTEXT_LINES:
            hunks[-1].append(change)
        else:
            hunks.append([change])
    return hunks


class _Page:
    """The text of a diff as it is written, up to its limit."""

    def __init__(self, *, is_whole: bool) -> None:
        self.is_whole = is_whole
        self.is_full = False
        self._pieces: list[str] = []
        self._left = DIFF_BYTES_MAX

    def add(self, piece: str) -> None:
        # A piece may have megabytes: it is measured as it is before it is encoded.
        if self.is_full or len(piece) > self._left or len(piece.encode("utf-8", "replace")) > self._left:
            self.is_full, self.is_whole = True, False
            return
        self._left -= len(piece.encode("utf-8", "replace"))
        self._pieces.append(piece)

    def text(self) -> str:
        cut = "" if self.is_whole else f"(cut here: the diff is larger than {DIFF_BYTES_MAX // 1000} kB)\n"
        return "".join(self._pieces) + cut


def _write_hunk(
    page: _Page, changes: list[Change], before: list[str], after: list[str], lines_end: int, skipped: int
) -> None:
    """`lines_end`: of the old text, what is looked at; `skipped`: lines before that."""
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
    """As diff writes it: an empty span is named by the line before it."""
    count = end - start
    return f"{start + 1}" if count == 1 else f"{start + 1 if count else start},{count}"


def _line(sign: str, line: str) -> str:
    return sign + (line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
