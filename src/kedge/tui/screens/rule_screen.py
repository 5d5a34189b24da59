"""The dialog that chooses or edits the rules that an approval of a command stores.

The text is edited with one rule per line. Up in its first line and Down in its last line show the other offers, as they
show earlier prompts in the prompt; each offer keeps its changes. The server checks the rules: a refusal is shown, and
the text stays.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.style import Style
from textual.widgets import OptionList, Static, TextArea
from textual.widgets.option_list import Option

from kedge.client.safe_text import harmless, one_line
from kedge.core.approvals import RULE_CHARS_MAX, Answer
from kedge.core.untrusted_text import visible
from kedge.errors import KedgeError
from kedge.tui.panels.approval_panel import call_rows
from kedge.tui.panels.full_text import FullText
from kedge.tui.panels.prompt_panel import NEW_LINE_KEYS
from kedge.tui.render.themes import Theme
from kedge.wire import models as m

#: Other lines of the dialog, at most: margin, frame, offers, text, scope and refusal; on a low screen, and on others.
#: Lines.
OTHER_LINES_LOW, OTHER_LINES = 14, 22
#: Lines of the command; longer ones scroll. The approval panel has shown them all. Lines.
COMMAND_LINES_MAX = 8
#: Width of the dialog. Columns.
COLUMNS_MAX = 100
#: Screens with fewer lines have no margin and no blank lines.
LOW_LINES = 24

_SCOPES: tuple[tuple[Answer, str], ...] = (("allow_session", "this session"), ("allow_always", "always"))


class RuleText(TextArea):
    """The rules, one per line."""

    class Stored(Message):
        """Enter was pressed."""

    class Stepped(Message):
        """The user requested the previous offer (-1) or the next one (1)."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    def __init__(self) -> None:
        super().__init__(soft_wrap=True, tab_behavior="focus", show_line_numbers=False, highlight_cursor_line=False)
        self.cursor_blink = False  # an idle screen is not redrawn

    def on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            self.post_message(self.Stored())
        elif event.key in NEW_LINE_KEYS:
            self.replace("\n", *self.selection, maintain_selection_offset=False)
        elif event.key == "up" and self.navigator.is_first_wrapped_line(self.cursor_location):
            self.post_message(self.Stepped(-1))
        elif event.key == "down" and self.navigator.is_last_wrapped_line(self.cursor_location):
            self.post_message(self.Stepped(1))
        else:
            return
        event.stop()
        event.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.replace(harmless(event.text[:RULE_CHARS_MAX]), *self.selection, maintain_selection_offset=False)


