"""A line of words on the screen."""

from __future__ import annotations

from textual.widgets import Static


class StatusText(Static):
    """Only other words change it: each change lays out the whole screen, and it is told with every key and event."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._words = ""

    def say(self, words: str) -> None:
        if words != self._words:
            self._words = words
            self.set_class(bool(words), "told")
            self.update(words)
