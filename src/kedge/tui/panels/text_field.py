"""A one-line input whose caret does not blink: an idle screen is not redrawn."""

from __future__ import annotations

from textual.widgets import Input


class TextField(Input):
    def on_mount(self) -> None:
        self.cursor_blink = False
