"""The lines of a long transcript, of which only those near the view are rendered.

Messages that were never near the view have an estimated height, which is replaced by the exact one when they are. To
keep a line in place on the screen, store its `LineAnchor` and convert it back to a line number.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from kedge.client.view.conversation import Conversation, ConversationEntry
from kedge.tui.render.message_renderer import MessageRenderer
from kedge.tui.render.tool_cards import MARGIN, RenderedLine

#: Cached messages: more than a screen and the pages around it show. Items, the least recently used are dropped first.
RENDERED_MAX = 400


class LineAnchor(NamedTuple):
    """A line of a message: independent of changes above it."""

    message_id: str
    line: int


class TranscriptLayout:
    def __init__(self, message_renderer: MessageRenderer, conversation: Conversation) -> None:
        self.message_renderer = message_renderer
        self.conversation = conversation
        self._entries: list[ConversationEntry] = []
        self._numbers: dict[str, int] = {}
        self._heights: dict[str, int] = {}
        #: The line at which each message starts, and the end of the last one, as far as they are computed.
        self._starts: list[int] = [0]
        self._rendered: dict[str, tuple[int, list[RenderedLine]]] = {}

    def update_order(self) -> None:
        """Update after messages were added, removed or reordered."""
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
        """Return the line of this number; None after the end."""
        starts = self._all_starts()
        if not 0 <= y < starts[-1]:
            return None
        number = bisect_right(starts, y) - 1
        lines = self._lines_of(self._entries[number])
        index = y - starts[number]
        return lines[index] if index < len(lines) else None

    def anchor_at(self, y: int) -> LineAnchor | None:
        starts = self._all_starts()
        if not 0 <= y < starts[-1]:
            return None
        number = bisect_right(starts, y) - 1
        return LineAnchor(self._entries[number].body.id, y - starts[number])

    def y_of(self, anchor: LineAnchor) -> int | None:
        """Return the current number of the line; if the message is shorter now, of its last line. None: removed."""
        number = self._numbers.get(anchor.message_id)
        if number is None:
            return None
        height = self._heights[anchor.message_id]
        return self._all_starts()[number] + max(0, min(anchor.line, height - 1))

    def make_exact(self, top: int, height: int) -> bool:
        """Render the lines from `top` on; return whether any height has changed."""
        moved = False
        number = max(0, bisect_right(self._all_starts(), max(0, top)) - 1)
        while number < len(self._entries) and self._all_starts()[number] < top + height:
            entry = self._entries[number]
            moved = self._set_height(entry.body.id, len(self._lines_of(entry))) or moved
            number += 1
        return moved

    def redraw(self, message_ids: set[str]) -> None:
        """Render these messages again, unless they are not cached: those keep their estimated height."""
        for message_id in message_ids:
            if message_id in self._rendered and message_id in self._numbers:
                entry = self._entries[self._numbers[message_id]]
                self._set_height(message_id, len(self._lines_of(entry)))

    def redraw_all(self) -> None:
        """Drop the cache. Messages are rendered again when they are near the view."""
        self._rendered.clear()

    def fold(self, key: str) -> None:
        """Toggle a fold."""
        self.message_renderer.folds.toggle(key)
        holders = {mid for mid, (_, lines) in self._rendered.items() if any(line.fold == key for line in lines)}
        for message_id in holders:
            del self._rendered[message_id]
            if (number := self._numbers.get(message_id)) is not None:
                self._set_height(message_id, len(self._lines_of(self._entries[number])))

    def _lines_of(self, entry: ConversationEntry) -> list[RenderedLine]:
        message_id = entry.body.id
        drawn = self._rendered.pop(message_id, None)
        if drawn is None or drawn[0] != entry.version:
            drawn = (entry.version, self.message_renderer.message(entry, self.conversation))
        self._rendered[message_id] = drawn
        if len(self._rendered) > RENDERED_MAX:
            del self._rendered[next(iter(self._rendered))]
        return drawn[1]

    def _set_height(self, message_id: str, height: int) -> bool:
        if self._heights[message_id] == height:
            return False
        self._heights[message_id] = height
        del self._starts[self._numbers[message_id] + 1 :]
        return True

    def _all_starts(self) -> list[int]:
        """Compute the missing starts. A streaming message at the end costs one addition."""
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
