"""The help: all keys and commands."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from kedge.tui.key_bindings import ANSWER_KEYS, KEYS, QUEUE_KEYS, SESSION_KEYS, TYPED, key_name

#: With fewer columns the groups are listed in one column.
WIDE_COLUMNS = 110
#: Width of the key column; longer names are wrapped. Columns.
KEY_COLUMNS = 18

HelpLine = tuple[str, str]


class HelpScreen(ModalScreen[None]):
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen #box {
        width: 100%; max-width: 140; height: auto; max-height: 100%;
        border: round $accent; background: $background; padding: 0 1;
    }
    HelpScreen #columns { height: auto; layout: vertical; padding: 0 1 0 0; }
    HelpScreen .wide #columns { layout: horizontal; }
    HelpScreen .column { height: auto; }
    HelpScreen .wide .column { width: 1fr; padding: 0 1 0 0; }
    HelpScreen .group { height: auto; color: $accent; text-style: bold; }
    HelpScreen .lines { height: auto; margin: 0 0 1 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1,enter", "close", "close", show=False, priority=True),
    ]
    AUTO_FOCUS = "#box"

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="box") as box:
            box.border_title = "Keys and commands"
            box.border_subtitle = "esc: close · arrows: scroll"
            with Vertical(id="columns"):
                for column in halves(groups()):
                    with Vertical(classes="column"):
                        for name, lines in column:
                            yield Static(name, classes="group", markup=False)
                            yield Static(_table(lines), classes="lines", markup=False)

    def on_resize(self) -> None:
        self.query_one("#box").set_class(self.size.width >= WIDE_COLUMNS, "wide")

    def on_click(self) -> None:
        """Close on any click: there is nothing to select."""
        self.action_close()

    def action_close(self) -> None:
        self.dismiss(None)


def groups() -> list[tuple[str, list[HelpLine]]]:
    """Return the groups of the help with their lines, in the order of the table."""
    result: dict[str, list[HelpLine]] = {"Prompt": list(TYPED)}
    for key in KEYS:
        keys = " or ".join(name for name in (key.shown, f"/{key.command}" if key.command else "") if name)
        result.setdefault(key.group, []).append((keys, key.description))
    result["Approvals"] += ANSWER_KEYS
    for name, table in (("Queue", QUEUE_KEYS), ("Session list", SESSION_KEYS)):
        result[name] = [(" or ".join(map(key_name, keys.split(","))), description) for keys, _, description in table]
    return list(result.items())


def halves(all_groups: list[tuple[str, list[HelpLine]]]) -> list[list[tuple[str, list[HelpLine]]]]:
    """Split the groups into two columns of about the same height."""
    heights = [len(lines) + 2 for _, lines in all_groups]
    at = min(range(1, len(heights)), key=lambda index: abs(sum(heights[:index]) - sum(heights[index:])))
    return [all_groups[:at], all_groups[at:]]


def _table(lines: list[HelpLine]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(width=KEY_COLUMNS, style="bold")
    table.add_column(ratio=1)
    for keys, description in lines:
        table.add_row(keys, description)
    return table
