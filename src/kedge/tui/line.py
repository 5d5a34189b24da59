"""A question for one line of text."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static


class LineScreen(ModalScreen[str | None]):
    """Gives what was typed; None when it was left."""

    DEFAULT_CSS = """
    LineScreen { align: center middle; }
    LineScreen Vertical { width: 70; max-width: 95%; height: auto; border: round $accent; padding: 0 1; }
    """
    BINDINGS = [("escape", "leave", "leave it")]  # noqa: RUF012

    def __init__(self, title: str, text: str = "") -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._title, markup=False)
            yield Input(self._text, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss(None)
