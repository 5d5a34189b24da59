"""Pending approvals and questions: one at a time is shown, and the user's answers are sent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from kedge.client.safe_text import one_line, visible_line
from kedge.client.view.ask_text import CLIENT_ID_CHARS, answer_label
from kedge.client.view.author_text import by_author
from kedge.client.view.conversation import Ask
from kedge.client.view.workspace_view import ClosedAsk, WorkspaceView
from kedge.core.approvals import BY_RULE, Answer
from kedge.errors import KedgeError
from kedge.tui.notice import send_notice
from kedge.tui.panels.approval_panel import ApprovalPanel
from kedge.tui.panels.prompt_panel import PromptPanel
from kedge.tui.panels.question_panel import QuestionPanel
from kedge.tui.panels.status_text import AskResult
from kedge.tui.render.themes import THEMES
from kedge.tui.screens.rule_screen import RuleScreen
from kedge.wire import models as m

if TYPE_CHECKING:
    from kedge.tui.app import KedgeApp

#: Of a session title in the title of a panel. Characters.
ORIGIN_TITLE_CHARS_MAX = 40
#: Nested agents: more than the server allows. Items.
AGENT_DEPTH_MAX = 16


class PendingAsks:
    def __init__(self, app: KedgeApp) -> None:
        self._app = app
        #: The Ask on the screen, and the session that was shown when it appeared.
        self._shown: Ask | None = None
        self._shown_in = ""
        #: The result of the last Ask, the session shown at that time, and the active Run of that session.
        self._result = ("", "", "")
        #: Asks whose answers are being sent or were sent. Their results arrive as events.
        self._sent: set[str] = set()

    # --- display ----------------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Update the panels. The Ask on the screen stays until it is closed, whatever else arrives."""
        app, previous = self._app, self._shown
        asks = in_order(app.view, app.session_id)
        current = next((ask for ask in asks if previous is not None and ask.id == previous.id), None)
        if previous is not None and current is None:
            self._record_result(previous, asks)
        self._close_dialog(asks)
        self._shown = current if current is not None and self._shown_in == app.session_id else next(iter(asks), None)
        self._shown_in = app.session_id
        self._sent &= {ask.id for ask in asks}
        ask, origin = self._shown, self._origin(asks)
        is_sent = ask is not None and ask.id in self._sent
        approval = ask if isinstance(ask, m.PermissionRequest) else None
        question = ask if isinstance(ask, m.QuestionBatch) else None
        app.part(ApprovalPanel).show_ask(approval, origin, is_sent=is_sent)
        app.part(QuestionPanel).show_ask(question, origin, is_sent=is_sent)
        app.part(AskResult).set_text(visible_line(self._result_text()))

    def _origin(self, asks: list[Ask]) -> str:
        ask, view, session_id = self._shown, self._app.view, self._app.session_id
        if ask is None:
            return ""
        number = f" · 1 of {len(asks)}" if len(asks) > 1 else ""
        if ask.session_id == session_id:
            return number
        if is_for(view, ask, session_id):
            return f"{number} · an agent of this session"
        session = view.session(ask.session_id)
        title = visible_line(session.title, ORIGIN_TITLE_CHARS_MAX) if session else ""
        return f"{number} · another session{': ' + title if title else ''}"

    def _record_result(self, ask: Ask, asks: list[Ask]) -> None:
        """Record the result, unless this user answered the Ask or the same call asks again."""
        closed = self._app.view.closed_asks.get(ask.id)
        is_repeated = any(other.tool_call_id == ask.tool_call_id for other in asks)
        if closed is not None and closed.by != self._app.connection.client.client_id and not is_repeated:
            active = self._app.view.active(self._shown_in)
            self._result = (closed_text(ask, closed), self._shown_in, active.run_id if active else "")

    def _close_dialog(self, asks: list[Ask]) -> None:
        """Close the dialog of an approval that is no longer pending, and report why, unless this user answered it."""
        app, screen = self._app, self._app.screen
        if not isinstance(screen, RuleScreen) or any(ask.id == screen.ask.id for ask in asks):
            return
        screen.dismiss(None)
        closed = app.view.closed_asks.get(screen.ask.id)
        if any(ask.tool_call_id == screen.ask.tool_call_id for ask in asks):
            app.report("this call has changed and asks again", "warning")
        elif closed is None:
            app.report("this approval is no longer pending", "warning")
        elif closed.by != app.connection.client.client_id:
            app.report(closed_text(screen.ask, closed), "warning")

    def _result_text(self) -> str:
        """Return the last result until another Ask appears, another Run starts, or another session is shown."""
        text, session_id, run_id = self._result
        active = self._app.view.active(self._app.session_id)
        is_past = self._shown is not None or session_id != self._app.session_id or (active and active.run_id != run_id)
        if is_past:
            self._result = ("", "", "")
        return "" if is_past else text

    def on_asked(self, ask: Ask) -> None:
        if is_for(self._app.view, ask, self._app.session_id):
            text = f"{ask.tool_name} needs your approval" if isinstance(ask, m.PermissionRequest) else "a question"
            send_notice(self._app, text)
        else:
            self._app.report("another session needs your answer", "warning")

    def on_ended(self, ended: m.RunComplete) -> None:
        app = self._app
        session = app.view.session(ended.session_id)
        title = one_line(session.title, 60) if session else ""
        if ended.session_id == app.session_id:
            send_notice(app, f"{ended.outcome}: {title}" if title else ended.outcome)
        elif session is not None and not app.view.is_child(session.id):
            app.report(f"{title or 'another session'}: {ended.outcome}")

    # --- answers ----------------------------------------------------------------------------------------------------

    def approve(self, action: Answer) -> None:
        panel = self._app.part(ApprovalPanel)
        if ask := panel.answerable(action):
            self._app.start(self._answer(ask.id, "", action))
        elif panel.answerable("allow"):
            self._app.report("this can only be allowed once", "warning")

    def choose_rule(self) -> None:
        panel = self._app.part(ApprovalPanel)
        if ask := panel.answerable("rule"):
            self._app.push_screen(
                RuleScreen(ask, THEMES[self._app.theme_name], partial(self._answer, ask.id, ""), self._app.start)
            )
        elif ask := panel.answerable("allow"):
            text = "this rule cannot be changed" if ask.grant else "this can only be allowed once"
            self._app.report(text, "warning")

    def deny(self) -> None:
        if ask := self._app.part(ApprovalPanel).answerable("deny"):
            reason = self._app.part(PromptPanel).put_away().strip()
            self._app.start(self._answer(ask.id, reason, "deny"))

    async def _answer(self, ask_id: str, reason: str, action: Answer, rules: Sequence[str] = ()) -> None:
        """Send an answer. A reason that did not reach the model goes back to the prompt."""
        self._sent.add(ask_id)
        self.draw()
        try:
            is_used = await self._app.actions.answer(ask_id, action, reason, rules)
        except KedgeError:
            self._sent.discard(ask_id)
            self.draw()
            self._app.part(PromptPanel).put_back([reason] if reason else [])
            raise
        if reason and not is_used:
            self._app.part(PromptPanel).put_back([reason])

    async def answer_questions(self, batch_id: str, responses: list[m.QuestionResponse] | None) -> None:
        self._sent.add(batch_id)
        self.draw()
        try:
            await self._app.actions.answer_questions(batch_id, responses)
        except KedgeError:
            self._sent.discard(batch_id)
            self.draw()
            raise

    # --- keys -------------------------------------------------------------------------------------------------------

    @property
    def is_shown(self) -> bool:
        return self._shown is not None

    @property
    def is_question_shown(self) -> bool:
        return isinstance(self._shown, m.QuestionBatch)

    def page(self, by: int) -> None:
        app = self._app
        (app.part(QuestionPanel) if self.is_question_shown else app.part(ApprovalPanel)).page(by)

    def focus_question(self) -> bool:
        """Move the focus between the prompt and the question, if there is one. Returns whether it moved."""
        prompt, question = self._app.part(PromptPanel), self._app.part(QuestionPanel)
        if question.has_focus_within:
            prompt.focus()
            return True
        return prompt.has_focus and question.take_focus()


