"""The Python client: one method per route, with wire models as arguments and results and typed errors.

    async with Client() as client:
        workspace = await client.create_workspace("/path/to/project")
        session = await client.create_session(workspace.id)
        prompt = SubmitPrompt(session_id=session.id, prompt="Hello", run_id=new_run_id())
        receipt = await client.submit(workspace.id, prompt)
        run = await client.wait_run(workspace.id, receipt.run_id)

A workspace that this client opened is reopened when the server no longer has it, for example after a restart.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Literal, Self, TypeVar

import httpx2
import msgspec

from kedge.client.event_stream import EventStream
from kedge.client.http_transport import ANSWER_S_MAX, Transport, decode_reply, quoted_path
from kedge.client.retry import GIVE_UP_S, Restart, loop_time, retry_if_refused
from kedge.client.user_client import UserClient
from kedge.client.web_client import WebClient
from kedge.core.approvals import Answer
from kedge.core.modes import Mode
from kedge.core.records import Effort
from kedge.core.statistics import GroupBy
from kedge.core.transcript import USER_COMMAND_S_MAX
from kedge.errors import WorkspaceClosing, WorkspaceNotFound
from kedge.wire import models as m
from kedge.wire.cluster_models import NodeBody
from kedge.wire.extension_models import ExtensionBody, PromptCommandBody
from kedge.wire.job_models import JobBody, JobOutput
from kedge.wire.limits import WAIT_S_MAX
from kedge.wire.report_models import LaneBody, LiveLaneBody, StatsBody
from kedge.wire.reversal_models import RewindReply, RewindScope, RewindSession, UndoReply, UndoRun

#: Page sizes of `all_messages` (few requests, and the first messages are there soon) and `known_workspaces`. Items.
PAGE_MESSAGES, PAGE_WORKSPACES = 200, 500
#: A health check needs neither store nor model. A slower server is not healthy. Seconds.
HEALTH_S_MAX = 5.0
#: The start of an MCP server, which may have to be downloaded. Seconds.
MCP_S_MAX = 120.0
#: One request that waits for a Run's end; repeated until then. Shorter than WAIT_S_MAX, since a connection that died
#: silently costs this long. Seconds.
WAIT_S = min(60.0, WAIT_S_MAX)

R = TypeVar("R")


def new_run_id() -> str:
    return str(uuid.uuid4())


#: The text for the user after a cancel with `recorded: false`.
NOT_RECORDED = "being stopped; the cancel is not recorded yet, since the server's store does not answer"


class Client:
    """A client of one server: `unix:///path.sock`, `tcp://127.0.0.1:PORT` or `http://...`; by default the user's own.

    It does not start a server; `kedge.client.local_server.find_or_start` does."""

    def __init__(self, host: str | None = None, token: str | None = None, transport: Transport | None = None) -> None:
        self._transport = transport or Transport(host, token)
        self.web = WebClient(self._transport)
        self.users = UserClient(self._transport)
        self.client_id = str(uuid.uuid4())
        #: Starts the server if it is gone. If set, requests that a server refused because it shuts down are repeated,
        #: as far as that is safe (`retry_if_refused`).
        self.restart: Restart | None = None
        #: Workspaces that this client has open: id -> directory.
        self._paths: dict[str, str] = {}

    @property
    def host(self) -> str:
        return self._transport.address.host

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    # --- the server ---------------------------------------------------------------------------------------------------

    async def health(self) -> None:
        """Return if the server answers; else raise Unreachable."""
        await self._transport.request("GET", "/health", answer_s_max=HEALTH_S_MAX)

    async def version(self) -> m.Version:
        return await self._call("GET", "/version", reply=m.Version)

    async def control(self, command: Literal["shutdown", "shutdown_if_idle"], *, force: bool = False) -> None:
        """Shut down the server. ServerNotIdle if Runs are live, unless `force` is set; with `shutdown_if_idle` also if
        other clients are attached."""
        body, params = m.Control(command=command, force=force), {"client_id": self.client_id}
        await self._transport.request("POST", "/control", body=body, params=params)

    async def retire(self) -> None:
        """Drop all claims of this client. The server refuses new ones from it."""
        self._paths.clear()
        await self._transport.request("DELETE", quoted_path("clients", self.client_id))

    async def metrics(self) -> str:
        return (await self._transport.request("GET", "/metrics")).decode("utf-8", "replace")

    async def openapi(self) -> dict[str, Any]:
        return await self._call("GET", "/openapi.json", reply=dict[str, Any])

    async def runs(self, state: Literal["queued", "active"] | None = None) -> list[m.RunBody]:
        """Return the live Runs of all workspaces of this server."""
        return await self._call("GET", "/runs", params={"state": state}, reply=list[m.RunBody])

    async def lanes(self, *, after: str = "", limit: int | None = None) -> list[LiveLaneBody]:
        """Return the Lanes with live Runs of all open workspaces, by the ids of their sessions."""
        return await self._call("GET", "/lanes", params={"after": after, "limit": limit}, reply=list[LiveLaneBody])

    async def stats(self, by: GroupBy = "day", **params: str | int | None) -> StatsBody:
        """Return the statistics of ended Runs. `params`: since, until, workspace_id, utc_offset_min."""
        return await self._call("GET", "/stats", params={"by": by, **params}, reply=StatsBody)

    # --- workspaces ---------------------------------------------------------------------------------------------------

    async def create_workspace(self, path: str) -> m.WorkspaceBody:
        """Open a directory. All clients that open it share one workspace."""
        body = m.CreateWorkspace(path=path, client_id=self.client_id)
        workspace = await self._call("POST", "/workspaces", body=body, reply=m.WorkspaceBody)
        self._paths[workspace.id] = path
        return workspace

    async def workspaces(self) -> list[m.WorkspaceBody]:
        return await self._call("GET", "/workspaces", reply=list[m.WorkspaceBody])

    async def nodes(self) -> list[NodeBody]:
        """Return the nodes of the cluster; none, if the server is alone."""
        return await self._call("GET", "/nodes", reply=list[NodeBody])

    async def known_workspaces(self) -> list[m.KnownWorkspaceBody]:
        """Return all stored workspaces, open or not."""
        known: list[m.KnownWorkspaceBody] = []
        while True:
            params = {"after": known[-1].id if known else None, "limit": PAGE_WORKSPACES}
            page = await self._call("GET", "/known-workspaces", params=params, reply=list[m.KnownWorkspaceBody])
            known += page
            if len(page) < PAGE_WORKSPACES:
                return known

    async def remove_workspace(self, workspace_id: str) -> None:
        """Remove a workspace with all its sessions. WorkspaceInUse if Runs are live or clients are connected."""
        self._paths.pop(workspace_id, None)
        await self._transport.request("DELETE", quoted_path("known-workspaces", workspace_id))

    async def workspace(self, workspace_id: str) -> m.WorkspaceBody:
        return await self._inside("GET", workspace_id, reply=m.WorkspaceBody)

    async def release_workspace(self, workspace_id: str) -> None:
        """Release this client's claim. Live Runs keep theirs."""
        self._paths.pop(workspace_id, None)
        path = quoted_path("workspaces", workspace_id)
        await self._transport.request("DELETE", path, params={"client_id": self.client_id})

    async def set_current_session(self, workspace_id: str, session_id: str) -> None:
        body, params = m.CurrentSession(session_id=session_id), {"client_id": self.client_id}
        await self._inside_raw("POST", workspace_id, "current-session", body=body, params=params)

    async def config(self, workspace_id: str) -> dict[str, Any]:
        """Return the effective configuration, with secrets masked."""
        return await self._inside("GET", workspace_id, "config", reply=dict[str, Any])

    async def models(self, workspace_id: str) -> list[m.ModelBody]:
        """Return the models that sessions and Runs of this workspace can use."""
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
        """Return the events of a workspace or of one of its sessions, from now on or after a Position.

        `async with` subscribes at once; plain iteration subscribes on its first step."""
        params = {"client_id": self.client_id, "session_id": session_id, "deltas": 1 if deltas else None}
        return EventStream(self._transport, workspace_id, params, reopen=self._reopen, after=after, give_up_s=give_up_s)

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def sessions(self, workspace_id: str) -> list[m.SessionBody]:
        """Return all sessions, last used first. They are read in pages."""
        sessions: dict[str, m.SessionBody] = {}
        after: str | None = None
        while True:
            params = {"after": after}
            page = await self._inside("GET", workspace_id, "sessions", params=params, reply=list[m.SessionBody])
            new = {session.id: session for session in page if session.id not in sessions}
            sessions |= new
            if not new:
                return list(sessions.values())
            after = f"{page[-1].updated_at}:{page[-1].id}"

    async def create_session(self, workspace_id: str, title: str = "") -> m.SessionBody:
        body = m.CreateSession(title=title)
        return await self._inside("POST", workspace_id, "sessions", body=body, repeat=True, reply=m.SessionBody)

    async def session(self, workspace_id: str, session_id: str) -> m.SessionBody:
        return await self._inside("GET", workspace_id, "sessions", session_id, reply=m.SessionBody)

    async def change_session(
        self,
        workspace_id: str,
        session_id: str,
        *,
        title: str | None = None,
        model: str | None = None,
        effort: Effort | None = None,
        mode: Mode | None = None,
    ) -> m.SessionBody:
        """Set what is not None. An empty model selects the configured one, an empty effort the model's default."""
        body = m.UpdateSession(title=title, model=model, effort=effort, mode=mode)
        params, parts = {"client_id": self.client_id}, ("sessions", session_id)
        return await self._inside("PUT", workspace_id, *parts, body=body, params=params, reply=m.SessionBody)

    async def rename_session(self, workspace_id: str, session_id: str, title: str) -> m.SessionBody:
        return await self.change_session(workspace_id, session_id, title=title)

    async def delete_session(self, workspace_id: str, session_id: str) -> None:
        """Cancel the session's Runs, then delete it."""
        await self._inside_raw("DELETE", workspace_id, "sessions", session_id)

    async def messages(
        self, workspace_id: str, session_id: str, *, after: str | None = None, limit: int | None = None
    ) -> list[m.MessageBody]:
        """Return one page of the transcript: the messages that follow message `after`, none after the last. A page
        may have fewer messages than `limit`."""
        parts, params = ("sessions", session_id, "messages"), {"after": after, "limit": limit}
        return await self._inside("GET", workspace_id, *parts, params=params, reply=list[m.MessageBody])

    async def all_messages(
        self, workspace_id: str, session_id: str, after: str | None = None
    ) -> AsyncIterator[m.MessageBody]:
        """Yield the transcript, page by page. The server ends a page early if it has many bytes."""
        while page := await self.messages(workspace_id, session_id, after=after, limit=PAGE_MESSAGES):
            if page[-1].id == after:
                return  # the same page again: the server does not support pages
            for message in page:
                yield message
            after = page[-1].id

    async def fork_session(self, workspace_id: str, session_id: str, message_id: str = "") -> m.SessionBody:
        """Create a session with a copy of the transcript up to this message."""
        body = m.ForkSession(message_id=message_id)
        return await self._inside("POST", workspace_id, "sessions", session_id, "fork", body=body, reply=m.SessionBody)

    async def export_session(
        self, workspace_id: str, session_id: str, form: Literal["md", "json", "html"] = "md"
    ) -> bytes:
        """Return the transcript as a document."""
        return b"".join([piece async for piece in self.export_pieces(workspace_id, session_id, form)])

    async def export_pieces(
        self, workspace_id: str, session_id: str, form: Literal["md", "json", "html"] = "md"
    ) -> AsyncIterator[bytes]:
        """Yield the transcript as a document, piece by piece: it may not fit into memory."""
        path, params = quoted_path("workspaces", workspace_id, "sessions", session_id, "export"), {"format": form}

        async def opened() -> httpx2.Response:
            return await self._transport.open_stream(path, params, {"accept": "*/*"})

        response = await retry_if_refused(lambda: self._reopening(workspace_id, opened), self.restart)
        async for piece in self._transport.pieces(response):
            yield piece

    async def lane(self, workspace_id: str, session_id: str, **params: int | None) -> LaneBody:
        """Return a page of the timeline of a session. `params`: from, to, before, limit."""
        return await self._inside("GET", workspace_id, "sessions", session_id, "lane", params=params, reply=LaneBody)

    async def changed_files(self, workspace_id: str, session_id: str) -> m.ChangedFiles:
        """Return the files that the Runs of a session changed."""
        return await self._inside("GET", workspace_id, "sessions", session_id, "files", reply=m.ChangedFiles)

    async def undo(self, workspace_id: str, session_id: str, run_id: str | None = None) -> UndoReply:
        """Restore the files that this Run changed, or the last Run that changed any."""
        body = UndoRun(run_id=run_id)
        return await self._inside("POST", workspace_id, "sessions", session_id, "undo", body=body, reply=UndoReply)

    async def redo(self, workspace_id: str, session_id: str) -> UndoReply:
        """Take back the last undo or rewind of files."""
        return await self._inside("POST", workspace_id, "sessions", session_id, "redo", reply=UndoReply)

    async def rewind(self, workspace_id: str, session_id: str, message_id: str, scope: RewindScope) -> RewindReply:
        """Return to the state before this prompt."""
        body = RewindSession(message_id=message_id, scope=scope)
        return await self._inside("POST", workspace_id, "sessions", session_id, "rewind", body=body, reply=RewindReply)

    async def extensions(self, workspace_id: str) -> list[ExtensionBody]:
        """Return the MCP servers, skills, commands, agents, hooks and language servers, with their states."""
        return await self._inside("GET", workspace_id, "extensions", reply=list[ExtensionBody])

    async def commands(self, workspace_id: str) -> list[PromptCommandBody]:
        """Return the prompts that `SubmitPrompt.expand` understands as `/name arguments`."""
        return await self._inside("GET", workspace_id, "commands", reply=list[PromptCommandBody])

    async def file_names(self, workspace_id: str, partial: str) -> list[str]:
        """Return files whose names contain all letters of a partial name, the best match first."""
        return await self._inside("GET", workspace_id, "file-names", params={"q": partial}, reply=list[str])

    async def start_mcp_server(self, workspace_id: str, name: str, *, again: bool = False) -> ExtensionBody:
        """Start an MCP server, or with `again` restart it. Return its state, also if that failed."""
        action = "restart" if again else "test"
        return await self._inside(
            "POST", workspace_id, "mcp", name, action, reply=ExtensionBody, answer_s_max=MCP_S_MAX
        )

    async def jobs(self, workspace_id: str, session_id: str) -> list[JobBody]:
        """Return the kept commands of a session."""
        return await self._inside("GET", workspace_id, "sessions", session_id, "jobs", reply=list[JobBody])

    async def job_output(self, workspace_id: str, session_id: str, job_id: str) -> JobOutput:
        """Return a kept command with its recent output."""
        return await self._inside("GET", workspace_id, "sessions", session_id, "jobs", job_id, reply=JobOutput)

    async def end_job(self, workspace_id: str, session_id: str, job_id: str) -> JobBody:
        """End a kept command. It may have ended."""
        parts = ("sessions", session_id, "jobs", job_id, "end")
        return await self._inside("POST", workspace_id, *parts, repeat=True, reply=JobBody)

    async def shell(self, workspace_id: str, session_id: str, command: str) -> m.ShellReply:
        """Run a shell command of the user. It becomes part of the transcript."""
        parts, body = ("agent", "sessions", session_id, "shell"), m.RunShell(command=command)
        return await self._inside(
            "POST", workspace_id, *parts, body=body, answer_s_max=USER_COMMAND_S_MAX + ANSWER_S_MAX, reply=m.ShellReply
        )

    # --- approvals and questions --------------------------------------------------------------------------------------

    async def permissions(self, workspace_id: str) -> list[m.PermissionRequest]:
        """Return the pending approvals."""
        return await self._inside("GET", workspace_id, "permissions", reply=list[m.PermissionRequest])

    async def answer_permission(
        self,
        workspace_id: str,
        permission_id: str,
        action: Answer,
        message: str = "",
        binding: str = "",
        rules: Sequence[str] = (),
    ) -> m.Resolved:
        """Answer an approval; the first answer wins. The model receives the message of a denial.

        `binding` is that of the request that the user saw. The server refuses the answer if the pending one differs.
        `rules`: to grant for the session, or always, instead of the offered rule."""
        body = m.GrantPermission(id=permission_id, action=action, message=message, binding=binding, rules=list(rules))
        return await self._answer(workspace_id, "permissions", "grant", body=body)

    async def grants(self, workspace_id: str) -> list[m.GrantBody]:
        """Return the standing grants: rules allowed for a session, or always."""
        return await self._inside("GET", workspace_id, "permissions", "grants", reply=list[m.GrantBody])

    async def forget_grant(self, workspace_id: str, grant_id: str) -> None:
        """Revoke a standing grant."""
        await self._inside_raw("DELETE", workspace_id, "permissions", "grants", grant_id)

    async def questions(self, workspace_id: str) -> list[m.QuestionBatch]:
        """Return the pending questions of models."""
        return await self._inside("GET", workspace_id, "questions", reply=list[m.QuestionBatch])

    async def answer_questions(
        self, workspace_id: str, batch_id: str, responses: list[m.QuestionResponse]
    ) -> m.Resolved:
        body = m.AnswerQuestions(batch_request_id=batch_id, responses=responses)
        return await self._answer(workspace_id, "questions", "answer", body=body)

    async def cancel_questions(self, workspace_id: str, batch_id: str) -> m.Resolved:
        """Decline to answer."""
        body = m.CancelQuestions(batch_request_id=batch_id)
        return await self._answer(workspace_id, "questions", "cancel", body=body)

    async def _answer(self, workspace_id: str, *parts: str, body: msgspec.Struct) -> m.Resolved:
        params = {"client_id": self.client_id}
        return await self._inside("POST", workspace_id, *parts, body=body, params=params, reply=m.Resolved)

    # --- runs ---------------------------------------------------------------------------------------------------------

    async def submit(self, workspace_id: str, prompt: m.SubmitPrompt) -> m.Receipt:
        """Submit a prompt. Its run_id is the idempotency key: a submit that has one can be repeated."""
        repeat = bool(prompt.run_id)
        return await self._inside("POST", workspace_id, "agent", body=prompt, repeat=repeat, reply=m.Receipt)

    async def summarize(self, workspace_id: str, session_id: str) -> m.Receipt:
        """Start a Run that replaces the session's context for the model by a summary."""
        parts = ("agent", "sessions", session_id, "summarize")
        return await self._inside("POST", workspace_id, *parts, reply=m.Receipt)

    async def run(self, workspace_id: str, run_id: str) -> m.RunBody:
        return await self._inside("GET", workspace_id, "agent", "runs", run_id, reply=m.RunBody)

    async def session_runs(self, workspace_id: str, session_id: str) -> list[m.RunBody]:
        parts = ("agent", "sessions", session_id, "runs")
        return await self._inside("GET", workspace_id, *parts, reply=list[m.RunBody])

    async def wait_run(self, workspace_id: str, run_id: str, timeout_s: float | None = None) -> m.RunBody:
        """Return the Run once it has ended, or as it is after `timeout_s`."""
        parts, deadline = ("agent", "runs", run_id, "wait"), None if timeout_s is None else loop_time() + timeout_s
        while True:
            wait_s = WAIT_S if deadline is None else max(0.0, min(WAIT_S, deadline - loop_time()))
            options = {"params": {"timeout_s": wait_s}, "answer_s_max": wait_s + ANSWER_S_MAX}
            run = await self._inside("GET", workspace_id, *parts, **options, reply=m.RunBody)
            if run.state == "ended" or (deadline is not None and loop_time() >= deadline):
                return run

    async def cancel_run(self, workspace_id: str, run_id: str) -> m.CancelReply:
        """Cancel this Run, queued or active, and no other."""
        return await self._inside("POST", workspace_id, "agent", "runs", run_id, "cancel", reply=m.CancelReply)

    async def cancel_session(self, workspace_id: str, session_id: str) -> m.CancelReply:
        """Cancel every Run of the session accepted so far."""
        return await self._inside("POST", workspace_id, "agent", "sessions", session_id, "cancel", reply=m.CancelReply)

    async def edit_run(
        self, workspace_id: str, run_id: str, prompt: str, attachments: list[m.AttachmentBody] | None = None
    ) -> m.RunBody:
        """Replace the prompt of a queued Run, and its attachments unless they are None."""
        body = m.EditPrompt(prompt=prompt, attachments=attachments)
        return await self._inside("PATCH", workspace_id, "agent", "runs", run_id, body=body, reply=m.RunBody)

    async def move_run(self, workspace_id: str, run_id: str, before: str | None = None) -> m.RunBody:
        """Move a queued Run before another one, or to the end."""
        body = m.MoveInQueue(before=before)
        return await self._inside("POST", workspace_id, "agent", "runs", run_id, "move", body=body, reply=m.RunBody)

    async def fold_run(self, workspace_id: str, run_id: str) -> m.RunBody:
        """Fold a queued Run into the active one at its next Step."""
        return await self._inside("POST", workspace_id, "agent", "runs", run_id, "fold", reply=m.RunBody)

    async def clear_queue(self, workspace_id: str, session_id: str) -> m.CancelReply:
        """Cancel every queued Run of the session. The active one continues."""
        parts = ("agent", "sessions", session_id, "queue", "clear")
        return await self._inside("POST", workspace_id, *parts, reply=m.CancelReply)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _call(self, method: str, path: str, *, reply: type[R], **options: Any) -> R:
        async def send() -> bytes:
            return await self._transport.request(method, path, **options)

        body = await retry_if_refused(send, self.restart) if method == "GET" else await send()
        return decode_reply(method, path, body, reply)

    async def _inside(self, method: str, workspace_id: str, *parts: str, reply: type[R], **options: Any) -> R:
        body = await self._inside_raw(method, workspace_id, *parts, **options)
        return decode_reply(method, quoted_path("workspaces", workspace_id, *parts), body, reply)

    async def _inside_raw(
        self, method: str, workspace_id: str, *parts: str, repeat: bool = False, **options: Any
    ) -> bytes:
        """`repeat`: the request may be sent again if a server refused it. That is always so for a GET."""
        path = quoted_path("workspaces", workspace_id, *parts)

        async def send() -> bytes:
            return await self._reopening(workspace_id, lambda: self._transport.request(method, path, **options))

        return await retry_if_refused(send, self.restart) if repeat or method == "GET" else await send()

    async def _reopening(self, workspace_id: str, call: Callable[[], Awaitable[R]]) -> R:
        """Return the result of the call. It is repeated once if the workspace had to be reopened."""
        try:
            return await call()
        except (WorkspaceNotFound, WorkspaceClosing):  # refused before it had an effect
            if await self._reopen(workspace_id) != workspace_id:
                raise
        return await call()

    async def _reopen(self, workspace_id: str) -> str:
        """Reopen a workspace that the server no longer has open. Its id changes only if the store does."""
        path = self._paths.get(workspace_id)
        if path is None:
            raise WorkspaceNotFound(f"Workspace {workspace_id!r} is not open on {self.host}. Open its directory first.")
        return (await self.create_workspace(path)).id
