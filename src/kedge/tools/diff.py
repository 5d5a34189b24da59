"""What changed between two texts, for people: a unified diff, and how much it is."""

from __future__ import annotations

from difflib import SequenceMatcher

from msgspec import Struct

#: Lines around a change.
CONTEXT_LINES = 3
#: Lines compared one by one, both sides together; what is larger is shown as replaced whole. The comparison takes
#: quadratic time at worst: for this many about a second.
COMPARED_LINES_MAX = 4000
#: Of a diff on people's screens, in bytes: larger ones are not read, and each client would have to hold them.
DIFF_BYTES_MAX = 100_000


class Diff(Struct, frozen=True):
    #: Unified, with file headers, whole.
    text: str
    additions: int
    deletions: int
    #: The removed and added lines in order, without their place: the same change elsewhere has the same ones.
    changed: tuple[str, ...]
    #: The first and the last line of the new text that belong to the change, counted from 1.
    first_line: int
    last_line: int

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
    changed = tuple(
        line
        for _, a, b, c, d in changes
        for line in [*("-" + one for one in before[a:b]), *("+" + one for one in after[c:d])]
    )
    head = f"--- {'/dev/null' if is_new else 'a/' + path}\n+++ b/{path}\n" if body else ""
    deletions = sum(line.startswith("-") for line in changed)
    first, last = (changes[0][3] + 1, max(changes[-1][4], changes[0][3] + 1)) if changes else (1, 1)
    return Diff(head + "".join(body), len(changed) - deletions, deletions, changed, first, last)


Opcode = tuple[str, int, int, int, int]


def _opcodes(before: list[str], after: list[str]) -> list[Opcode]:
    if not before and not after:
        return []
    if len(before) + len(after) > COMPARED_LINES_MAX:
        return [("replace", 0, len(before), 0, len(after))]
    return [(tag, a, b, c, d) for tag, a, b, c, d in SequenceMatcher(None, before, after).get_opcodes()]


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
