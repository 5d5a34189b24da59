"""A long transcript as a sheet of lines of which only what is looked at is drawn.

What was never looked at has an estimated height; the true one takes its place when it comes near. Whoever wants a line
to stay where it is on the screen remembers its `Place`, and asks for its number again.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from kedge.client.view.conversation import Conversation, ConversationEntry
from kedge.tui.render.message_renderer import MessageRenderer
from kedge.tui.render.tool_cards import MARGIN, RenderedLine

#: Messages whose lines are kept. More than any screen shows, with the pages around it. Items, least recent go first.
DRAWN_MAX = 400


class LineAnchor(NamedTuple):
    """A line, by the message it is of: whatever happens above, it is still the same one."""

    message_id: str
    line: int


class TranscriptLayout:
    def __init__(self, message_renderer: MessageRenderer, conversation: Conversation) -> None:
        self.message_renderer = message_renderer
        self.conversation = conversation
        self._entries: list[ConversationEntry] = []
        self._numbers: dict[str, int] = {}
        self._heights: dict[str, int] = {}
        #: Where the messages start, and behind each where it ends; as far as that is known.
        self._starts: list[int] = [0]
        self._drawn: dict[str, tuple[int, list[RenderedLine]]] = {}

    def take_order(self) -> None:
        """Messages were added, removed or have another order."""
        before, self._entries = self._entries, list(self.conversation.ordered())
        same = 0
        for old, new in zip(before, self._entries, strict=False):
            if old is not new:
                break
            same += 1
        for number in range(same, len(before)):
            self._numbers.pop(before[number].body.id, None)
        for number in range(same, len(self._entries)):
            entry = self._entries[number]
            self._numbers[entry.body.id] = number
            if entry.body.id not in self._heights:
                self._heights[entry.body.id] = self._estimated(entry)
        del self._starts[same + 1 :]

    @property
    def height(self) -> int:
        return self._all_starts()[-1]

    def line(self, y: int) -> RenderedLine | None:
        """The line at this place; None behind the end."""
        starts = self._all_starts()
        if not 0 <= y < starts[-1]:
            return None
        number = bisect_right(starts, y) - 1
        lines = self._lines_of(self._entries[number])
        place = y - starts[number]
        return lines[place] if place < len(lines) else None

    def place_of(self, y: int) -> LineAnchor | None:
        starts = self._all_starts()
        if not 0 <= y < starts[-1]:
            return None
        number = bisect_right(starts, y) - 1
        return LineAnchor(self._entries[number].body.id, y - starts[number])

    def y_of(self, place: LineAnchor) -> int | None:
        """Where this line is now; the nearest of its message, if it has become shorter. None: that is gone."""
        number = self._numbers.get(place.message_id)
        if number is None:
            return None
        height = self._heights[place.message_id]
        return self._all_starts()[number] + max(0, min(place.line, height - 1))

    def make_exact(self, top: int, height: int) -> bool:
        """Draw what lies from `top` on. Whether anything has moved by that."""
        moved = False
        number = max(0, bisect_right(self._all_starts(), max(0, top)) - 1)
        while number < len(self._entries) and self._all_starts()[number] < top + height:
            entry = self._entries[number]
            moved = self._set_height(entry.body.id, len(self._lines_of(entry))) or moved
            number += 1
        return moved

    def redraw(self, message_ids: set[str]) -> None:
        """These have changed. Those that are not drawn keep the height that was estimated."""
        for message_id in message_ids:
            if message_id in self._drawn and message_id in self._numbers:
                entry = self._entries[self._numbers[message_id]]
                self._set_height(message_id, len(self._lines_of(entry)))

    def redraw_all(self) -> None:
        """Something that many depend on has changed: what is drawn is drawn again when it is looked at."""
        self._drawn.clear()

    def fold(self, key: str) -> None:
        """Unfold it, or fold it again."""
        self.message_renderer.unfolded ^= {key}
        holders = {mid for mid, (_, lines) in self._drawn.items() if any(line.fold == key for line in lines)}
        for message_id in holders:
            del self._drawn[message_id]
            if (number := self._numbers.get(message_id)) is not None:
                self._set_height(message_id, len(self._lines_of(self._entries[number])))

    def _lines_of(self, entry: ConversationEntry) -> list[RenderedLine]:
        message_id = entry.body.id
        drawn = self._drawn.pop(message_id, None)
        if drawn is None or drawn[0] != entry.version:
            drawn = (entry.version, self.message_renderer.message(entry, self.conversation))
        self._drawn[message_id] = drawn
        if len(self._drawn) > DRAWN_MAX:
            del self._drawn[next(iter(self._drawn))]
        return drawn[1]

    def _set_height(self, message_id: str, height: int) -> bool:
        if self._heights[message_id] == height:
            return False
        self._heights[message_id] = height
        del self._starts[self._numbers[message_id] + 1 :]
        return True

    def _all_starts(self) -> list[int]:
        """A message that grows at the end costs one addition, however many there are before it."""
        for number in range(len(self._starts) - 1, len(self._entries)):
            self._starts.append(self._starts[-1] + self._heights[self._entries[number].body.id])
        return self._starts

    def _estimated(self, entry: ConversationEntry) -> int:
        if entry.body.role == "tool":
            return 0
        width = max(1, self.message_renderer.width - MARGIN)
        lines = 0
        for part in entry.body.parts:
            if part.type == "text":
                text = part.data["text"]
                lines += 1 + text.count("\n") + len(text) // width
            elif part.type != "finish":
                lines += 2
        return lines + 1 if lines else 0
