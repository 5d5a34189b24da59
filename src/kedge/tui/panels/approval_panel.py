"""What waits for people's leave: the whole command or diff, and keys that nobody types in prose.

The panel never takes the focus: typing goes on in the prompt. A new Ask takes its keys only after it was on the screen
for a moment, so that a key that was meant for the one before it does not answer this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.style import Style
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from kedge.client.safe_text import visible_line
from kedge.core.approvals import Answer
from kedge.core.untrusted_text import visible
from kedge.tui.panels.full_text import FullText, TextRow, diff_rows, folded, lines_for_asking
from kedge.tui.panels.status_text import StatusText
from kedge.tui.render.themes import Theme
from kedge.tui.session_commands import short
from kedge.wire import models as m

#: So long something new is on the screen before it can be answered: longer than the second press of a key that was hit
#: twice, shorter than it takes to read a line. Seconds.
SETTLE_S = 0.4
#: Of a title; what it is about follows in full. Characters.
TITLE_CHARS_MAX = 300
#: Of the name of something that was given to a tool. Characters.
NAME_CHARS_MAX = 24
#: A longer rule stands with the text, where there is room for all of it, and the keys point to it. Characters.
RULE_IN_KEYS_CHARS_MAX = 30

#: Shown in a way of their own, or the same again for other clients.
_SHOWN_APART = ("command", "shown", "cwd", "diff", "path", "is_new")


class SettleTimer:
    """Whether something has been on the screen for a moment. It is counted from when it was drawn, and not while
    another screen lies above it."""

    def __init__(self, widget: Widget, then: Callable[[], None]) -> None:
        self._widget, self._then = widget, then
        self._timer: Timer | None = None
        #: Whether there is something that is to be looked at.
        self._is_wanted = False
        self.is_over = False

    def begin(self) -> None:
        self.stop()
        self._is_wanted = True
        self._then()
        if self.is_in_view:
            self._widget.call_after_refresh(self._count)

    def stop(self) -> None:
        self._is_wanted = self.is_over = False
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    @property
    def is_in_view(self) -> bool:
        return self._widget.app.screen is self._widget.screen

    def seen_again(self) -> None:
        """Another screen was laid above it, or taken away."""
        if self._is_wanted:
            self.begin()

    def _count(self) -> None:
        if self._is_wanted and self._timer is None:
            self._timer = self._widget.set_timer(SETTLE_S, self._end)

    def _end(self) -> None:
        self.is_over = self.is_in_view
        self._then()


class AskLine(StatusText):
    """What became of an Ask that was on the screen, when it was not people here who answered it."""

    DEFAULT_CSS = """
    AskLine { height: auto; padding: 0 1; color: $warning; display: none; }
    AskLine.told { display: block; }
    """


class ApprovalPanel(Vertical):
    DEFAULT_CSS = """
    ApprovalPanel { height: auto; border: round $warning; padding: 0 1; display: none; border-title-color: $warning;
                    border-subtitle-color: $muted; }
    ApprovalPanel.asked { display: block; }
    ApprovalPanel #title { height: 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
    ApprovalPanel #keys { height: auto; color: $muted; link-color: $warning; link-style: bold;
                          link-background-hover: $panel; link-color-hover: $warning; link-style-hover: bold underline; }
    ApprovalPanel.settling #keys { link-color: $muted; link-style: dim; text-style: dim; }
    """

    def __init__(self, theme: Theme) -> None:
        super().__init__(id="approval")
        self._full_text = FullText(theme)
        self._settle_timer = SettleTimer(self, self._settled)
        #: What the keys are for right now.
        self.approval: m.PermissionRequest | None = None
        self._is_sent = False

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        yield self._full_text
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        self.app.screen_change_signal.subscribe(self, lambda _: self._settle_timer.seen_again())
        self.watch(self._full_text, "scroll_y", self._tell_place, init=False)

    def set_theme(self, theme: Theme) -> None:
        self._full_text.set_theme(theme)

    def tell(self, ask: m.PermissionRequest | None, place: str = "", *, is_sent: bool = False) -> None:
        """Show this one, or none. `place`: which of several it is, and whose."""
        before, self.approval = self.approval, ask
        was_sent, self._is_sent = self._is_sent, is_sent
        self.set_class(ask is not None, "asked")
        if ask is None:
            self._settle_timer.stop()
            return
        self.border_title = Content(f"Approval{place}")
        if before is None or before.id != ask.id:
            self.query_one("#title", Static).update(_title(ask))
            self._full_text.show(lambda width: list(_rows(ask, width)), *self._room())
            self._tell_keys()
            self._settle_timer.begin()
            self.call_after_refresh(self._tell_place)
        elif was_sent != is_sent:
            self._tell_keys()

    def answerable(self, action: Answer) -> m.PermissionRequest | None:
        """What this answer is for, if it can be given now."""
        ask = self.approval
        can = ask is not None and self._settle_timer.is_over and self._settle_timer.is_in_view and not self._is_sent
        return ask if can and (action in ("allow", "deny") or (ask and ask.grant)) else None

    def page(self, by: int) -> None:
        self._full_text.page(by)

    def on_resize(self) -> None:
        if self.approval is not None:
            self._full_text.fit(*self._room())
            self.call_after_refresh(self._tell_place)

    def _settled(self) -> None:
        self.set_class(not self._settle_timer.is_over, "settling")

    def _room(self) -> tuple[int, int]:
        """Columns and lines for what is asked about, so that the keys and the prompt stay in view."""
        return self.app.size.width - 4, lines_for_asking(self.app.size.height)

    def _tell_place(self) -> None:
        place = self._full_text.place()
        self.border_subtitle = Content(f"{place}: ctrl-up, ctrl-down") if place else None

    def _tell_keys(self) -> None:
        if self._is_sent:
            self.query_one("#keys", Static).update("your answer is on its way …")
            return
        ask = self.approval
        rule = visible(ask.grant, keep="") if ask else ""
        named = rule if len(rule) <= RULE_IN_KEYS_CHARS_MAX else "the rule above"
        keys: list[tuple[str, str]] = [("F2 once", "app.approve('allow')")]
        if rule:
            keys.append((f"F3 this session: {named}", "app.approve('allow_session')"))
            keys.append((f"F4 always: {named}", "app.approve('allow_always')"))
        keys.append(("F8 deny", "app.deny"))
        pieces = [Content.styled(words, Style.from_meta({"@click": deed})) for words, deed in keys]
        told = Content("  ").join(pieces) + Content(" (the prompt says why)")
        self.query_one("#keys", Static).update(told)


def _title(ask: m.PermissionRequest) -> str:
    title = visible_line(ask.description, TITLE_CHARS_MAX)
    says_more = title and title != f"$ {ask.params.get('command')}"
    return f"{visible_line(ask.tool_name)} needs your approval{': ' + title if says_more else ''}"


def _rows(ask: m.PermissionRequest, width: int) -> Iterator[TextRow]:
    """All there is to decide on: the whole command or the whole diff, where it happens, and what else was given."""
    params = ask.params
    command, diff = params.get("command"), params.get("diff")
    if isinstance(command, str):
        yield from folded(command, width, "k.text", "$ ", "k.accent")
    if ask.path:
        where = "in " if ask.action == "execute" else "file "
        yield from folded(visible(short(ask.path), keep=""), width, "k.muted", where)
    for name, value in params.items():
        if name not in _SHOWN_APART and value not in (None, False, "", [], {}):
            yield from folded(_text(value), width, "k.text", f"{visible_line(name, NAME_CHARS_MAX)}: ")
    if len(ask.grant) > RULE_IN_KEYS_CHARS_MAX:
        yield from folded(visible(ask.grant, keep=""), width, "k.text", "rule: ")
    if isinstance(diff, str):
        yield from diff_rows(diff, width)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
