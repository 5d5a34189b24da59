"""Routes of Runs: submit, read, wait, cancel, and change the queue."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct, convert
from msgspec.structs import replace

from kedge.core.ids import check_run_id
from kedge.core.records import Attachment, AttachmentContent, Prompt, RunOptions, attachment_digest
from kedge.core.references import references_in
from kedge.core.rule_mistakes import check_rules
from kedge.engine.cancels import Cancelled
from kedge.engine.engine import Engine
from kedge.engine.workspace import Workspace
from kedge.errors import EmptyPrompt, Invalid, TooLarge
from kedge.server.asgi import Accepted, HttpRequest, Route, route
from kedge.server.routes_workspaces import PageLimit, check_text
from kedge.wire import models as m
from kedge.wire.codec import job_body, receipt, run_body
from kedge.wire.limits import (
    ATTACHMENTS_MAX,
    BODY_BYTES_MAX,
    COMMAND_BYTES_MAX,
    PAGE_BYTES_MAX,
    PAGE_ITEMS_MAX,
    PROMPT_BYTES_MAX,
    WAIT_S_MAX,
)

#: Content that is hashed on the event loop, in half a millisecond. Hashing in a thread does not block the loop. Bytes.
HASHED_BYTES_MAX = 512 * 1024
#: `/name`, with arguments or without. A further slash makes it a path.
_COMMAND = re.compile(r"/[^\s/]+(?:\s|$)")


class WaitQuery(Struct):
    timeout_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] = 60.0


class PageQuery(Struct):
    limit: PageLimit = PAGE_ITEMS_MAX


class AgentRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def submit(self, request: HttpRequest) -> m.Receipt:
        body: m.SubmitPrompt = request.body
        workspace = self._workspace(request)
        if not body.session_id:
            raise Invalid("session_id is missing: send the session of this prompt.")
        text = _prompt_text(body.prompt)
        command = text if body.expand and _COMMAND.match(text) else ""
        if body.expand and text.startswith("//"):
            text = text[1:]
        attachments, contents = await _attachments(body.attachments or [])
        await self._engine.modes.check(workspace, body.mode)
        references = references_in(text) if body.expand else ()
        submitting = self._engine.submit(
            workspace,
            body.session_id,
            Prompt(text, attachments, command=command, references=references),
            _options(body),
            check_run_id(body.run_id) if body.run_id else None,
            body.when_busy,
            contents,
            request.asker.user,
        )
        # A server of others may be asked first. Nothing is accepted if the client disconnects meanwhile.
        waits_for_others = bool(command or references)
        return receipt(await (request.while_connected(submitting) if waits_for_others else submitting))

    async def cancel(self, request: HttpRequest) -> m.CancelReply | Accepted:
        cancelling = self._engine.cancel(self._workspace(request), request.path["sid"], request.asker.user)
        return _cancel_reply(await cancelling)

    async def cancel_run(self, request: HttpRequest) -> m.CancelReply | Accepted:
        cancelling = self._engine.cancel_run(self._workspace(request), request.path["run_id"], request.asker.user)
        return _cancel_reply(await cancelling)

    async def summarize(self, request: HttpRequest) -> m.Receipt:
        workspace, user = self._workspace(request), request.asker.user
        return receipt(await self._engine.summarize(workspace, request.path["sid"], user))

    async def shell(self, request: HttpRequest) -> m.ShellReply:
        command, workspace = request.body.command, self._workspace(request)
        await self._engine.session(workspace, request.path["sid"])
        if not command.strip():
            raise EmptyPrompt("The command is empty; send a shell command.")
        if len(command.encode("utf-8", "replace")) > COMMAND_BYTES_MAX:
            raise TooLarge(f"The command has more than {COMMAND_BYTES_MAX} bytes; put it into a script.")
        check_text(command, "command")
        running = self._engine.user_commands.run(workspace, request.path["sid"], command, request.asker.user)
        done = await request.while_connected(running)
        return m.ShellReply(exit_code=done.exit_code, output=done.output)

    async def runs(self, request: HttpRequest) -> Iterator[m.RunBody]:
        query: PageQuery = request.query
        runs = await self._engine.runs(self._workspace(request), request.path["sid"], query.limit, PAGE_BYTES_MAX)
        return map(run_body, runs)

    async def run(self, request: HttpRequest) -> m.RunBody:
        return run_body(await self._engine.run(self._workspace(request), request.path["run_id"]))

    async def wait(self, request: HttpRequest) -> m.RunBody:
        query: WaitQuery = request.query
        waiting = self._engine.wait_run(self._workspace(request), request.path["run_id"], query.timeout_s)
        return run_body(await request.while_connected(waiting))

    async def edit(self, request: HttpRequest) -> m.RunBody:
        body: m.EditPrompt = request.body
        workspace = self._workspace(request)
        text = _prompt_text(body.prompt)
        attachments, contents = await _attachments(body.attachments or [])
        run = await self._engine.edit_run(
            workspace,
            request.path["run_id"],
            Prompt(text, attachments),
            contents,
            keeps_attachments=body.attachments is None,
            author=request.asker.user,
        )
        return run_body(run)

    async def move(self, request: HttpRequest) -> m.RunBody:
        body: m.MoveInQueue = request.body
        workspace, user = self._workspace(request), request.asker.user
        return run_body(await self._engine.move_run(workspace, request.path["run_id"], body.before, user))

    async def fold(self, request: HttpRequest) -> m.RunBody:
        workspace, user = self._workspace(request), request.asker.user
        return run_body(await self._engine.fold_run(workspace, request.path["run_id"], user))

    async def clear_queue(self, request: HttpRequest) -> m.CancelReply | Accepted:
        clearing = self._engine.clear_queue(self._workspace(request), request.path["sid"], request.asker.user)
        return _cancel_reply(await clearing)

    def _workspace(self, request: HttpRequest) -> Workspace:
        return self._engine.workspaces.get(request.path["id"])

    def routes(self) -> list[Route]:
        agent = "/workspaces/{id}/agent"
        session, run = f"{agent}/sessions/{{sid}}", f"{agent}/runs/{{run_id}}"
        return [
            route(
                "POST",
                agent,
                self.submit,
                "Submit a prompt",
                body=m.SubmitPrompt,
                reply=m.Receipt,
                status=202,
                body_bytes_max=BODY_BYTES_MAX,
                declared_session="body",
            ),
            route(
                "POST",
                f"{session}/cancel",
                self.cancel,
                "Cancel all runs accepted until now",
                reply=m.CancelReply,
                may_be_accepted=True,
            ),
            route(
                "GET",
                f"{session}/runs",
                self.runs,
                "List the runs of a session",
                query=PageQuery,
                reply=list[m.RunBody],
            ),
            route("POST", f"{session}/queue/clear", self.clear_queue, "Cancel all queued runs", reply=m.CancelReply),
            route("POST", f"{session}/summarize", self.summarize, "Summarize a session", reply=m.Receipt),
            route(
                "POST",
                f"{session}/shell",
                self.shell,
                "Run a shell command of the user",
                body=m.RunShell,
                reply=m.ShellReply,
                body_bytes_max=2 * COMMAND_BYTES_MAX,
            ),
            route("GET", run, self.run, "Return a run", reply=m.RunBody),
            route("GET", f"{run}/wait", self.wait, "Return a run when it has ended", query=WaitQuery, reply=m.RunBody),
            route(
                "POST",
                f"{run}/cancel",
                self.cancel_run,
                "Cancel one run",
                reply=m.CancelReply,
                may_be_accepted=True,
            ),
            route(
                "PATCH",
                run,
                self.edit,
                "Edit a queued prompt",
                body=m.EditPrompt,
                reply=m.RunBody,
                body_bytes_max=BODY_BYTES_MAX,
            ),
            route("POST", f"{run}/move", self.move, "Move a queued run", body=m.MoveInQueue, reply=m.RunBody),
            route("POST", f"{run}/fold", self.fold, "Fold a queued run into the active run", reply=m.RunBody),
        ]


def _cancel_reply(cancelled: Cancelled) -> m.CancelReply | Accepted:
    covered = [m.CoveredBody(run_id=run.run_id, seq=run.seq, was=run.was) for run in cancelled.covered]
    jobs = [job_body(entry) for entry in cancelled.kept_commands]
    reply = m.CancelReply(mark=cancelled.mark, covered=covered, recorded=cancelled.is_recorded, jobs=jobs)
    return reply if cancelled.is_recorded else Accepted(reply)


def _prompt_text(text: str) -> str:
    if len(text.encode()) > PROMPT_BYTES_MAX:
        raise TooLarge(f"The prompt has more than {PROMPT_BYTES_MAX} bytes; send the text as an attachment.")
    return check_text(text, "prompt")


async def _attachments(
    bodies: list[m.AttachmentBody],
) -> tuple[tuple[Attachment, ...], tuple[AttachmentContent, ...]]:
    """Return the attachments and their contents. One with a path and no content is read later, and has no digest."""
    if len(bodies) > ATTACHMENTS_MAX:
        raise TooLarge(f"There are {len(bodies)} attachments; at most {ATTACHMENTS_MAX} are allowed.")
    attachments: list[Attachment] = []
    contents: list[AttachmentContent] = []
    for body in bodies:
        texts = ("file_path", "file_name", "mime_type")
        path, name, mime_type = (check_text(getattr(body, field), field) for field in texts)
        digest = ""
        if body.content or not path:
            digest = await _digest(body.content)
            contents.append(AttachmentContent(digest, body.content))
        attachments.append(Attachment(path, name, mime_type, len(body.content), digest))
    return tuple(attachments), tuple(contents)


async def _digest(content: bytes) -> str:
    if len(content) <= HASHED_BYTES_MAX:
        return attachment_digest(content)
    return await asyncio.to_thread(attachment_digest, content)


def _options(body: m.SubmitPrompt) -> RunOptions:
    options = convert(body, RunOptions, from_attributes=True)
    for field, texts in (("model", [options.model or ""]), ("allow", options.allow), ("deny", options.deny)):
        for text in texts:
            check_text(text, field)
    check_rules(options.allow, options.deny)  # refuse invalid rules before the Run is accepted
    return replace(options, model=options.model or None)
