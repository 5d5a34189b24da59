"""Routes of approvals, questions and grants, and of changed files."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from kedge.engine.asks import Answered
from kedge.engine.engine import Engine
from kedge.engine.workspace import Workspace
from kedge.errors import Invalid
from kedge.server.asgi import HttpRequest, Route, route
from kedge.server.routes_workspaces import ClientQuery, check_text
from kedge.server.session_scope import SessionScope
from kedge.wire import models as m
from kedge.wire.codec import ask_body
from kedge.wire.limits import CHANGED_FILES_MAX


class ApprovalRoutes:
    def __init__(self, engine: Engine, scope: SessionScope) -> None:
        self._engine = engine
        self._scope = scope

    async def pending(self, request: HttpRequest) -> list[m.PermissionRequest]:
        asks = await self._scope.visible_asks(request, self._workspace(request))
        bodies = (ask_body(ask) for ask in asks)
        return [body for body in bodies if isinstance(body, m.PermissionRequest)]

    async def questions(self, request: HttpRequest) -> list[m.QuestionBatch]:
        asks = await self._scope.visible_asks(request, self._workspace(request))
        bodies = (ask_body(ask) for ask in asks)
        return [body for body in bodies if isinstance(body, m.QuestionBatch)]

    async def answer(self, request: HttpRequest) -> m.Resolved:
        body: m.GrantPermission = request.body
        message = check_text(body.message, "message")
        rules = tuple(check_text(rule, "rules") for rule in body.rules)
        answered = await self._engine.asks.answer(
            self._workspace(request),
            body.id,
            body.action,
            message,
            request.query.client_id,
            body.binding,
            rules,
            request.asker.user,
        )
        return _resolved(answered)

    async def answer_questions(self, request: HttpRequest) -> m.Resolved:
        body: m.AnswerQuestions = request.body
        workspace = self._workspace(request)
        asked = ask_body(await self._engine.asks.ask(workspace, body.batch_request_id))
        if not isinstance(asked, m.QuestionBatch):
            raise Invalid(f"{body.batch_request_id} is an approval; answer it with POST permissions/grant.")
        responses = {response.request_id: response for response in body.responses}
        if unknown := sorted(responses.keys() - {question.request_id for question in asked.questions}):
            raise Invalid(f"{asked.id} has no question {unknown[0][:100]!r}; send the request_id of each question.")
        answers = [_answer_text(question, responses.get(question.request_id)) for question in asked.questions]
        encoded = msgspec.json.encode(answers).decode()
        return await self._answered(request, asked.id, encoded)

    async def cancel_questions(self, request: HttpRequest) -> m.Resolved:
        return await self._answered(request, request.body.batch_request_id, None)

    async def _answered(self, request: HttpRequest, batch_id: str, answers: str | None) -> m.Resolved:
        answered = await self._engine.asks.answer_question(
            self._workspace(request), batch_id, answers, request.query.client_id, request.asker.user
        )
        return _resolved(answered)

    async def grants(self, request: HttpRequest) -> list[m.GrantBody]:
        return [
            m.GrantBody(
                id=grant.id,
                rule=grant.rule,
                session_id=grant.session_id,
                given_by=grant.given_by,
                created_at=grant.created_at,
                author=grant.author or UNSET,
            )
            for grant in await self._engine.asks.grants(self._workspace(request))
        ]

    async def revoke(self, request: HttpRequest) -> m.Ok:
        await self._engine.asks.revoke(self._workspace(request), request.path["grant_id"])
        return m.Ok()

    async def files(self, request: HttpRequest) -> m.ChangedFiles:
        changed = await self._engine.undo.changed_files(self._workspace(request), request.path["sid"])
        files = [m.ChangedFileBody(path=file.path, change=file.change) for file in changed[:CHANGED_FILES_MAX]]
        return m.ChangedFiles(count=len(changed), files=files)

    def _workspace(self, request: HttpRequest) -> Workspace:
        return self._engine.workspaces.get(request.path["id"])

    def routes(self) -> list[Route]:
        workspace = "/workspaces/{id}"
        permissions, questions = f"{workspace}/permissions", f"{workspace}/questions"
        pending, batches, grants = list[m.PermissionRequest], list[m.QuestionBatch], list[m.GrantBody]
        return [
            route(
                "GET",
                permissions,
                self.pending,
                "List the pending approvals",
                reply=pending,
                declared_session="listed",
            ),
            route(
                "POST",
                f"{permissions}/grant",
                self.answer,
                "Answer an approval; the first answer wins",
                body=m.GrantPermission,
                query=ClientQuery,
                reply=m.Resolved,
                declared_session="ask",
            ),
            route("GET", f"{permissions}/grants", self.grants, "List the grants", reply=grants),
            route("DELETE", f"{permissions}/grants/{{grant_id}}", self.revoke, "Revoke a grant", reply=m.Ok),
            route(
                "GET",
                questions,
                self.questions,
                "List the pending questions",
                reply=batches,
                declared_session="listed",
            ),
            route(
                "POST",
                f"{questions}/answer",
                self.answer_questions,
                "Answer questions of the model",
                body=m.AnswerQuestions,
                query=ClientQuery,
                reply=m.Resolved,
                declared_session="ask",
            ),
            route(
                "POST",
                f"{questions}/cancel",
                self.cancel_questions,
                "Decline to answer",
                body=m.CancelQuestions,
                query=ClientQuery,
                reply=m.Resolved,
                declared_session="ask",
            ),
            route(
                "GET",
                f"{workspace}/sessions/{{sid}}/files",
                self.files,
                "List the files that the runs of a session changed",
                reply=m.ChangedFiles,
            ),
        ]


def _resolved(answered: Answered) -> m.Resolved:
    return m.Resolved(resolved=True) if answered.first else m.Resolved(resolved=False, answered=answered.ask.answer)


def _answer_text(question: m.QuestionBody, response: m.QuestionResponse | None) -> str:
    """Return one answer as the model reads it."""
    if response is None:
        return ""
    labels = [option.label for option in question.options if option.id in response.selected_ids]
    text = check_text(response.fill_in_text, "fill_in_text").strip()
    return ", ".join([*labels, text] if text else labels)