class RuleScreen(ModalScreen[None]):
    DEFAULT_CSS = f"""
    RuleScreen {{ align: center top; }}
    RuleScreen > Vertical {{
        width: {COLUMNS_MAX}; max-width: 100%; height: auto; max-height: 100%; margin: 1 0 0 0;
        border: round $warning; border-title-color: $warning; background: $background; padding: 0 1;
    }}
    RuleScreen .label {{ color: $muted; height: 1; margin: 1 0 0 0; }}
    RuleScreen OptionList {{ height: auto; max-height: 5; background: $background; }}
    RuleScreen RuleText {{ height: auto; max-height: 5; border: none; padding: 0; background: $surface; }}
    RuleScreen RuleText:focus {{ border: none; }}
    RuleScreen #scope {{ height: 1; margin: 1 0 0 0; link-style: none; link-color: $foreground; }}
    RuleScreen #note {{ height: auto; max-height: 3; color: $error; display: none; }}
    RuleScreen #note.has-text {{ display: block; }}
    RuleScreen.low > Vertical {{ margin: 0; }}
    RuleScreen.low .label {{ margin: 0; }}
    RuleScreen.low #scope {{ margin: 0; }}
    RuleScreen.low OptionList {{ max-height: 3; }}
    RuleScreen.low RuleText {{ max-height: 3; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "back to the approval", show=False),
        Binding("tab,shift+tab", "next_scope", "this session or always", show=False, priority=True),
        Binding("ctrl+up,alt+pageup", "page(-1)", "scroll up in the command", show=False, priority=True),
        Binding("ctrl+down,alt+pagedown", "page(1)", "scroll down in the command", show=False, priority=True),
    ]
    AUTO_FOCUS = "RuleText"

    def __init__(
        self,
        ask: m.PermissionRequest,
        theme: Theme,
        send: Callable[[Answer, Sequence[str]], Coroutine[Any, Any, None]],
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`send` sends the answer; it raises KedgeError if the server refuses it."""
        super().__init__()
        self.ask = ask
        self._send, self._start = send, start
        self._full_text = FullText(theme)
        #: The text of each offer, with the changes of the user.
        self._texts = ["\n".join(offer) for offer in ask.offers]
        #: At first the widest offer: the keys of the panel grant the narrowest.
        self._index = len(ask.offers) - 1
        self._scope = 0
        self._is_sending = False

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Allow with a rule"
            box.border_subtitle = "enter: allow · tab: scope · arrows: offers · esc: back"
            yield self._full_text
            yield Static("offered rules", classes="label", markup=False)
            offers = OptionList(*map(_option, self.ask.offers), markup=False, compact=True)
            offers.can_focus = False
            yield offers
            yield Static("rule to store; you can edit it", classes="label", markup=False)
            yield RuleText()
            yield Static(id="scope", markup=False)
            yield Static(id="note", markup=False)

    def on_mount(self) -> None:
        self._full_text.show(lambda width: list(call_rows(self.ask, width)), *self._space())
        self._show_text()
        self._draw_scope()

    def on_resize(self) -> None:
        self.set_class(self.size.height < LOW_LINES, "low")
        self._full_text.fit(*self._space())

    def _space(self) -> tuple[int, int]:
        width, height = self.app.size
        others = OTHER_LINES_LOW if height < LOW_LINES else OTHER_LINES
        return min(COLUMNS_MAX, width) - 4, max(1, min(COMMAND_LINES_MAX, height - others))

    # --- offers and scope -------------------------------------------------------------------------------------------

    def _show_offer(self, index: int) -> None:
        self._texts[self._index] = self.query_one(RuleText).text
        self._index = index
        self._show_text()

    def _show_text(self) -> None:
        self.query_one(OptionList).highlighted = self._index
        text = self.query_one(RuleText)
        text.text = self._texts[self._index]
        text.move_cursor(text.document.end)

    def on_rule_text_stepped(self, event: RuleText.Stepped) -> None:
        event.stop()
        self._show_offer((self._index + event.by) % len(self._texts))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._show_offer(event.option_index)

    def action_next_scope(self) -> None:
        self.action_set_scope((self._scope + 1) % len(_SCOPES))

    def action_set_scope(self, scope: int) -> None:
        self._scope = scope
        self._draw_scope()

    def _draw_scope(self) -> None:
        marks = [
            Content.styled(
                f"{'●' if index == self._scope else '○'} {text}",
                Style.from_meta({"@click": f"screen.set_scope({index})"}),
            )
            for index, (_, text) in enumerate(_SCOPES)
        ]
        self.query_one("#scope", Static).update(Content("   ").join(marks))

    def action_page(self, by: int) -> None:
        self._full_text.page(by)

    # --- the answer -------------------------------------------------------------------------------------------------

    def on_rule_text_stored(self, event: RuleText.Stored) -> None:
        event.stop()
        if not self._is_sending:
            rules = [line.strip() for line in self.query_one(RuleText).text.split("\n") if line.strip()]
            if rules:
                self._start(self._store(_SCOPES[self._scope][0], rules))
            else:
                self._note("Write a rule, or press up or down for an offered one.")

    async def _store(self, action: Answer, rules: list[str]) -> None:
        self._is_sending = True
        self._note("")
        try:
            await self._send(action, rules)
        except KedgeError as error:
            if not self.is_current:
                raise
            self._note(one_line(error.message, 500))
        else:
            if self.is_current:
                self.dismiss(None)
        finally:
            self._is_sending = False

    def _note(self, text: str) -> None:
        note = self.query_one("#note", Static)
        note.set_class(bool(text), "has-text")
        note.update(text)

    def action_close(self) -> None:
        self.dismiss(None)


def _option(offer: list[str]) -> Option:
    """Return the rules of an offer, one per line; the lines after the first are indented."""
    return Option("\n  ".join(visible(rule, keep="") for rule in offer))
