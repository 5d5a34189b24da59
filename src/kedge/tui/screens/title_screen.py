"""A dialog for the title of a session."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.style import Style
from textual.widgets import Input, Static

from kedge.client.safe_text import harmless
from kedge.tui.panels.text_field import TextField
from kedge.wire.limits import TITLE_CHARS_MAX


class TitleScreen(ModalScreen[str | None]):
    """Returns the text; None if the dialog was cancelled."""

    DEFAULT_CSS = """
    TitleScreen { align: center middle; }
    TitleScreen Vertical {
        width: 70; max-width: 100%; height: auto; border: round $accent; background: $background; padding: 0 1;
    }
    TitleScreen Input { background: $surface; }
    TitleScreen #keys { color: $muted; link-style: none; link-color: $muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel", show=False)]

    def __init__(self, title: str, text: str = "") -> None:
        super().__init__()
        self._title = title
        self._text = harmless(" ".join(text.split()))

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self._title)
            yield TextField(self._text, compact=True, max_length=TITLE_CHARS_MAX)
            yield Static(
                Content.assemble(
                    ("enter: save", Style.from_meta({"@click": "screen.save"})),
                    " · ",
                    ("esc: cancel", Style.from_meta({"@click": "screen.cancel"})),
                ),
                id="keys",
                markup=False,
            )

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_save()

    def action_save(self) -> None:
        self.dismiss(self.query_one(Input).value)

    def action_cancel(self) -> None:
        self.dismiss(None)
