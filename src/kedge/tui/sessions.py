"""The sessions of this workspace: find, look into, and change them."""

from __future__ import annotations

from textual.screen import ModalScreen

from kedge.tui.link import Link
from kedge.tui.model import View


class SessionsScreen(ModalScreen[str | None]):
    """Gives the session to open; None when nothing was chosen."""

    def __init__(self, link: Link, view: View, current: str) -> None:
        super().__init__()
        self._link, self._view, self._current = link, view, current
