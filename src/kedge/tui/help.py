"""What can be pressed and typed: written from the table of keys."""

from __future__ import annotations

from textual.screen import ModalScreen


class HelpScreen(ModalScreen[None]):
    pass
