"""The command palette."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from kedge.tui.key_bindings import KeyCommand, key_name
from kedge.tui.panels.text_field import TextField

#: Screens with fewer lines have no margins: 24 lines then show all commands.
LOW_LINES = 25
#: Longer names do not widen the first column. Cells.
NAME_CELLS_MAX = 24


class PaletteScreen(ModalScreen[KeyCommand | None]):
    """Returns the chosen command. The field keeps the focus; the arrow keys move in the list."""

    DEFAULT_CSS = """
    PaletteScreen { align: center top; }
    PaletteScreen Vertical {
        width: 90; max-width: 100%; height: auto; max-height: 100%; margin: 1 0 0 0;
        border: round $accent; background: $background; padding: 0 1;
    }
    PaletteScreen Input { background: $surface; margin: 0 0 1 0; }
    PaletteScreen OptionList { height: auto; background: $background; scrollbar-gutter: stable; }
    PaletteScreen.low Vertical { margin: 0; }
    PaletteScreen.low Input { margin: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", show=False),
        *[Binding(key, f"move('{key}')", show=False, priority=True) for key in ("up", "down")],
    ]
    AUTO_FOCUS = "Input"

    def __init__(self, commands: list[KeyCommand]) -> None:
        super().__init__()
        self._commands = commands
        self._matches: list[KeyCommand] = []

    def add(self, commands: list[KeyCommand]) -> None:
        """Add commands that the server has sent meanwhile."""
        self._commands = [*self._commands, *commands]
        if self.is_mounted and commands:
            self._draw()

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Commands"
            box.border_subtitle = "enter: run · esc: close"
            yield TextField(placeholder="search", compact=True)
            listed = OptionList(markup=False, compact=True)
            listed.can_focus = False
            yield listed

    def on_resize(self) -> None:
        is_low = self.size.height < LOW_LINES
        self.set_class(is_low, "low")
        # The rest of the screen: without the border, the field and the margins.
        self.query_one(OptionList).styles.max_height = max(1, self.size.height - (3 if is_low else 5))
        self.call_after_refresh(self._draw)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._draw()
        self.query_one(OptionList).highlighted = 0 if self._matches else None

    def _draw(self) -> None:
        listed = self.query_one(OptionList)
        index, width = listed.highlighted or 0, listed.scrollable_content_region.width
        self._matches = matching(self._commands, self.query_one(Input).value)
        names = min(NAME_CELLS_MAX, max(len(key.command) for key in self._commands))
        listed.set_options([Option(_line(key, names, width)) for key in self._matches])
        listed.highlighted = min(index, len(self._matches) - 1) if self._matches else None

    def action_move(self, key: str) -> None:
        listed = self.query_one(OptionList)
        {"up": listed.action_cursor_up, "down": listed.action_cursor_down}[key]()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one(OptionList).action_select()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._matches[event.option_index])

    def action_close(self) -> None:
        self.dismiss(None)


def _line(key: KeyCommand, names: int, width: int) -> Content:
    shown = key.shown or key_name(key.related_key)
    room = max(1, width - max(names, cell_len(key.command)) - 2 - (cell_len(shown) + 2 if shown else 0))
    description = Content(key.description).truncate(room, ellipsis=True, pad=True)
    shown = f"  {shown}" if shown else ""
    return Content.assemble((f"{key.command.ljust(names)}  ", "bold"), description, shown)


def matching(commands: list[KeyCommand], typed: str) -> list[KeyCommand]:
    """Return the matching commands, the best match first: the name, its start, a part of it, description."""
    letters = "".join(typed.casefold().split()).removeprefix("/")
    ranked = [(rank, key) for key in commands if (rank := _rank(key, letters)) is not None]
    return [key for _, key in sorted(ranked, key=lambda match: match[0])]


def _rank(key: KeyCommand, letters: str) -> int | None:
    """Return a sort key, lower for a better match; None: no match."""
    name, description = key.command.casefold().removeprefix("/"), "".join(key.description.casefold().split())
    tests = (
        name == letters,
        name.startswith(letters),
        letters in name,
        letters in description,
        _contains(letters, name),
        _contains(letters, description),
    )
    return next((rank for rank, holds in enumerate(tests) if holds), None)


def _contains(letters: str, text: str) -> bool:
    """Return whether the text contains all letters in this order."""
    rest = iter(text)
    return all(letter in rest for letter in letters)
