"""Routes about approvals, questions, standing grants, and undoing what a Run did to files."""

from __future__ import annotations

import msgspec

from kedge.core.ids import check_client_id
from kedge.engine.asks import Answered
from kedge.engine.engine import Engine
from kedge.engine.workspaces import Workspace
from kedge.errors import Invalid
from kedge.server.app import Call, Route, route
from kedge.server.routes_workspaces import ClientQuery, check_text
from kedge.wire import models as m
from kedge.wire.codec import ask_body


class ApprovalRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def pending(self, call: Call) -> list[m.PermissionRequest]:
        asks = await self._engine.approvals.pending(self._workspace(call))
        bodies = (ask_body(ask) for ask in asks)
        return [body for body in bodies if isinstance(body, m.PermissionRequest)]

    async def questions(self, call: Call) -> list[m.QuestionBatch]:
        asks = await self._engine.approvals.pending(self._workspace(call))
        bodies = (ask_body(ask) for ask in asks)
        return [body for body in bodies if isinstance(body, m.QuestionBatch)]

    async def answer(self, call: Call) -> m.Resolved:
        body: m.GrantPermission = call.body
        message = check_text(body.message, "message")
        approvals = self._engine.approvals
        answered = await approvals.answer(
            self._workspace(call), body.id, body.action, message, call.query.client_id, body.binding
        )
        return _resolved(answered)

    async def answer_questions(self, call: Call) -> m.Resolved:
        body: m.AnswerQuestions = call.body
        workspace = self._workspace(call)
        asked = ask_body(await self._engine.approvals.ask(workspace, body.batch_request_id))
        if not isinstance(asked, m.QuestionBatch):
            raise Invalid(f"{body.batch_request_id} is an approval; answer it at permissions/grant")
        given = {response.request_id: response for response in body.responses}
        if unknown := sorted(given.keys() - {question.request_id for question in asked.questions}):
            raise Invalid(
                f"{asked.id} has no question {unknown[0][:100]!r}; give the request_id of each as it was asked"
            )
        answers = [_words(question, given.get(question.request_id)) for question in asked.questions]
        packed = msgspec.json.encode(answers).decode()
        return _resolved(
            await self._engine.approvals.answer_question(workspace, asked.id, packed, call.query.client_id)
        )

    async def cancel_questions(self, call: Call) -> m.Resolved:
        body: m.CancelQuestions = call.body
        approvals = self._engine.approvals
        return _resolved(
            await approvals.answer_question(self._workspace(call), body.batch_request_id, None, call.query.client_id)
        )

    async def skip(self, call: Call) -> m.SkipState:
        workspace = self._workspace(call)
        return m.SkipState(skip=workspace.skip_approvals, given_by=workspace.skip_given_by)

    async def set_skip(self, call: Call) -> m.SkipState:
        client_id = check_client_id(call.query.client_id)
        self._engine.workspaces.skip(self._workspace(call), client_id, call.body.skip)
        return await self.skip(call)

    async def grants(self, call: Call) -> list[m.GrantBody]:
        return [
            m.GrantBody(
                id=grant.id,
                rule=grant.rule,
                session_id=grant.session_id,
                given_by=grant.given_by,
                created_at=grant.created_at,
            )
            for grant in await self._engine.approvals.grants(self._workspace(call))
        ]

    async def forget(self, call: Call) -> m.Ok:
        await self._engine.approvals.forget(self._workspace(call), call.path["grant_id"])
        return m.Ok()

    async def undo(self, call: Call) -> m.UndoReply:
        body: m.UndoRun = call.body
        run_id, files = await self._engine.undo.undo(self._workspace(call), call.path["sid"], body.run_id)
        return m.UndoReply(run_id=run_id, files=files)

    def _workspace(self, call: Call) -> Workspace:
        return self._engine.workspaces.get(call.path["id"])

    def routes(self) -> list[Route]:
        here = "/workspaces/{id}"
        permissions, questions = f"{here}/permissions", f"{here}/questions"
        one, many = m.Resolved, list[m.PermissionRequest]
        return [
            route("GET", permissions, self.pending, "Approvals that wait for an answer", reply=many),
            route(
                *("POST", f"{permissions}/grant", self.answer, "Answer an approval; the first answer wins"),
                body=m.GrantPermission,
                query=ClientQuery,
                reply=one,
            ),
            route("GET", f"{permissions}/skip", self.skip, "Whether approvals are skipped", reply=m.SkipState),
            route(
                *("POST", f"{permissions}/skip", self.set_skip, "Skip approvals in this workspace, or ask again"),
                body=m.SkipPermissions,
                query=ClientQuery,
                reply=m.SkipState,
            ),
            route("GET", f"{permissions}/grants", self.grants, "Standing answers", reply=list[m.GrantBody]),
            route("DELETE", f"{permissions}/grants/{{grant_id}}", self.forget, "Take one back", reply=m.Ok),
            route("GET", questions, self.questions, "Questions that wait for answers", reply=list[m.QuestionBatch]),
            route(
                *("POST", f"{questions}/answer", self.answer_questions, "Answer what the model asks"),
                body=m.AnswerQuestions,
                query=ClientQuery,
                reply=one,
            ),
            route(
                *("POST", f"{questions}/cancel", self.cancel_questions, "Rather not answer"),
                body=m.CancelQuestions,
                query=ClientQuery,
                reply=one,
            ),
            route(
                *("POST", f"{here}/sessions/{{sid}}/undo", self.undo, "Put files back as they were before a run"),
                body=m.UndoRun,
                reply=m.UndoReply,
            ),
        ]


def _resolved(answered: Answered) -> m.Resolved:
    return m.Resolved(resolved=True) if answered.first else m.Resolved(resolved=False, answered=answered.ask.answer)


def _words(question: m.QuestionBody, given: m.QuestionResponse | None) -> str:
    """One person's answer as the model reads it."""
    if given is None:
        return ""
    labels = [option.label for option in question.options if option.id in given.selected_ids]
    text = check_text(given.fill_in_text, "fill_in_text").strip()
    said = [*labels, *([text] if text else [])]
    return ", ".join(said)
