"""The list of queued prompts, with keys to change it."""

from __future__ import annotations

from typing import ClassVar, Literal

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kedge.client.safe_text import one_line
from kedge.client.view.author_text import author_name
from kedge.tui.key_bindings import QUEUE_KEYS
from kedge.wire import models as m

QueueAction = Literal["edit", "move_up", "move_down", "make_next", "fold_in", "remove"]


class QueuePanel(OptionList):
    DEFAULT_CSS = """
    QueuePanel { height: auto; border: none; padding: 0 1; display: none; background: $background; }
    QueuePanel.some { display: block; }
    QueuePanel > .option-list--option-highlighted { background: $background; color: $foreground; text-style: none; }
    QueuePanel:focus { border: none; background: $surface; }
    QueuePanel:focus > .option-list--option-highlighted { background: $accent 30%; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(keys, f"request('{action}')", description, show=False) for keys, action, description in QUEUE_KEYS
    ]

    class Requested(Message):
        """The user requested an action on a queued Run."""

        def __init__(self, action: QueueAction, run: m.RunBody) -> None:
            super().__init__()
            self.action, self.run = action, run

    def __init__(self) -> None:
        super().__init__(id="queue", markup=False, compact=True)
        self.runs: list[m.RunBody] = []
        self._shown_lines: list[tuple[str, str]] = []

    def on_mount(self) -> None:
        self.set_screen_height(self.app.size.height)

    def set_screen_height(self, screen_lines: int) -> None:
        """Limit the height so that the rest of the screen has room; longer queues scroll."""
        self.styles.max_height = max(2, screen_lines * 3 // 20)

    def set_runs(self, runs: list[m.RunBody]) -> None:
        chosen = self._chosen()
        self.runs = runs
        lines = [(run.run_id, f" {n}. {_line(run)}") for n, run in enumerate(runs, 1)]
        if lines == self._shown_lines:
            return
        self._shown_lines = lines
        self.set_class(bool(runs), "some")
        self.clear_options()
        self.add_options([Option(line, run_id) for run_id, line in lines])
        indexes = [index for index, run in enumerate(runs) if chosen is not None and run.run_id == chosen.run_id]
        if runs:
            self.highlighted = indexes[0] if indexes else min(self.highlighted or 0, len(runs) - 1)
        elif self.has_focus:
            self.screen.focus_next()

    def _chosen(self) -> m.RunBody | None:
        index = self.highlighted
        return self.runs[index] if index is not None and index < len(self.runs) else None

    def action_request(self, action: QueueAction) -> None:
        if (run := self._chosen()) is not None:
            self.post_message(self.Requested(action, run))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_request("edit")


def _line(run: m.RunBody) -> str:
    author = f"{name}: " if (name := author_name(run.author)) else ""
    return f"{author}{'folds into the run: ' if run.folds else ''}{one_line(run.prompt, 300)}"
