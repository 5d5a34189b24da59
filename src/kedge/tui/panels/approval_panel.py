"""The approval panel: full command or diff, answered with F-keys, or with plain keys while the prompt is empty.

The panel never takes the focus, so that the user can keep typing in the prompt. Its keys take effect a moment after a
new approval appears: a key meant for the previous approval must not answer the new one. Enter answers only after an
arrow has highlighted an answer: it is too easily pressed twice. A rule other than the first one offered is chosen or
edited in a dialog (rule_screen.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from kedge.client.view.ask_text import approval_diff, approval_fields, approval_title
from kedge.core.approvals import Answer
from kedge.core.untrusted_text import visible
from kedge.tui.panels.full_text import FullText, TextRow, ask_lines_max, diff_rows, folded
from kedge.tui.panels.settle_timer import SettleTimer
from kedge.tui.render.cell_width import with_tilde
from kedge.tui.render.themes import Theme
from kedge.wire import models as m

#: A longer rule is shown with the text, where there is room for all of it, and the keys refer to it. Characters.
RULE_IN_KEYS_CHARS_MAX = 30

#: An answer, or the dialog in which the user chooses a rule.
Choice = Answer | Literal["rule"]


class PanelKey(NamedTuple):
    plain_keys: tuple[str, ...]
    f_key: str
    choice: Choice
    #: The action of the app.
    action: str


#: In the order of the panel.
_KEYS = (
    PanelKey(("y", "1"), "F2", "allow", "approve('allow')"),
    PanelKey(("2",), "F3", "allow_session", "approve('allow_session')"),
    PanelKey(("3",), "F4", "allow_always", "approve('allow_always')"),
    PanelKey(("e",), "F5", "rule", "choose_rule"),
    PanelKey(("n", "4"), "F8", "deny", "deny"),
)
_STEPS = {"up": -1, "left": -1, "down": 1, "right": 1}


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
        self._settle_timer = SettleTimer(self, self._update_settled)
        #: The approval that the keys answer.
        self.approval: m.PermissionRequest | None = None
        self._is_sent = False
        #: What Enter does; None until an arrow key has chosen it.
        self._highlighted: Choice | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        yield self._full_text
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        self.app.screen_change_signal.subscribe(self, lambda _: self._settle_timer.on_screen_change())
        self.watch(self._full_text, "scroll_y", self._update_range, init=False)

    def set_theme(self, theme: Theme) -> None:
        self._full_text.set_theme(theme)

    def show_ask(self, ask: m.PermissionRequest | None, origin: str = "", *, is_sent: bool = False) -> None:
        """Show an approval, or none. `origin`: its number among several, and its session."""
        previous, self.approval = self.approval, ask
        was_sent, self._is_sent = self._is_sent, is_sent
        self.set_class(ask is not None, "asked")
        if ask is None:
            self._settle_timer.stop()
            return
        self.border_title = Content(f"Approval{origin}")
        if previous is None or previous.id != ask.id:
            self.query_one("#title", Static).update(approval_title(ask))
            self._full_text.show(lambda width: list(approval_rows(ask, width)), *self._space())
            self._highlighted = None
            self._update_keys()
            self._settle_timer.start()
            self.call_after_refresh(self._update_range)
        elif was_sent != is_sent:
            self._update_keys()

    def answerable(self, choice: Choice) -> m.PermissionRequest | None:
        """Return the approval that `choice` would apply to now, if any."""
        ask = self.approval
        if ask is None or self._is_sent or not (self._settle_timer.is_settled and self._settle_timer.is_in_view):
            return None
        if choice in ("allow", "deny"):
            return ask
        return ask if (ask.offers if choice == "rule" else ask.grant) else None

    async def answer_by_key(self, key: str) -> bool:
        """Handle a plain key that was pressed in an empty prompt; return whether it was one of the panel's keys."""
        if self.answerable("allow") is None:
            return False
        if key in _STEPS:
            offered = [one.choice for one in _KEYS if self.answerable(one.choice)]
            if self._highlighted in offered:
                index = (offered.index(self._highlighted) + _STEPS[key]) % len(offered)
            else:
                index = 0 if _STEPS[key] > 0 else len(offered) - 1
            self._highlighted = offered[index]
            self._update_keys()
            return True
        for one in _KEYS:
            if one.choice == "rule" and not self.answerable("rule"):
                continue  # its letter is text then
            if key in one.plain_keys or (key == "enter" and one.choice == self._highlighted):
                await self.app.run_action(one.action)
                return True
        return False

    def page(self, by: int) -> None:
        self._full_text.page(by)

    def on_resize(self) -> None:
        if self.approval is not None:
            self._full_text.fit(*self._space())
            self.call_after_refresh(self._update_range)

    def _update_settled(self) -> None:
        self.set_class(not self._settle_timer.is_settled, "settling")

    def _space(self) -> tuple[int, int]:
        """Return columns and lines for the text, so that the keys and the prompt stay visible."""
        return self.app.size.width - 4, ask_lines_max(self.app.size.height)

    def _update_range(self) -> None:
        lines = self._full_text.visible_range()
        self.border_subtitle = Content(f"{lines}: ctrl-up, ctrl-down") if lines else None

    def _update_keys(self) -> None:
        if self._is_sent:
            self.query_one("#keys", Static).update("sending your answer …")
            return
        texts = choice_texts(self.approval) if self.approval else {}
        links = []
        for one in _KEYS:
            if one.choice in texts:
                text = f"{one.plain_keys[0]}/{one.f_key} {texts[one.choice]}"
                link = Content.styled(text, Style.from_meta({"@click": f"app.{one.action}"}))
                links.append(link.stylize("reverse") if one.choice == self._highlighted else link)
        self.query_one("#keys", Static).update(Content("  ").join(links) + Content(" (prompt text = reason)"))


