"""Routes of workspaces and sessions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

import kedge
from kedge.config.model_names import ModelListing, list_models
from kedge.core.ids import check_client_id
from kedge.core.records import SessionRecord
from kedge.engine.engine import Engine
from kedge.engine.workspace import Workspace
from kedge.errors import Invalid, ShuttingDown, TooLarge, WrongType
from kedge.server.asgi import HttpRequest, Pieces, Route, route
from kedge.slices import Slices
from kedge.wire import models as m
from kedge.wire.codec import message_body, session_body
from kedge.wire.export import EXPORT_FORMATS, ExportFormat
from kedge.wire.limits import MODELS_MAX, PAGE_BYTES_MAX, PAGE_ITEMS_MAX, TITLE_CHARS_MAX

#: Digits of a time in milliseconds that every store can hold.
INTEGER_DIGITS_MAX = 18


class ClientQuery(Struct):
    client_id: str = ""


PageLimit = Annotated[int, Meta(ge=1, le=PAGE_ITEMS_MAX)]


class KnownQuery(Struct):
    after: str = ""
    limit: PageLimit = PAGE_ITEMS_MAX


class MessagesQuery(Struct):
    after: str | None = None
    #: Instead of `after`: those directly before this message; empty: the last ones.
    before: str | None = None
    limit: PageLimit = PAGE_ITEMS_MAX


class SessionsQuery(Struct):
    #: `updated_at:id` of a session.
    after: str | None = None
    limit: PageLimit = PAGE_ITEMS_MAX


class SearchQuery(Struct):
    q: str = ""
    limit: PageLimit = 50


#: Longer than any partial name that has a match: a path has at most 4,096 bytes. Characters.
PARTIAL_NAME_CHARS_MAX = 4_096


class FileNamesQuery(Struct):
    q: Annotated[str, Meta(max_length=PARTIAL_NAME_CHARS_MAX)] = ""


class ExportQuery(Struct):
    format: Literal["md", "json", "html"] = "md"


class WorkspaceRoutes:
    def __init__(self, engine: Engine, data_dir: str) -> None:
        self._engine = engine
        self._data_dir = data_dir

    # --- workspaces ----------------------------------------------------------------------------------------------

    async def create(self, request: HttpRequest) -> m.WorkspaceBody:
        body: m.CreateWorkspace = request.body
        client_id = check_client_id(body.client_id)
        if not body.path:
            raise Invalid("path is missing: send the directory to open.")
        if self._engine.is_closing:
            raise ShuttingDown("The server is shutting down; try again in a moment.")
        return self.body(await self._engine.workspaces.open(check_text(body.path, "path"), client_id))

    async def all(self, request: HttpRequest) -> list[m.WorkspaceBody]:
        return [self.body(workspace) for workspace in self._engine.workspaces.all()]

    async def known(self, request: HttpRequest) -> list[m.KnownWorkspaceBody]:
        query: KnownQuery = request.query
        return [
            m.KnownWorkspaceBody(
                id=known.record.id,
                path=known.record.path,
                sessions=known.sessions,
                live_runs=known.live_runs,
                created_at=known.record.created_at,
                used_at=known.used_at,
                is_open=self._engine.workspaces.find(known.record.id) is not None,
                directory=directory,
            )
            for known, directory in await self._engine.known_workspaces.page(query.after, query.limit)
        ]

    async def remove(self, request: HttpRequest) -> m.Ok:
        await self._engine.known_workspaces.remove(request.path["id"], request.asker.user)
        return m.Ok()

    async def get(self, request: HttpRequest) -> m.WorkspaceBody:
        return self.body(self._workspace(request))

    async def release(self, request: HttpRequest) -> m.Ok:
        self._engine.workspaces.release(request.path["id"], check_client_id(request.query.client_id))
        return m.Ok()

    async def set_current_session(self, request: HttpRequest) -> m.Ok:
        client_id = check_client_id(request.query.client_id)
        workspace = self._workspace(request)
        if session_id := request.body.session_id:
            await self._engine.session(workspace, session_id)
        self._engine.workspaces.set_current_session(workspace, client_id, session_id)
        return m.Ok()

    async def config(self, request: HttpRequest) -> dict[str, Any]:
        workspace = self._workspace(request)
        await workspace.reload_config()
        return workspace.config.masked()

    async def models(self, request: HttpRequest) -> list[m.ModelBody]:
        workspace = self._workspace(request)
        await workspace.reload_config()
        return [_model(offer) for offer in list_models(workspace.config)[-MODELS_MAX:]]

    async def file_names(self, request: HttpRequest) -> list[str]:
        work = self._engine.file_names.matching(self._workspace(request), request.query.q)
        return await request.while_connected(work)

    async def search(self, request: HttpRequest) -> list[m.SearchHitBody]:
        query: SearchQuery = request.query
        hits = await self._engine.reports.search(self._workspace(request), check_text(query.q, "q"), query.limit)
        return [
            m.SearchHitBody(
                session_id=hit.session_id, message_id=hit.message_id, session_title=title, snippet=hit.snippet
            )
            for hit, title in hits
        ]

    # --- sessions ------------------------------------------------------------------------------------------------

    async def sessions(self, request: HttpRequest) -> Iterator[m.SessionBody]:
        workspace = self._workspace(request)
        query: SessionsQuery = request.query
        sessions = await self._engine.sessions(workspace, _session_after(query.after), query.limit, PAGE_BYTES_MAX)
        return (session_body(workspace.view(session)) for session in sessions)

    async def create_session(self, request: HttpRequest) -> m.SessionBody:
        workspace = self._workspace(request)
        await self._engine.modes.check(workspace, workspace.config.mode)
        session = await self._engine.create_session(workspace, _check_title(request.body.title))
        return session_body(workspace.view(session))

    async def session(self, request: HttpRequest) -> m.SessionBody:
        workspace = self._workspace(request)
        return session_body(workspace.view(await self._engine.session(workspace, request.path["sid"])))

    async def change_session(self, request: HttpRequest) -> m.SessionBody:
        workspace = self._workspace(request)
        body: m.UpdateSession = request.body
        title = None if body.title is None else _check_title(body.title)
        model = None if body.model is None else check_text(body.model, "model")
        session_id = request.path["sid"]
        has_text = title is not None or model is not None or body.effort is not None
        if not has_text and body.mode is None:
            raise WrongType("Nothing to change: send title, model, effort or mode.")
        if body.mode is not None:
            client_id, user = request.query.client_id, request.asker.user
            changed = await self._engine.modes.switch(workspace, session_id, body.mode, client_id, user)
        if has_text:
            changed = await self._engine.change_session(workspace, session_id, title, model, body.effort)
        return session_body(workspace.view(changed))

    async def delete_session(self, request: HttpRequest) -> m.Ok:
        await self._engine.delete_session(self._workspace(request), request.path["sid"], request.asker.user)
        return m.Ok()

    async def messages(self, request: HttpRequest) -> Iterator[m.MessageBody]:
        query: MessagesQuery = request.query
        workspace = self._workspace(request)
        session_id = request.path["sid"]
        if query.after is not None and query.before is not None:
            raise Invalid("Send after or before, not both.")
        messages = await self._engine.messages(
            workspace, session_id, query.after, query.limit, PAGE_BYTES_MAX, query.before
        )
        return map(message_body, messages)

    async def fork(self, request: HttpRequest) -> m.SessionBody:
        workspace = self._workspace(request)
        if not request.body.message_id:
            raise Invalid("message_id is missing: send the last message to copy into the new session.")
        session = await self._engine.fork_session(workspace, request.path["sid"], request.body.message_id)
        return session_body(workspace.view(session))

    async def export(self, request: HttpRequest) -> Pieces:
        query: ExportQuery = request.query
        workspace = self._workspace(request)
        session = await self._engine.session(workspace, request.path["sid"])
        document = EXPORT_FORMATS[query.format]()
        return Pieces(self._document(document, workspace, session), document.media_type)

    async def _document(
        self, document: ExportFormat, workspace: Workspace, session: SessionRecord
    ) -> AsyncGenerator[bytes, None]:
        slices = Slices()
        after: str | None = None
        with self._engine.workspaces.in_use(workspace):
            yield document.begin(session)
            while page := await self._engine.messages(workspace, session.id, after, PAGE_ITEMS_MAX, PAGE_BYTES_MAX):
                for message in page:
                    piece = document.message(message)
                    yield piece
                    await slices.count(len(piece))
                after = page[-1].id
            yield document.end()

    # --- helpers -------------------------------------------------------------------------------------------------

    def _workspace(self, request: HttpRequest) -> Workspace:
        return self._engine.workspaces.get(request.path["id"])

    def body(self, workspace: Workspace) -> m.WorkspaceBody:
        return m.WorkspaceBody(
            id=workspace.id,
            path=workspace.record.path,
            data_dir=self._data_dir,
            version=kedge.__version__,
            config=workspace.config.masked(),
            config_problem=workspace.config_problem,
        )

    def routes(self) -> list[Route]:
        all_, one = "/workspaces", "/workspaces/{id}"
        sessions, session = f"{one}/sessions", f"{one}/sessions/{{sid}}"
        workspaces, messages, models = list[m.WorkspaceBody], list[m.MessageBody], list[m.ModelBody]
        return [
            route("POST", all_, self.create, "Open a workspace", body=m.CreateWorkspace, reply=m.WorkspaceBody),
            route("GET", all_, self.all, "List the open workspaces", reply=workspaces, merged_by="id"),
            route(
                "GET",
                "/known-workspaces",
                self.known,
                "List the stored workspaces, open or not, by id",
                query=KnownQuery,
                reply=list[m.KnownWorkspaceBody],
            ),
            route(
                "DELETE", "/known-workspaces/{id}", self.remove, "Remove a workspace and all its sessions", reply=m.Ok
            ),
            route("GET", one, self.get, "Return a workspace", reply=m.WorkspaceBody),
            route("DELETE", one, self.release, "Release a client's claim", query=ClientQuery, reply=m.Ok),
            route(
                "POST",
                f"{one}/current-session",
                self.set_current_session,
                "Set the current session of a client",
                body=m.CurrentSession,
                query=ClientQuery,
                reply=m.Ok,
            ),
            route(
                "GET", f"{one}/config", self.config, "Return the configuration, without secrets", reply=dict[str, Any]
            ),
            route(
                "GET",
                f"{one}/models",
                self.models,
                "List the available models",
                reply=models,
                declared_session="workspace",
            ),
            route(
                "GET",
                f"{one}/file-names",
                self.file_names,
                "List the files whose names contain all letters of a partial name, at most 50",
                query=FileNamesQuery,
                reply=list[str],
                declared_access="act",
                declared_session="workspace",
            ),
            route(
                "GET",
                f"{one}/search",
                self.search,
                "Search the messages of a workspace",
                query=SearchQuery,
                reply=list[m.SearchHitBody],
            ),
            route(
                "GET",
                sessions,
                self.sessions,
                "List the sessions, last used first",
                query=SessionsQuery,
                reply=list[m.SessionBody],
            ),
            route("POST", sessions, self.create_session, "Create a session", body=m.CreateSession, reply=m.SessionBody),
            route("GET", session, self.session, "Return a session", reply=m.SessionBody),
            route(
                "PUT",
                session,
                self.change_session,
                "Change the title, the model, the effort or the mode of a session",
                body=m.UpdateSession,
                query=ClientQuery,
                reply=m.SessionBody,
            ),
            route("DELETE", session, self.delete_session, "Cancel the runs of a session and delete it", reply=m.Ok),
            route(
                "GET",
                f"{session}/messages",
                self.messages,
                "List the messages of a session",
                query=MessagesQuery,
                reply=messages,
            ),
            route("POST", f"{session}/fork", self.fork, "Fork a session", body=m.ForkSession, reply=m.SessionBody),
            route(
                "GET",
                f"{session}/export",
                self.export,
                "Export a session as a document",
                query=ExportQuery,
                media_type="text/markdown",
                other_media_types=("application/json", "text/html"),
            ),
        ]


def _model(offer: ModelListing) -> m.ModelBody:
    facts, price = offer.facts, offer.facts.price
    return m.ModelBody(
        model=offer.name,
        provider=offer.provider_name,
        context_window=facts.context_window or UNSET,
        output_tokens_max=facts.output_tokens_max or UNSET,
        input_price=price.input if price else UNSET,
        output_price=price.output if price else UNSET,
        images=UNSET if facts.takes_images is None else facts.takes_images,
        is_default=offer.is_default,
        is_small=offer.is_small,
        description=offer.description,
    )


def check_text(text: str, field: str) -> str:
    """Return the text. Raises WrongType if it contains a NUL character, which not every store accepts."""
    if "\0" in text:
        raise WrongType(f"{field} contains a NUL character; remove it.")
    return text


def _session_after(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    updated_at, separator, session_id = text.partition(":")
    if not separator or not updated_at.isascii() or not updated_at.isdigit() or len(updated_at) > INTEGER_DIGITS_MAX:
        raise WrongType("after must be the `updated_at:id` of a session.")
    return int(updated_at), session_id


def _check_title(title: str) -> str:
    if len(title) > TITLE_CHARS_MAX:
        raise TooLarge(f"title has more than {TITLE_CHARS_MAX} characters.")
    return check_text(" ".join(title.split()), "title")
