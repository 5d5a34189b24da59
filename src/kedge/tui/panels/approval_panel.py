"""The approval panel: full command or diff, answered with F-keys, or with plain keys while the prompt is empty.

The panel never takes the focus, so that the user can keep typing in the prompt. Its keys take effect a moment after a
new approval appears: a key meant for the previous approval must not answer the new one. Enter answers only after an
arrow has highlighted an answer: it is too easily pressed twice.
"""

from __future__ import annotations

from collections.abc import Iterator

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

#: The answers in the order of the panel: its plain keys, its F-key, the answer, and the action of the app.
_ANSWERS: tuple[tuple[tuple[str, ...], str, Answer, str], ...] = (
    (("y", "1"), "F2", "allow", "approve('allow')"),
    (("2",), "F3", "allow_session", "approve('allow_session')"),
    (("3",), "F4", "allow_always", "approve('allow_always')"),
    (("n", "4"), "F8", "deny", "deny"),
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
        #: The answer that Enter sends; None until an arrow key has chosen one.
        self._highlighted: Answer | None = None

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

    def answerable(self, action: Answer) -> m.PermissionRequest | None:
        """Return the approval that `action` would answer now, if any."""
        ask = self.approval
        if ask is None or self._is_sent or not (self._settle_timer.is_settled and self._settle_timer.is_in_view):
            return None
        return ask if action in ("allow", "deny") or ask.grant else None

    async def answer_by_key(self, key: str) -> bool:
        """Handle a plain key that was pressed in an empty prompt; return whether it was one of the panel's keys."""
        if self.answerable("allow") is None:
            return False
        if key in _STEPS:
            offered = [answer for _, _, answer, _ in _ANSWERS if self.answerable(answer)]
            if self._highlighted in offered:
                index = (offered.index(self._highlighted) + _STEPS[key]) % len(offered)
            else:
                index = 0 if _STEPS[key] > 0 else len(offered) - 1
            self._highlighted = offered[index]
            self._update_keys()
            return True
        for keys, _, answer, action in _ANSWERS:
            if key in keys or (key == "enter" and answer == self._highlighted):
                await self.app.run_action(action)
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
        ask = self.approval
        rule = visible(ask.grant, keep="") if ask else ""
        name = rule if len(rule) <= RULE_IN_KEYS_CHARS_MAX else "the rule above"
        texts: dict[Answer, str] = {"allow": "once", "deny": "deny"}
        if rule:
            texts |= {"allow_session": f"this session: {name}", "allow_always": f"always: {name}"}
        links = []
        for keys, f_key, answer, action in _ANSWERS:
            if answer in texts:
                link = Content.styled(
                    f"{keys[0]}/{f_key} {texts[answer]}", Style.from_meta({"@click": f"app.{action}"})
                )
                links.append(link.stylize("reverse") if answer == self._highlighted else link)
        self.query_one("#keys", Static).update(Content("  ").join(links) + Content(" (prompt text = reason)"))


def approval_rows(ask: m.PermissionRequest, width: int) -> Iterator[TextRow]:
    for field in approval_fields(ask):
        text = with_tilde(field.text) if field.kind == "path" else field.text
        style = "k.muted" if field.kind == "path" else "k.text"
        yield from folded(text, width, style, field.label, "k.accent" if field.kind == "command" else "k.muted")
    if len(ask.grant) > RULE_IN_KEYS_CHARS_MAX:
        yield from folded(visible(ask.grant, keep=""), width, "k.text", "rule: ")
    if diff := approval_diff(ask):
        yield from diff_rows(diff, width)