def choice_texts(ask: m.PermissionRequest) -> dict[Choice, str]:
    """Return the texts of the available choices. Long rules are shown above the keys (`approval_rows`)."""
    texts: dict[Choice, str] = {"allow": "once", "deny": "deny"}
    if rule := visible(ask.grant, keep=""):
        name = rule if len(rule) <= RULE_IN_KEYS_CHARS_MAX else "the rule above"
        texts |= {"allow_session": f"this session: {name}", "allow_always": f"always: {name}"}
    if wider := wider_rules(ask):
        texts["rule"] = "other rule" + (f": {wider}" if len(wider) <= RULE_IN_KEYS_CHARS_MAX else "")
    elif ask.offers:
        texts["rule"] = "edit the rule"
    return texts


def wider_rules(ask: m.PermissionRequest) -> str:
    """Return the widest offer as one line; empty if F3 and F4 grant the only one."""
    return visible(", ".join(ask.offers[-1]), keep="") if len(ask.offers) > bool(ask.grant) else ""


def approval_rows(ask: m.PermissionRequest, width: int) -> Iterator[TextRow]:
    yield from call_rows(ask, width)
    if len(ask.grant) > RULE_IN_KEYS_CHARS_MAX:
        yield from folded(visible(ask.grant, keep=""), width, "k.text", "rule: ")
    if len(wider := wider_rules(ask)) > RULE_IN_KEYS_CHARS_MAX:
        yield from folded(wider, width, "k.text", "other rule: ")
    if diff := approval_diff(ask):
        yield from diff_rows(diff, width)


def call_rows(ask: m.PermissionRequest, width: int) -> Iterator[TextRow]:
    """Yield the fields of the call: the command, where it runs, other parameters."""
    for field in approval_fields(ask):
        text = with_tilde(field.text) if field.kind == "path" else field.text
        style = "k.muted" if field.kind == "path" else "k.text"
        yield from folded(text, width, style, field.label, "k.accent" if field.kind == "command" else "k.muted")
