"""All commands, found by typing."""

from __future__ import annotations

from textual.screen import ModalScreen

from kedge.tui.keys import Key


class PaletteScreen(ModalScreen[Key | None]):
    """Gives the command that was chosen."""

    def __init__(self, commands: list[Key]) -> None:
        super().__init__()
        self._commands = commands
