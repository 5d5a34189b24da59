"""A line to type into. Its caret does not blink: nothing ticks while nothing happens."""

from __future__ import annotations

from textual.widgets import Input


class TextField(Input):
    def on_mount(self) -> None:
        self.cursor_blink = False
