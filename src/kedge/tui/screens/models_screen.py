"""The dialog that chooses a model, with limits and prices, and its effort."""

from __future__ import annotations

from typing import ClassVar

from msgspec import UnsetType
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from kedge.client.safe_text import one_line, visible_line
from kedge.client.view.number_text import token_count
from kedge.core.records import EFFORTS, Effort
from kedge.errors import KedgeError
from kedge.tui.connection import ServerConnection
from kedge.tui.panels.text_field import TextField
from kedge.tui.render.cell_width import padded
from kedge.wire import models as m
from kedge.wire.limits import MODEL_CHARS_MAX

#: Columns after the name: context tokens, dollars in, dollars out, images. Cells.
NUMBER_CELLS = (7, 7, 7, 4)
#: The mark before a name and a space. Cells.
MARK_CELLS = 2
#: Height of the list; longer ones scroll. Lines.
LIST_LINES_MAX = 20

NO_PROVIDER = (
    "No provider is configured. kedge/offline is built in and works without a network, but is not a language model.\n"
    "To add a provider, set OPENAI_API_KEY or ANTHROPIC_API_KEY for the server, or add it to config.toml. "
    "`kedge config path` prints the path of the file."
)


class ModelsScreen(ModalScreen[tuple[str, Effort] | None]):
    """Returns the name of a model, empty for the configured default, and the effort. None: the dialog was cancelled."""

    DEFAULT_CSS = f"""
    ModelsScreen {{ align: center top; }}
    ModelsScreen > Vertical {{
        width: 90; max-width: 100%; height: auto; max-height: 100%; margin: 1 0 0 0;
        border: round $accent; background: $background; padding: 0 1;
    }}
    ModelsScreen Input {{ background: $surface; }}
    ModelsScreen OptionList {{ height: auto; max-height: {LIST_LINES_MAX}; background: $background; }}
    ModelsScreen .head {{ color: $muted; height: 1; }}
    ModelsScreen .note {{ color: $muted; height: auto; display: none; }}
    ModelsScreen .note.has-text {{ display: block; margin: 1 0 0 0; }}
    ModelsScreen.low > Vertical {{ margin: 0; }}
    ModelsScreen.low OptionList {{ max-height: 6; }}
    ModelsScreen.low .note.has-text {{ margin: 0; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel", show=False),
        Binding("tab", "change_effort(1)", show=False, priority=True),
        Binding("shift+tab", "change_effort(-1)", show=False, priority=True),
        *[Binding(key, f"move('{key}')", show=False, priority=True) for key in ("up", "down", "pageup", "pagedown")],
    ]
    AUTO_FOCUS = "Input"

    def __init__(self, connection: ServerConnection, current: str, effort: Effort) -> None:
        super().__init__()
        self._connection, self._current, self._effort = connection, current, effort
        self._models: list[m.ModelBody] = []
        #: The model names of the lines.
        self._offered: list[str] = []

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            box.border_subtitle = "enter: choose · tab: effort · esc: cancel"
            yield TextField(placeholder="search", max_length=MODEL_CHARS_MAX, compact=True)
            yield Static(classes="head", markup=False)
            lines = OptionList(markup=False, compact=True)
            lines.can_focus = False
            yield lines
            yield Static(classes="note", markup=False)

    @property
    def _title(self) -> str:
        return f"Model of this session · effort: {self._effort or 'default'}"

    def on_mount(self) -> None:
        self.run_worker(self._load())

    async def _load(self) -> None:
        try:
            self._models = await self._connection.retry(lambda: self._connection.client.models(self._connection.id))
        except KedgeError as error:
            self._note(f"Cannot load the models: {one_line(error.message, 300)}")
            return
        self._note(NO_PROVIDER if all(model.description for model in self._models) else "")
        self._offer()

    def _note(self, text: str) -> None:
        note = self.query_one(".note", Static)
        note.set_class(bool(text), "has-text")
        note.update(text)

    def on_resize(self) -> None:
        self.set_class(self.size.height < 20, "low")
        self.call_after_refresh(self._offer)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._offer()

    def _offer(self) -> None:
        """Update the lines. The highlighted model stays highlighted; at first it is the current one."""
        if not self._models:
            return
        chosen = self._chosen() if self._offered else self._current
        offered = offers(self._models, self._current, self.query_one(Input).value)
        width = self.query_one(OptionList).scrollable_content_region.width
        name_cells = max(10, width - sum(NUMBER_CELLS) - MARK_CELLS - 1)
        self.query_one(".head", Static).update(_row("", "model", ("context", "$ in", "$ out", "img"), name_cells))
        known = {model.model: model for model in self._models}
        self._offered = list(offered)
        lines = self.query_one(OptionList)
        lines.set_options(
            [
                Option(_row("●" if name == self._current else "", text, _numbers(known.get(name)), name_cells))
                for name, text in offered.items()
            ]
        )
        if self._offered:
            lines.highlighted = self._offered.index(chosen) if chosen in offered else 0

    def _chosen(self) -> str | None:
        index = self.query_one(OptionList).highlighted
        return self._offered[index] if index is not None and index < len(self._offered) else None

    def action_change_effort(self, steps: int) -> None:
        self._effort = EFFORTS[(EFFORTS.index(self._effort) + steps) % len(EFFORTS)]
        self.query_one(Vertical).border_title = self._title

    def action_move(self, key: str) -> None:
        lines = self.query_one(OptionList)
        match key:
            case "up":
                lines.action_cursor_up()
            case "down":
                lines.action_cursor_down()
            case "pageup":
                lines.highlighted = max(0, (lines.highlighted or 0) - lines.size.height)
            case _:
                lines.highlighted = min(lines.option_count - 1, (lines.highlighted or 0) + lines.size.height)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if (name := self._chosen()) is not None:
            self.dismiss((name, self._effort))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss((self._offered[event.option_index], self._effort))

    def action_cancel(self) -> None:
        self.dismiss(None)


def offers(models: list[m.ModelBody], current: str, typed: str) -> dict[str, str]:
    """Return names and line texts of the models that contain all typed words, the configured default first.

    If none does, a typed name can be used as it is."""
    default = next((model.model for model in models if model.is_default), "")
    texts = {"": f"(configured default) {visible_line(default, 200)}".rstrip()}
    if current and current not in {model.model for model in models}:
        texts[current] = visible_line(current, 200)
    for model in models:
        note = model.description or ("for titles" if model.is_small and not model.is_default else "")
        texts[model.model] = f"{visible_line(model.model, 200)}  {one_line(note, 100)}".rstrip()
    words = typed.casefold().split()
    matches = {name: text for name, text in texts.items() if all(word in text.casefold() for word in words)}
    if not matches and "/" in typed.strip("/ "):
        name = typed.strip()
        return {name: f"use {visible_line(name, 200)} (not in the list)"}
    return matches


def _row(mark: str, name: str, numbers: tuple[str, ...], name_cells: int) -> str:
    if not numbers:
        return f"{padded(mark, MARK_CELLS)}{padded(name, name_cells + sum(NUMBER_CELLS))}"
    columns = "".join(number.rjust(cells) for number, cells in zip(numbers, NUMBER_CELLS, strict=True))
    return f"{padded(mark, MARK_CELLS)}{padded(name, name_cells)}{columns}"


def _numbers(model: m.ModelBody | None) -> tuple[str, ...]:
    """Return context, prices and image support; empty for models without them, whose names may be longer."""
    if model is None or model.description:
        return ()
    return (
        _tokens(model.context_window),
        _usd(model.input_price),
        _usd(model.output_price),
        "-" if isinstance(model.images, UnsetType) else "yes" if model.images else "no",
    )


def _tokens(count: int | UnsetType) -> str:
    return "-" if isinstance(count, UnsetType) else token_count(count)


def _usd(price: float | UnsetType) -> str:
    if isinstance(price, UnsetType):
        return "-"
    return f"{price:.2f}" if price >= 0.1 or price == 0 else f"{price:.3g}"
