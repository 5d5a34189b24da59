"""What waits for people, and what they say to it, from the main screen: one Ask at a time."""

from __future__ import annotations

from kedge.client.safe_text import one_line, visible_line
from kedge.client.view.conversation import Ask
from kedge.client.view.workspace_view import ClosedAsk, WorkspaceView
from kedge.core.approvals import Answer
from kedge.errors import KedgeError
from kedge.tui.notice import give_notice
from kedge.tui.panels.approval_panel import ApprovalPanel, AskLine
from kedge.tui.panels.prompt_panel import PromptPanel
from kedge.tui.panels.question_panel import QuestionPanel
from kedge.tui.session_commands import SessionActs
from kedge.tui.state.session_actions import SessionActions
from kedge.wire import models as m

#: Of the id of a client: enough to tell two apart. Characters.
CLIENT_CHARS = 4
#: Of the title of a session, beside other words. Characters.
TITLE_CHARS_MAX = 40
#: Agents that ask agents that ask agents: more than the server lets there be. Items.
AGENTS_DEEP_MAX = 16

_SAID = {
    "allow": "allowed",
    "allow_session": "allowed for its session",
    "allow_always": "allowed always",
    "deny": "denied",
    "answered": "answered",
    "cancelled": "left unanswered",
}


class AskActs(SessionActs):
    """The part of the app that is about approvals and questions."""

    actions: SessionActions
    #: The Ask on the screen, and the session that was there when it came.
    _shown: Ask | None = None
    _shown_in = ""
    #: What became of the last one, the session that was on the screen then, and the Run that was at work there.
    _became = ("", "", "")

    def __init__(self) -> None:
        super().__init__()
        #: Asks whose answers are on their way, or have arrived: what came of them is told by events.
        self._sent: set[str] = set()

    def _give_back(self, texts: list[str]) -> None:
        raise NotImplementedError

    # --- what is asked ----------------------------------------------------------------------------------------------

    def draw_asks(self) -> None:
        """The one on the screen stays there until it is over, whatever else comes."""
        asks = in_order(self.view, self.session_id)
        before = self._shown
        stays = next((ask for ask in asks if before is not None and ask.id == before.id), None)
        if before is not None and stays is None:
            self._tell_closed(before, asks)
        self._shown = stays if stays is not None and self._shown_in == self.session_id else next(iter(asks), None)
        self._shown_in = self.session_id
        self._sent &= {ask.id for ask in asks}
        ask, place = self._shown, self._place(asks)
        is_sent = ask is not None and ask.id in self._sent
        approval = ask if isinstance(ask, m.PermissionRequest) else None
        question = ask if isinstance(ask, m.QuestionBatch) else None
        self.query_one(ApprovalPanel).tell(approval, place, is_sent=is_sent)
        self.query_one(QuestionPanel).tell(question, place, is_sent=is_sent)
        self.query_one(AskLine).say(visible_line(self._closed_words()))

    def _place(self, asks: list[Ask]) -> str:
        ask = self._shown
        if ask is None:
            return ""
        place = f" · 1 of {len(asks)}" if len(asks) > 1 else ""
        if ask.session_id == self.session_id:
            return place
        if is_for(self.view, ask, self.session_id):
            return f"{place} · an agent of this session"
        session = self.view.session(ask.session_id)
        title = visible_line(session.title, TITLE_CHARS_MAX) if session else ""
        return f"{place} · another session{': ' + title if title else ''}"

    def _tell_closed(self, ask: Ask, asks: list[Ask]) -> None:
        """What became of it, unless people here know: they said it themselves, or are asked the same again."""
        how = self.view.closed_asks.get(ask.id)
        is_asked_anew = any(other.tool_call_id == ask.tool_call_id for other in asks)
        if how is not None and how.by != self.connection.client.client_id and not is_asked_anew:
            active = self.view.active(self._shown_in)
            self._became = (closed_words(ask, how), self._shown_in, active.run_id if active else "")

    def _closed_words(self) -> str:
        """Told until something else is asked, another Run begins, or another session is looked at."""
        words, session_id, run_id = self._became
        active = self.view.active(self.session_id)
        is_past = self._shown is not None or session_id != self.session_id or (active and active.run_id != run_id)
        if is_past:
            self._became = ("", "", "")
        return "" if is_past else words

    def tell_asked(self, ask: Ask) -> None:
        if is_for(self.view, ask, self.session_id):
            what = f"{ask.tool_name} needs your approval" if isinstance(ask, m.PermissionRequest) else "a question"
            give_notice(self, what)
        else:
            self.tell("another session waits for your answer", "warning")

    def tell_ended(self, ended: m.RunComplete) -> None:
        session = self.view.session(ended.session_id)
        title = one_line(session.title, 60) if session else ""
        if ended.session_id == self.session_id:
            give_notice(self, f"{ended.outcome}: {title}" if title else ended.outcome)
        elif session is not None and not self.view.is_of_agent(session.id):
            self.tell(f"{title or 'another session'}: {ended.outcome}")

    # --- what is answered -------------------------------------------------------------------------------------------

    def action_approve(self, action: Answer) -> None:
        panel = self.query_one(ApprovalPanel)
        if ask := panel.answerable(action):
            self.start(self._answer(ask.id, action, ""))
        elif panel.answerable("allow"):
            self.tell("this can only be allowed once", "warning")

    def action_deny(self) -> None:
        if ask := self.query_one(ApprovalPanel).answerable("deny"):
            why = self.query_one(PromptPanel).put_away().strip()
            self.start(self._answer(ask.id, "deny", why))

    async def _answer(self, ask_id: str, action: Answer, why: str) -> None:
        """Who was quicker, or that it is over, is told when the event of it comes; words for nobody go back."""
        self._sent.add(ask_id)
        self.draw_asks()
        try:
            came_late = await self.actions.answer(ask_id, action, why)
        except KedgeError:
            self._sent.discard(ask_id)
            self.draw_asks()
            self._give_back([why] if why else [])
            raise
        if came_late and why:
            self._give_back([why])

    def on_question_panel_answered(self, event: QuestionPanel.Answered) -> None:
        self.start(self._answer_questions(event.batch_id, event.responses))

    async def _answer_questions(self, batch_id: str, responses: list[m.QuestionResponse] | None) -> None:
        self._sent.add(batch_id)
        self.draw_asks()
        try:
            await self.actions.answer_questions(batch_id, responses)
        except KedgeError:
            self._sent.discard(batch_id)
            self.draw_asks()
            raise

    def on_question_panel_left(self) -> None:
        self.query_one(PromptPanel).focus()

    # --- keys -------------------------------------------------------------------------------------------------------

    def action_ask_page(self, by: int) -> None:
        panel: ApprovalPanel | QuestionPanel = self.query_one(ApprovalPanel)
        panel = panel if isinstance(self._shown, m.PermissionRequest) else self.query_one(QuestionPanel)
        panel.page(by)

    def action_to_question(self) -> None:
        self.query_one(QuestionPanel).take_focus()

    def action_focus_next(self) -> None:
        """Tab: from the prompt to what is asked, if anything is, and back."""
        prompt, question = self.query_one(PromptPanel), self.query_one(QuestionPanel)
        if question.has_focus_within:
            prompt.focus()
        elif not (prompt.has_focus and question.take_focus()):
            super().action_focus_next()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys for what is asked are those of the prompt while nothing is."""
        if action in ("ask_page", "to_question"):
            what = Ask if action == "ask_page" else m.QuestionBatch
            return isinstance(self._shown, what) and self.screen is self.default_screen
        return super().check_action(action, parameters)


def in_order(view: WorkspaceView, session_id: str) -> list[Ask]:
    """Those of the session on the screen first; of each, the longest waiting."""
    return sorted(view.asks(), key=lambda ask: not is_for(view, ask, session_id))


def is_for(view: WorkspaceView, ask: Ask, session_id: str) -> bool:
    """Whether it was put by a Run of this session, or by an agent that works for one."""
    if ask.session_id == session_id:
        return True
    run = view.run(ask.run_id)
    for _ in range(AGENTS_DEEP_MAX):
        if run is None or not run.parent_run_id:
            return False
        run = view.run(run.parent_run_id)
        if run is not None and run.session_id == session_id:
            return True
    return False


def closed_words(ask: Ask, how: ClosedAsk) -> str:
    what = ask.tool_name if isinstance(ask, m.PermissionRequest) else "the question"
    if not how.answer:
        return f"{what}: no longer asked, since the run was stopped"
    who = f"another client ({how.by[:CLIENT_CHARS]})" if how.by else "another client"
    return f"{what}: {_SAID.get(how.answer, how.answer)} by {who}"