def in_order(view: WorkspaceView, session_id: str) -> list[Ask]:
    """Return the pending Asks: those for the shown session first, each group the oldest first."""
    return sorted(view.asks(), key=lambda ask: not is_for(view, ask, session_id))


def is_for(view: WorkspaceView, ask: Ask, session_id: str) -> bool:
    """Return whether a Run of the session asks, directly or through a child Run."""
    if ask.session_id == session_id:
        return True
    run = view.run(ask.run_id)
    for _ in range(AGENT_DEPTH_MAX):
        if run is None or not run.parent_run_id:
            return False
        run = view.run(run.parent_run_id)
        if run is not None and run.session_id == session_id:
            return True
    return False


def closed_text(ask: Ask, closed: ClosedAsk) -> str:
    name = ask.tool_name if isinstance(ask, m.PermissionRequest) else "question"
    if not closed.answer:
        return f"{name}: withdrawn, because the run was stopped"
    if closed.by == BY_RULE:
        return f"{name}: {answer_label(closed.answer)} by a rule or the mode"
    if by := by_author(closed.author):
        return f"{name}: {answer_label(closed.answer)}{by}"
    client = f"another client ({closed.by[:CLIENT_ID_CHARS]})" if closed.by else "another client"
    return f"{name}: {answer_label(closed.answer)} by {client}"
