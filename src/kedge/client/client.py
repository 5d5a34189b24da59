"""The Python client: one method for each route, wire models in and out, errors as the typed errors they are.

    async with Client() as client:
        workspace = await client.create_workspace("/path/to/project")
        session = await client.create_session(workspace.id)
        prompt = SubmitPrompt(session_id=session.id, prompt="Hello", run_id=new_run_id())
        receipt = await client.submit(workspace.id, prompt)
        run = await client.wait_run(workspace.id, receipt.run_id)

A workspace that this client opened is opened again when the server has forgotten it, after a restart for example.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

import msgspec

from kedge.client.event_stream import GIVE_UP_S, EventStream, loop_time
from kedge.client.http_transport import ANSWER_S_MAX, Transport
from kedge.core.approvals import Answer
from kedge.errors import Invalid, KedgeError, TooLarge, WorkspaceClosing, WorkspaceNotFound
from kedge.wire import models as m
from kedge.wire.limits import WAIT_S_MAX

#: Messages asked for at once: large enough to be quick, small enough to stay below the largest reply. Items.
PAGE_MESSAGES = 200
#: A health check needs no store and no model: later than this is not healthy. Seconds.
HEALTH_S_MAX = 5.0
#: One request to wait for a Run's end; asked again until it has ended. Below WAIT_S_MAX, so that a connection that died
#: silently costs this and not more. Seconds.
WAIT_S = min(60.0, WAIT_S_MAX)
#: The server ends a command it runs for a user after 120 s; this is longer, so that it is the one to say so. Seconds.
COMMAND_S_MAX = 130.0

R = TypeVar("R")


def new_run_id() -> str:
    return str(uuid.uuid4())


class Client:
    """One client of one server: `unix:///path.sock`, `tcp://127.0.0.1:PORT` or `http://...`; by default the user's own.

    It does not start a server: `kedge.client.local_server.find_or_start` does."""

    def __init__(self, host: str | None = None, token: str | None = None, transport: Transport | None = None) -> None:
        self._transport = transport or Transport(host, token)
        self.client_id = str(uuid.uuid4())
        #: Directories of the workspaces this client opened and did not release.
        self._paths: dict[str, str] = {}

    @property
    def host(self) -> str:
        return self._transport.address.host

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    # --- the server ---------------------------------------------------------------------------------------------------

    async def health(self) -> None:
        """Returns when the server answers; raises Unreachable when none does."""
        await self._transport.request("GET", "/health", answer_s_max=HEALTH_S_MAX)

    async def version(self) -> m.Version:
        return await self._call("GET", "/version", reply=m.Version)

    async def control(self, command: Literal["shutdown", "shutdown_if_idle"], *, force: bool = False) -> None:
        await self._transport.request("POST", "/control", body=m.Control(command=command, force=force))

    async def retire(self) -> None:
        """Drop all claims of this client; the server refuses its later creates."""
        self._paths.clear()
        await self._transport.request("DELETE", _path("clients", self.client_id))

    async def metrics(self) -> str:
        return (await self._transport.request("GET", "/metrics")).decode("utf-8", "replace")

    async def openapi(self) -> dict[str, Any]:
        return await self._call("GET", "/openapi.json", reply=dict[str, Any])

    async def runs(self, state: Literal["queued", "active"] | None = None) -> list[m.RunBody]:
        """All live Runs on this server, in every workspace."""
        return await self._call("GET", "/runs", params={"state": state}, reply=list[m.RunBody])

    # --- workspaces ---------------------------------------------------------------------------------------------------

    async def create_workspace(self, path: str) -> m.WorkspaceBody:
        """Open a directory; the same one for every client that names it."""
        body = m.CreateWorkspace(path=path, client_id=self.client_id)
        workspace = await self._call("POST", "/workspaces", body=body, reply=m.WorkspaceBody)
        self._paths[workspace.id] = path
        return workspace

    async def workspaces(self) -> list[m.WorkspaceBody]:
        return await self._call("GET", "/workspaces", reply=list[m.WorkspaceBody])

    async def workspace(self, workspace_id: str) -> m.WorkspaceBody:
        return await self._inside("GET", workspace_id, reply=m.WorkspaceBody)

    async def release_workspace(self, workspace_id: str) -> None:
        """Give up this client's claim. Live Runs keep theirs."""
        self._paths.pop(workspace_id, None)
        path = _path("workspaces", workspace_id)
        await self._transport.request("DELETE", path, params={"client_id": self.client_id})

    async def set_current_session(self, workspace_id: str, session_id: str) -> None:
        body, params = m.CurrentSession(session_id=session_id), {"client_id": self.client_id}
        await self._inside_raw("POST", workspace_id, "current-session", body=body, params=params)

    async def config(self, workspace_id: str) -> dict[str, Any]:
        """The configuration in force there, without secrets."""
        return await self._inside("GET", workspace_id, "config", reply=dict[str, Any])

    async def models(self, workspace_id: str) -> list[m.ModelBody]:
        """What a session or a Run there can be given."""
        return await self._inside("GET", workspace_id, "models", reply=list[m.ModelBody])

    async def search(self, workspace_id: str, query: str, limit: int | None = None) -> list[m.SearchHitBody]:
        params = {"q": query, "limit": limit}
        return await self._inside("GET", workspace_id, "search", params=params, reply=list[m.SearchHitBody])

    def events(
        self,
        workspace_id: str,
        *,
        session_id: str | None = None,
        deltas: bool = False,
        after: int | None = None,
        give_up_s: float = GIVE_UP_S,
    ) -> EventStream:
        """The events of a workspace, or of one session in it, from now on or after a Position.

        `async with` subscribes at once; plain iteration subscribes at its first step."""
        params = {"client_id": self.client_id, "session_id": session_id, "deltas": 1 if deltas else None}
        return EventStream(self._transport, workspace_id, params, reopen=self._reopen, after=after, give_up_s=give_up_s)

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def sessions(self, workspace_id: str) -> list[m.SessionBody]:
        return await self._inside("GET", workspace_id, "sessions", reply=list[m.SessionBody])

    async def create_session(self, workspace_id: str, title: str = "") -> m.SessionBody:
        body = m.CreateSession(title=title)
        return await self._inside("POST", workspace_id, "sessions", body=body, reply=m.SessionBody)

    async def session(self, workspace_id: str, session_id: str) -> m.SessionBody:
        return await self._inside("GET", workspace_id, "sessions", session_id, reply=m.SessionBody)

    async def change_session(
        self, workspace_id: str, session_id: str, *, title: str | None = None, model: str | None = None
    ) -> m.SessionBody:
        """Another title or another model; None leaves it as it is, and an empty model means the configured one."""
        body = m.UpdateSession(title=title, model=model)
        return await self._inside("PUT", workspace_id, "sessions", session_id, body=body, reply=m.SessionBody)

    async def rename_session(self, workspace_id: str, session_id: str, title: str) -> m.SessionBody:
        return await self.change_session(workspace_id, session_id, title=title)

    async def delete_session(self, workspace_id: str, session_id: str) -> None:
        """Its Runs are cancelled first."""
        await self._inside_raw("DELETE", workspace_id, "sessions", session_id)

    async def messages(
        self, workspace_id: str, session_id: str, *, after: str | None = None, limit: int | None = None
    ) -> list[m.MessageBody]:
        """One page of the transcript: the messages behind message `after`."""
        parts, params = ("sessions", session_id, "messages"), {"after": after, "limit": limit}
        return await self._inside("GET", workspace_id, *parts, params=params, reply=list[m.MessageBody])

    async def all_messages(self, workspace_id: str, session_id: str) -> AsyncIterator[m.MessageBody]:
        """The whole transcript, page by page."""
        after: str | None = None
        limit = PAGE_MESSAGES
        while True:
            try:
                page = await self.messages(workspace_id, session_id, after=after, limit=limit)
            except TooLarge:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)  # many pictures
                continue
            for message in page:
                yield message
            if len(page) < limit:
                return
            after = page[-1].id

    async def fork_session(self, workspace_id: str, session_id: str, message_id: str = "") -> m.SessionBody:
        """A new session with the transcript up to that message."""
        body = m.ForkSession(message_id=message_id)
        return await self._inside("POST", workspace_id, "sessions", session_id, "fork", body=body, reply=m.SessionBody)

    async def export_session(
        self, workspace_id: str, session_id: str, form: Literal["md", "json", "html"] = "md"
    ) -> bytes:
        """The transcript as a document."""
        parts = ("sessions", session_id, "export")
        return await self._inside_raw("GET", workspace_id, *parts, params={"format": form})

    async def undo(self, workspace_id: str, session_id: str, run_id: str | None = None) -> m.UndoReply:
        """Put files back as they were before that Run, or before the last one that changed any."""
        body = m.UndoRun(run_id=run_id)
        return await self._inside("POST", workspace_id, "sessions", session_id, "undo", body=body, reply=m.UndoReply)

    async def shell(self, workspace_id: str, session_id: str, command: str) -> m.ShellReply:
        """Run a command for the user; it becomes part of the transcript."""
        parts, body = ("agent", "sessions", session_id, "shell"), m.RunShell(command=command)
        return await self._inside(
            "POST", workspace_id, *parts, body=body, answer_s_max=COMMAND_S_MAX + ANSWER_S_MAX, reply=m.ShellReply
        )

    # --- approvals and questions --------------------------------------------------------------------------------------

    async def permissions(self, workspace_id: str) -> list[m.PermissionRequest]:
        """Approvals that wait for an answer."""
        return await self._inside("GET", workspace_id, "permissions", reply=list[m.PermissionRequest])

    async def answer_permission(
        self, workspace_id: str, permission_id: str, action: Answer, message: str = "", binding: str = ""
    ) -> m.Resolved:
        """The first answer wins. A denial may say why; the model reads it. `binding`: that of the request that was
        shown; the answer is refused if it is not what waits."""
        body = m.GrantPermission(id=permission_id, action=action, message=message, binding=binding)
        return await self._answer(workspace_id, "permissions", "grant", body=body)

    async def skip_permissions(self, workspace_id: str, skip: bool | None = None) -> bool:
        """Whether approvals are skipped in this workspace; say True or False to change that. True lasts as long as this
        client holds the workspace."""
        method, body = ("GET", None) if skip is None else ("POST", m.SkipPermissions(skip=skip))
        parts, params = ("permissions", "skip"), {} if skip is None else {"client_id": self.client_id}
        reply = await self._inside(method, workspace_id, *parts, body=body, params=params, reply=m.SkipState)
        return reply.skip

    async def grants(self, workspace_id: str) -> list[m.GrantBody]:
        """Standing answers: what was allowed for a session, or always."""
        return await self._inside("GET", workspace_id, "permissions", "grants", reply=list[m.GrantBody])

    async def forget_grant(self, workspace_id: str, grant_id: str) -> None:
        """Take a standing answer back: people are asked again."""
        await self._inside_raw("DELETE", workspace_id, "permissions", "grants", grant_id)

    async def questions(self, workspace_id: str) -> list[m.QuestionBatch]:
        """Questions of models that wait for answers."""
        return await self._inside("GET", workspace_id, "questions", reply=list[m.QuestionBatch])

    async def answer_questions(
        self, workspace_id: str, batch_id: str, responses: list[m.QuestionResponse]
    ) -> m.Resolved:
        body = m.AnswerQuestions(batch_request_id=batch_id, responses=responses)
        return await self._answer(workspace_id, "questions", "answer", body=body)

    async def cancel_questions(self, workspace_id: str, batch_id: str) -> m.Resolved:
        """Rather not answer."""
        body = m.CancelQuestions(batch_request_id=batch_id)
        return await self._answer(workspace_id, "questions", "cancel", body=body)

    async def _answer(self, workspace_id: str, *parts: str, body: msgspec.Struct) -> m.Resolved:
        params = {"client_id": self.client_id}
        return await self._inside("POST", workspace_id, *parts, body=body, params=params, reply=m.Resolved)

    # --- runs ---------------------------------------------------------------------------------------------------------

    async def submit(self, workspace_id: str, prompt: m.SubmitPrompt) -> m.Receipt:
        """Have a prompt accepted. With a run_id of its own it may be repeated: that is the idempotency key."""
        return await self._inside("POST", workspace_id, "agent", body=prompt, reply=m.Receipt)

    async def summarize(self, workspace_id: str, session_id: str) -> m.Receipt:
        """A Run like any other, that replaces what the model is shown of the session by a summary."""
        parts = ("agent", "sessions", session_id, "summarize")
        return await self._inside("POST", workspace_id, *parts, reply=m.Receipt)

    async def run(self, workspace_id: str, run_id: str) -> m.RunBody:
        return await self._inside("GET", workspace_id, "agent", "runs", run_id, reply=m.RunBody)

    async def session_runs(self, workspace_id: str, session_id: str) -> list[m.RunBody]:
        parts = ("agent", "sessions", session_id, "runs")
        return await self._inside("GET", workspace_id, *parts, reply=list[m.RunBody])

    async def wait_run(self, workspace_id: str, run_id: str, timeout_s: float | None = None) -> m.RunBody:
        """The Run when it has ended, or as it is when the timeout has passed."""
        deadline = None if timeout_s is None else loop_time() + timeout_s
        while True:
            wait_s = WAIT_S if deadline is None else max(0.0, min(WAIT_S, deadline - loop_time()))
            run = await self._inside(
                "GET",
                workspace_id,
                *("agent", "runs", run_id, "wait"),
                params={"timeout_s": wait_s},
                answer_s_max=wait_s + ANSWER_S_MAX,
                reply=m.RunBody,
            )
            if run.state == "ended" or (deadline is not None and loop_time() >= deadline):
                return run

    async def cancel_run(self, workspace_id: str, run_id: str) -> m.CancelReply:
        """Stop this Run, queued or active, and no other."""
        return await self._inside("POST", workspace_id, "agent", "runs", run_id, "cancel", reply=m.CancelReply)

    async def cancel_session(self, workspace_id: str, session_id: str) -> m.CancelReply:
        """Stop every Run of the session accepted until now."""
        return await self._inside("POST", workspace_id, "agent", "sessions", session_id, "cancel", reply=m.CancelReply)

    async def edit_run(
        self, workspace_id: str, run_id: str, prompt: str, attachments: list[m.AttachmentBody] | None = None
    ) -> m.RunBody:
        """Another prompt for a queued Run, and other files; None: those it has."""
        body = m.EditRun(prompt=prompt, attachments=attachments)
        return await self._inside("PATCH", workspace_id, "agent", "runs", run_id, body=body, reply=m.RunBody)

    async def move_run(self, workspace_id: str, run_id: str, before: str | None = None) -> m.RunBody:
        """Put a queued Run before another one, or last."""
        body = m.MoveRun(before=before)
        return await self._inside("POST", workspace_id, "agent", "runs", run_id, "move", body=body, reply=m.RunBody)

    async def fold_run(self, workspace_id: str, run_id: str) -> m.RunBody:
        """Have a queued Run join the active one at its next Step."""
        return await self._inside("POST", workspace_id, "agent", "runs", run_id, "fold", reply=m.RunBody)

    async def clear_queue(self, workspace_id: str, session_id: str) -> m.CancelReply:
        """End every queued Run of the session; the active one goes on."""
        parts = ("agent", "sessions", session_id, "queue", "clear")
        return await self._inside("POST", workspace_id, *parts, reply=m.CancelReply)

    # --- how ----------------------------------------------------------------------------------------------------------

    async def _call(self, method: str, path: str, *, reply: type[R], **options: Any) -> R:
        return _understood(method, path, await self._transport.request(method, path, **options), reply)

    async def _inside(self, method: str, workspace_id: str, *parts: str, reply: type[R], **options: Any) -> R:
        body = await self._inside_raw(method, workspace_id, *parts, **options)
        return _understood(method, _path("workspaces", workspace_id, *parts), body, reply)

    async def _inside_raw(self, method: str, workspace_id: str, *parts: str, **options: Any) -> bytes:
        path = _path("workspaces", workspace_id, *parts)
        try:
            return await self._transport.request(method, path, **options)
        except (WorkspaceNotFound, WorkspaceClosing):  # nothing was done; the second was let go while we were heard
            if await self._reopen(workspace_id) != workspace_id:
                raise
        return await self._transport.request(method, path, **options)

    async def _reopen(self, workspace_id: str) -> str:
        """Open a workspace again that the server has forgotten; its id, which stays the same while the store does."""
        path = self._paths.get(workspace_id)
        if path is None:
            raise WorkspaceNotFound(f"no workspace {workspace_id!r} is open on {self.host}: open its directory first")
        return (await self.create_workspace(path)).id


def _understood(method: str, path: str, body: bytes, kind: type[R]) -> R:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KedgeError(
            f"the reply to {method} {path} cannot be understood ({error}): is the server of another version?"
        ) from error


def _path(*parts: str) -> str:
    """A path of these parts, each one a part whatever is in it."""
    for part in parts:
        if part in ("", ".", ".."):
            raise Invalid(f"{part!r} is no id")
    return "/" + "/".join(quote(part, safe="") for part in parts)
