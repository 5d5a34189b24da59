"""Beside the transcript where there is room: what is to be done, what was changed, who else is here."""

from __future__ import annotations

from textual.widgets import Static

from kedge.tui.model import View


class SidePanel(Static):
    DEFAULT_CSS = "SidePanel { width: 36; display: none; }"

    def __init__(self) -> None:
        super().__init__(markup=False)

    def tell(self, view: View, session_id: str) -> None: ...
