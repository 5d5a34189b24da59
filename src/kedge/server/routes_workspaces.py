"""Routes about workspaces and sessions."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

import kedge
from kedge.core.ids import check_client_id
from kedge.core.records import SessionRecord
from kedge.engine.engine import Engine
from kedge.engine.workspaces import Workspace
from kedge.errors import Invalid, ShuttingDown, TooLarge, WrongType
from kedge.server.app import Call, Raw, Route
from kedge.server.stream import EventsQuery, Streams
from kedge.wire import export
from kedge.wire import models as m
from kedge.wire.codec import message_body, session_body
from kedge.wire.limits import PAGE_ITEMS_MAX, TITLE_CHARS_MAX
from kedge.wire.openapi import RouteSpec

#: Messages of one export. Items.
EXPORT_MESSAGES_MAX = 100_000


class ClientQuery(Struct):
    client_id: str = ""


class MessagesQuery(Struct):
    after: str | None = None
    limit: int = PAGE_ITEMS_MAX


class SearchQuery(Struct):
    q: str = ""
    limit: int = 50


class ExportQuery(Struct):
    format: Literal["md", "json", "html"] = "md"


class WorkspaceRoutes:
    def __init__(self, engine: Engine, streams: Streams, data_dir: str) -> None:
        self._engine = engine
        self._streams = streams
        self._data_dir = data_dir

    # --- workspaces ----------------------------------------------------------------------------------------------

    async def create(self, call: Call) -> m.WorkspaceBody:
        body: m.CreateWorkspace = call.body
        client_id = check_client_id(body.client_id)
        if not body.path:
            raise Invalid("path is needed: the directory to work in")
        if self._engine.is_closing:
            raise ShuttingDown("The server is shutting down; try again in a moment.")
        return self._body(await self._engine.workspaces.open(check_text(body.path, "path"), client_id))

    async def all(self, call: Call) -> list[m.WorkspaceBody]:
        return [self._body(workspace) for workspace in self._engine.workspaces.all()]

    async def get(self, call: Call) -> m.WorkspaceBody:
        return self._body(self._workspace(call))

    async def release(self, call: Call) -> m.Ok:
        self._engine.workspaces.release(call.path["id"], check_client_id(call.query.client_id))
        return m.Ok()

    async def look_at(self, call: Call) -> m.Ok:
        client_id = check_client_id(call.query.client_id)
        workspace = self._workspace(call)
        if session_id := call.body.session_id:
            await self._engine.session(workspace, session_id)
        self._engine.workspaces.look_at(workspace, client_id, session_id)
        return m.Ok()

    async def config(self, call: Call) -> dict[str, Any]:
        return self._workspace(call).config.shown()

    async def search(self, call: Call) -> list[m.SearchHitBody]:
        query: SearchQuery = call.query
        hits = await self._engine.search(self._workspace(call), check_text(query.q, "q"), page_limit(query.limit))
        return [
            m.SearchHitBody(
                session_id=hit.session_id, message_id=hit.message_id, session_title=title, snippet=hit.snippet
            )
            for hit, title in hits
        ]

    # --- sessions ------------------------------------------------------------------------------------------------

    async def sessions(self, call: Call) -> list[m.SessionBody]:
        workspace = self._workspace(call)
        return [_session(workspace, session) for session in await self._engine.sessions(workspace)]

    async def create_session(self, call: Call) -> m.SessionBody:
        workspace = self._workspace(call)
        session = await self._engine.create_session(workspace, _check_title(call.body.title))
        return _session(workspace, session)

    async def session(self, call: Call) -> m.SessionBody:
        workspace = self._workspace(call)
        return _session(workspace, await self._engine.session(workspace, call.path["sid"]))

    async def rename_session(self, call: Call) -> m.SessionBody:
        workspace = self._workspace(call)
        title = _check_title(call.body.title)
        return _session(workspace, await self._engine.rename_session(workspace, call.path["sid"], title))

    async def delete_session(self, call: Call) -> m.Ok:
        await self._engine.delete_session(self._workspace(call), call.path["sid"])
        return m.Ok()

    async def messages(self, call: Call) -> list[m.MessageBody]:
        query: MessagesQuery = call.query
        workspace = self._workspace(call)
        found = await self._engine.messages(workspace, call.path["sid"], query.after, page_limit(query.limit))
        return [message_body(message) for message in found]

    async def fork(self, call: Call) -> m.SessionBody:
        workspace = self._workspace(call)
        if not call.body.message_id:
            raise Invalid("message_id is needed: the last message the new session keeps")
        session = await self._engine.fork_session(workspace, call.path["sid"], call.body.message_id)
        return _session(workspace, session)

    async def export(self, call: Call) -> Raw:
        query: ExportQuery = call.query
        workspace = self._workspace(call)
        session = await self._engine.session(workspace, call.path["sid"])
        messages = await self._engine.messages(workspace, session.id, None, EXPORT_MESSAGES_MAX)
        match query.format:
            case "json":
                return Raw(export.as_json(session, messages), "application/json")
            case "html":
                return Raw(export.as_html(session, messages).encode(), "text/html; charset=utf-8")
            case "md":
                return Raw(export.as_markdown(session, messages).encode(), "text/markdown; charset=utf-8")

    # --- helpers -------------------------------------------------------------------------------------------------

    def _workspace(self, call: Call) -> Workspace:
        return self._engine.workspaces.get(call.path["id"])

    def _body(self, workspace: Workspace) -> m.WorkspaceBody:
        return m.WorkspaceBody(
            id=workspace.id,
            path=workspace.record.path,
            data_dir=self._data_dir,
            version=kedge.__version__,
            config=workspace.config.shown(),
        )

    def routes(self) -> list[Route]:
        workspace, session = "/workspaces/{id}", "/workspaces/{id}/sessions/{sid}"
        sessions = list[m.SessionBody]
        table: list[tuple[RouteSpec, Any]] = [
            (
                RouteSpec("POST", "/workspaces", "Open a directory", body=m.CreateWorkspace, reply=m.WorkspaceBody),
                self.create,
            ),
            (RouteSpec("GET", "/workspaces", "Open workspaces", reply=list[m.WorkspaceBody]), self.all),
            (RouteSpec("GET", workspace, "One workspace", reply=m.WorkspaceBody), self.get),
            (
                RouteSpec("DELETE", workspace, "Release a client's claim", query=ClientQuery, reply=m.Ok),
                self.release,
            ),
            (
                RouteSpec(
                    "POST",
                    f"{workspace}/current-session",
                    "Tell which session a client looks at",
                    body=m.CurrentSession,
                    query=ClientQuery,
                    reply=m.Ok,
                ),
                self.look_at,
            ),
            (RouteSpec("GET", f"{workspace}/config", "Configuration, no secrets", reply=dict[str, Any]), self.config),
            (
                RouteSpec(
                    "GET",
                    f"{workspace}/events",
                    "The event stream",
                    query=EventsQuery,
                    media_type="text/event-stream",
                ),
                self._streams.events,
            ),
            (
                RouteSpec(
                    "GET",
                    f"{workspace}/search",
                    "Search the messages",
                    query=SearchQuery,
                    reply=list[m.SearchHitBody],
                ),
                self.search,
            ),
            (RouteSpec("GET", f"{workspace}/sessions", "Sessions, last used first", reply=sessions), self.sessions),
            (
                RouteSpec("POST", f"{workspace}/sessions", "A new session", body=m.CreateSession, reply=m.SessionBody),
                self.create_session,
            ),
            (RouteSpec("GET", session, "One session", reply=m.SessionBody), self.session),
            (
                RouteSpec("PUT", session, "Rename a session", body=m.UpdateSession, reply=m.SessionBody),
                self.rename_session,
            ),
            (RouteSpec("DELETE", session, "Cancel its runs, then delete it", reply=m.Ok), self.delete_session),
            (
                RouteSpec(
                    "GET",
                    f"{session}/messages",
                    "The transcript",
                    query=MessagesQuery,
                    reply=list[m.MessageBody],
                ),
                self.messages,
            ),
            (
                RouteSpec(
                    "POST",
                    f"{session}/fork",
                    "A new session from this one's beginning",
                    body=m.ForkSession,
                    reply=m.SessionBody,
                ),
                self.fork,
            ),
            (
                RouteSpec(
                    "GET",
                    f"{session}/export",
                    "The transcript as a document",
                    query=ExportQuery,
                    media_type="text/markdown",
                ),
                self.export,
            ),
        ]
        return [Route(spec, handler) for spec, handler in table]


def _session(workspace: Workspace, session: SessionRecord) -> m.SessionBody:
    busy, clients = workspace.is_busy(session.id), workspace.attached_clients(session.id)
    return session_body(session, is_busy=busy, attached_clients=clients)


def check_text(text: str, field: str) -> str:
    """Text that every store can hold."""
    if "\0" in text:
        raise WrongType(f"{field} holds a NUL character, which cannot be stored")
    return text


def page_limit(limit: int) -> int:
    if not 1 <= limit <= PAGE_ITEMS_MAX:
        raise WrongType(f"limit must be from 1 to {PAGE_ITEMS_MAX}")
    return limit


def _check_title(title: str) -> str:
    if len(title) > TITLE_CHARS_MAX:
        raise TooLarge(f"title has more than {TITLE_CHARS_MAX} characters")
    return check_text(" ".join(title.split()), "title")
