"""What waits for people's leave: the whole command or diff, and keys that nobody types in prose."""

from __future__ import annotations

from rich.text import Text
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from kedge.core.shown import shown
from kedge.tui.diff import diff_lines
from kedge.tui.looks import Look
from kedge.tui.model import Ask
from kedge.tui.pen import Pen
from kedge.wire import models as m


class ApprovalPanel(Vertical):
    DEFAULT_CSS = """
    ApprovalPanel { height: auto; max-height: 60%; border: round $warning; padding: 0 1; display: none; }
    ApprovalPanel.asked { display: block; }
    ApprovalPanel #what { height: auto; max-height: 18; }
    ApprovalPanel #title { height: auto; text-style: bold; }
    ApprovalPanel #keys { height: auto; color: $warning; }
    """

    def __init__(self, look: Look) -> None:
        super().__init__(id="approval")
        self._look = look
        #: What the keys are for right now.
        self.approval: m.PermissionRequest | None = None

    def compose(self):  # type: ignore[no-untyped-def]
        yield Static(id="title", markup=False)
        with VerticalScroll(id="what", can_focus=False):
            yield Static(id="body", markup=False)
        yield Static(id="keys", markup=False)

    def take_look(self, look: Look) -> None:
        self._look = look
        self.approval = None

    def tell(self, asks: list[Ask], session_id: str) -> None:
        approvals = [ask for ask in asks if isinstance(ask, m.PermissionRequest)]
        mine = [ask for ask in approvals if ask.session_id == session_id]
        first = next(iter(mine or approvals), None)
        self.set_class(first is not None, "asked")
        if first is not None and (self.approval is None or self.approval.id != first.id):
            self.query_one("#body", Static).update(self._body(first))
            self.query_one("#what").scroll_home(animate=False)
        self.approval = first
        if first is not None:
            more = f" · {len(approvals) - 1} more waiting" if len(approvals) > 1 else ""
            elsewhere = "" if first.session_id == session_id else " (another session)"
            title = f"{first.tool_name} wants to: {shown(first.description)}{elsewhere}{more}"
            self.query_one("#title", Static).update(title)
            rule = shown(first.grant, keep="")
            standing = f" · f3 this session: {rule} · f4 always: {rule}" if rule else ""
            self.query_one("#keys", Static).update(f"f2 allow once{standing} · f8 deny, with the prompt as the reason")

    def _body(self, ask: m.PermissionRequest) -> Text:
        pen, width = Pen(self._look), max(20, self.app.size.width - 4)
        text = Text()
        for name, value in ask.params.items():
            if name == "diff":
                for strip in diff_lines(shown(str(value)), pen, width):
                    for segment in strip:
                        text.append(segment.text, segment.style)
                    text.append("\n")
            elif isinstance(value, str):
                text.append(f"{name}: " if name != "command" else "$ ", pen.style("k.muted"))
                text.append(shown(value) + "\n")
            elif value not in (None, False, [], {}):
                text.append(f"{name}: {shown(str(value), keep='')}\n", pen.style("k.muted"))
        text.rstrip()
        return text
