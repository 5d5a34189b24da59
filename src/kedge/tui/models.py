"""The models that can be used, with their limits and prices."""

from __future__ import annotations

from textual.screen import ModalScreen

from kedge.tui.link import Link


class ModelsScreen(ModalScreen[str | None]):
    """Gives the name of the model; None when nothing was chosen."""

    def __init__(self, link: Link, current: str) -> None:
        super().__init__()
        self._link, self._current = link, current
