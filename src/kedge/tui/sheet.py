"""A long transcript as a sheet of lines of which only what is looked at is drawn.

What was never looked at has an estimated height; the true one takes its place when it comes near. `make_exact` tells by
how much the lines above a place have moved by that, so that what people look at can stay where it is.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from kedge.tui.draw import MARGIN, Drawer, Line
from kedge.tui.model import Conversation, Entry

#: Messages whose lines are kept. More than any screen shows, with the pages around it. Items, least recent go first.
DRAWN_MAX = 400


class Sheet:
    def __init__(self, drawer: Drawer, conversation: Conversation) -> None:
        self.drawer = drawer
        self.conversation = conversation
        self._entries: list[Entry] = []
        self._heights: dict[str, int] = {}
        self._starts: list[int] | None = None
        self._drawn: dict[str, tuple[int, list[Line]]] = {}

    def take_order(self) -> None:
        """Messages were added, removed or have another order."""
        self._entries = self.conversation.ordered()
        for entry in self._entries:
            if entry.body.id not in self._heights:
                self._heights[entry.body.id] = self._estimated(entry)
        self._starts = None

    @property
    def height(self) -> int:
        return self._all_starts()[-1]

    def line(self, y: int) -> Line | None:
        """The line at this place; None behind the end."""
        starts = self._all_starts()
        if not 0 <= y < starts[-1]:
            return None
        number = bisect_right(starts, y) - 1
        lines = self._lines_of(self._entries[number])
        place = y - starts[number]
        return lines[place] if place < len(lines) else None

    def make_exact(self, top: int, height: int, fixed: int) -> int:
        """Draw what lies from `top` on. By how much the line at `fixed` has moved down."""
        shift, y = 0, max(0, top)
        number = max(0, bisect_right(self._all_starts(), y) - 1)
        while number < len(self._entries) and self._all_starts()[number] < top + height + max(0, shift):
            entry = self._entries[number]
            before, start = self._heights[entry.body.id], self._all_starts()[number]
            now = len(self._lines_of(entry))
            if now != before:
                self._heights[entry.body.id] = now
                self._starts = None
                if start + before <= fixed + shift:
                    shift += now - before
            number += 1
        return shift

    def redraw(self, message_ids: set[str]) -> None:
        """These have changed. Those that are not drawn keep the height that was estimated."""
        for message_id in message_ids:
            if (drawn := self._drawn.get(message_id)) is None:
                continue
            entry = self.conversation.entries.get(message_id)
            if entry is not None and entry.version != drawn[0]:
                self._drawn.pop(message_id)
                self._heights[message_id] = len(self._lines_of(entry))
                self._starts = None

    def redraw_all(self) -> None:
        """Something that many depend on has changed: what is drawn is drawn again when it is looked at."""
        self._drawn.clear()

    def fold(self, key: str) -> None:
        """Unfold it, or fold it again."""
        self.drawer.unfolded ^= {key}
        for message_id, (_, lines) in list(self._drawn.items()):
            if any(line.fold == key for line in lines):
                self._drawn.pop(message_id)
                entry = self.conversation.entries.get(message_id)
                if entry is not None:
                    self._heights[message_id] = len(self._lines_of(entry))
        self._starts = None

    def text(self, first: int, last: int) -> list[str]:
        """The lines from `first` to `last` as plain text."""
        found = (self.line(y) for y in range(first, last + 1))
        return [line.strip.text.rstrip() if line else "" for line in found]

    def _lines_of(self, entry: Entry) -> list[Line]:
        message_id = entry.body.id
        drawn = self._drawn.pop(message_id, None)
        if drawn is None or drawn[0] != entry.version:
            drawn = (entry.version, self.drawer.message(entry, self.conversation))
        self._drawn[message_id] = drawn
        if len(self._drawn) > DRAWN_MAX:
            del self._drawn[next(iter(self._drawn))]
        return drawn[1]

    def _all_starts(self) -> list[int]:
        """Where each message starts, and behind them where the sheet ends."""
        if self._starts is None:
            heights = (self._heights[entry.body.id] for entry in self._entries)
            self._starts = list(accumulate(heights, initial=0))
        return self._starts

    def _estimated(self, entry: Entry) -> int:
        if entry.body.role == "tool":
            return 0
        width = max(1, self.drawer.width - MARGIN)
        lines = 0
        for part in entry.body.parts:
            if part.type == "text":
                text = part.data["text"]
                lines += 1 + text.count("\n") + len(text) // width
            elif part.type != "finish":
                lines += 2
        return lines + 1 if lines else 0
