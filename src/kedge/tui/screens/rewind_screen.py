"""The dialog that chooses a prompt to return to, and what is rewound."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kedge.client.safe_text import one_line
from kedge.tui.render.cell_width import cut
from kedge.wire.reversal_models import RewindScope

#: Screens with fewer lines have no margins.
LOW_LINES = 20
#: The start of a prompt; the list cuts it to the width of the screen. Characters.
PROMPT_CHARS_MAX = 300

SCOPES: tuple[tuple[RewindScope, str], ...] = (
    ("both", "conversation and files"),
    ("conversation", "conversation only; the files keep their changes"),
    ("files", "files only; the conversation stays"),
)


class RewindScreen(ModalScreen[tuple[str, RewindScope] | None]):
    """Returns the id of a message and the scope; None if the dialog was cancelled."""

    DEFAULT_CSS = """
    RewindScreen { align: center top; }
    RewindScreen Vertical {
        width: 90; max-width: 100%; height: auto; max-height: 100%; margin: 1 0 0 0;
        border: round $accent; background: $background; padding: 0 1;
    }
    RewindScreen OptionList { height: auto; background: $background; scrollbar-gutter: stable; }
    RewindScreen.low Vertical { margin: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "back", show=False)]
    AUTO_FOCUS = "OptionList"

    def __init__(self, prompts: list[tuple[str, str]]) -> None:
        """`prompts`: the ids and texts of messages, the newest first."""
        super().__init__()
        self._prompts = prompts
        #: The chosen prompt; None: it is being chosen.
        self._chosen: int | None = None

    def compose(self) -> ComposeResult:
        with Vertical():
            yield OptionList(markup=False, compact=True)

    def on_resize(self) -> None:
        is_low = self.size.height < LOW_LINES
        self.set_class(is_low, "low")
        # The rest of the screen: without the border and the margin.
        self.query_one(OptionList).styles.max_height = max(1, self.size.height - (2 if is_low else 3))
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        lines, box = self.query_one(OptionList), self.query_one(Vertical)
        index, width = lines.highlighted or 0, lines.scrollable_content_region.width
        if self._chosen is None:
            box.border_title = "Return to before a prompt"
            box.border_subtitle = "enter: choose · esc: cancel"
            texts = [one_line(text, PROMPT_CHARS_MAX) or "(attachment)" for _, text in self._prompts]
        else:
            box.border_title = f"Rewind “{one_line(self._prompts[self._chosen][1], 40)}” and what followed"
            box.border_subtitle = "enter: rewind · esc: back"
            texts = [text for _, text in SCOPES]
        lines.set_options([Option(cut(text, width)) for text in texts])
        lines.highlighted = min(index, len(texts) - 1)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if self._chosen is None:
            self._chosen = event.option_index
            self._restart(0)
        else:
            self.dismiss((self._prompts[self._chosen][0], SCOPES[event.option_index][0]))

    def action_back(self) -> None:
        if self._chosen is None:
            self.dismiss(None)
        else:
            chosen, self._chosen = self._chosen, None
            self._restart(chosen)

    def _restart(self, index: int) -> None:
        self._draw()
        self.query_one(OptionList).highlighted = index
