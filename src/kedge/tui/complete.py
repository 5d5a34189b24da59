"""Names of files, offered while `@` and the beginning of one stand before the cursor."""

from __future__ import annotations

from pathlib import Path

from textual.message import Message
from textual.widgets import OptionList


class Completions(OptionList):
    DEFAULT_CSS = "Completions { height: auto; max-height: 8; display: none; border: none; }"

    class Chosen(Message):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, root: Path) -> None:
        super().__init__(markup=False, compact=True)
        self._root = root

    def offer(self, beginning: str | None) -> None:
        """The names that fit; None: none is wanted any more."""
