"""Routes about workspaces and sessions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

import kedge
from kedge.config.model_names import ModelListing, list_models
from kedge.core.ids import check_client_id
from kedge.engine.engine import Engine
from kedge.engine.workspaces import Workspace
from kedge.errors import Invalid, ShuttingDown, TooLarge, WrongType
from kedge.server.app import Call, Raw, Route, gathered, route
from kedge.server.stream import EventsQuery, Streams
from kedge.wire import export
from kedge.wire import models as m
from kedge.wire.codec import message_body, session_body
from kedge.wire.limits import MODELS_MAX, PAGE_ITEMS_MAX, TITLE_CHARS_MAX

#: Messages of one export. Items.
EXPORT_MESSAGES_MAX = 100_000


class ClientQuery(Struct):
    client_id: str = ""


PageLimit = Annotated[int, Meta(ge=1, le=PAGE_ITEMS_MAX)]


class MessagesQuery(Struct):
    after: str | None = None
    limit: PageLimit = PAGE_ITEMS_MAX


class SearchQuery(Struct):
    q: str = ""
    limit: PageLimit = 50


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
        workspace = self._workspace(call)
        workspace.look_at_config()
        return workspace.config.masked()

    async def models(self, call: Call) -> list[m.ModelBody]:
        workspace = self._workspace(call)
        workspace.look_at_config()
        return [_model(offer) for offer in list_models(workspace.config)[-MODELS_MAX:]]

    async def search(self, call: Call) -> list[m.SearchHitBody]:
        query: SearchQuery = call.query
        hits = await self._engine.search(self._workspace(call), check_text(query.q, "q"), query.limit)
        return [
            m.SearchHitBody(
                session_id=hit.session_id, message_id=hit.message_id, session_title=title, snippet=hit.snippet
            )
            for hit, title in hits
        ]

    # --- sessions ------------------------------------------------------------------------------------------------

    async def sessions(self, call: Call) -> Iterator[m.SessionBody]:
        workspace = self._workspace(call)
        found = await self._engine.sessions(workspace)
        return (session_body(workspace.view(session)) for session in found)

    async def create_session(self, call: Call) -> m.SessionBody:
        workspace = self._workspace(call)
        session = await self._engine.create_session(workspace, _check_title(call.body.title))
        return session_body(workspace.view(session))

    async def session(self, call: Call) -> m.SessionBody:
        workspace = self._workspace(call)
        return session_body(workspace.view(await self._engine.session(workspace, call.path["sid"])))

    async def change_session(self, call: Call) -> m.SessionBody:
        workspace = self._workspace(call)
        body: m.UpdateSession = call.body
        title = None if body.title is None else _check_title(body.title)
        model = None if body.model is None else check_text(body.model, "model")
        if title is None and model is None:
            raise WrongType("title or model is needed: what to change")
        changed = await self._engine.change_session(workspace, call.path["sid"], title, model)
        return session_body(workspace.view(changed))

    async def delete_session(self, call: Call) -> m.Ok:
        await self._engine.delete_session(self._workspace(call), call.path["sid"])
        return m.Ok()

    async def messages(self, call: Call) -> Iterator[m.MessageBody]:
        query: MessagesQuery = call.query
        workspace = self._workspace(call)
        found = await self._engine.messages(workspace, call.path["sid"], query.after, query.limit)
        return map(message_body, found)

    async def fork(self, call: Call) -> m.SessionBody:
        workspace = self._workspace(call)
        if not call.body.message_id:
            raise Invalid("message_id is needed: the last message the new session keeps")
        session = await self._engine.fork_session(workspace, call.path["sid"], call.body.message_id)
        return session_body(workspace.view(session))

    async def export(self, call: Call) -> Raw:
        query: ExportQuery = call.query
        workspace = self._workspace(call)
        session = await self._engine.session(workspace, call.path["sid"])
        messages = await self._engine.messages(workspace, session.id, None, EXPORT_MESSAGES_MAX)
        match query.format:
            case "json":
                pieces, media_type = export.as_json(session, messages), "application/json"
            case "html":
                pieces, media_type = export.as_html(session, messages), "text/html; charset=utf-8"
            case "md":
                pieces, media_type = export.as_markdown(session, messages), "text/markdown; charset=utf-8"
        return Raw(b"".join(await gathered(pieces)), media_type)

    # --- helpers -------------------------------------------------------------------------------------------------

    def _workspace(self, call: Call) -> Workspace:
        return self._engine.workspaces.get(call.path["id"])

    def _body(self, workspace: Workspace) -> m.WorkspaceBody:
        return m.WorkspaceBody(
            id=workspace.id,
            path=workspace.record.path,
            data_dir=self._data_dir,
            version=kedge.__version__,
            config=workspace.config.masked(),
            skip_approvals=workspace.skip_approvals,
        )

    def routes(self) -> list[Route]:
        all_, one, session = "/workspaces", "/workspaces/{id}", "/workspaces/{id}/sessions/{sid}"
        reply = m.SessionBody
        messages, hits = list[m.MessageBody], list[m.SearchHitBody]
        stream = "text/event-stream"
        make, rename = m.CreateSession, m.UpdateSession
        return [
            route("POST", all_, self.create, "Open a directory", body=m.CreateWorkspace, reply=m.WorkspaceBody),
            route("GET", all_, self.all, "Open workspaces", reply=list[m.WorkspaceBody]),
            route("GET", one, self.get, "One workspace", reply=m.WorkspaceBody),
            route("DELETE", one, self.release, "Release a client's claim", query=ClientQuery, reply=m.Ok),
            route(
                *("POST", f"{one}/current-session", self.look_at, "Tell which session a client looks at"),
                body=m.CurrentSession,
                query=ClientQuery,
                reply=m.Ok,
            ),
            route("GET", f"{one}/config", self.config, "Configuration, without secrets", reply=dict[str, Any]),
            route("GET", f"{one}/models", self.models, "The models that can be chosen", reply=list[m.ModelBody]),
            route("GET", f"{one}/events", self._streams.events, "The events", query=EventsQuery, media_type=stream),
            route("GET", f"{one}/search", self.search, "Search the messages", query=SearchQuery, reply=hits),
            route("GET", f"{one}/sessions", self.sessions, "Sessions, last used first", reply=list[m.SessionBody]),
            route("POST", f"{one}/sessions", self.create_session, "A new session", body=make, reply=reply),
            route("GET", session, self.session, "One session", reply=reply),
            route("PUT", session, self.change_session, "Rename a session", body=rename, reply=reply),
            route("DELETE", session, self.delete_session, "Cancel its runs, then delete it", reply=m.Ok),
            route("GET", f"{session}/messages", self.messages, "The transcript", query=MessagesQuery, reply=messages),
            route("POST", f"{session}/fork", self.fork, "Begin another like this", body=m.ForkSession, reply=reply),
            route(
                *("GET", f"{session}/export", self.export, "The transcript as a document"),
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
        about=offer.about,
    )


def check_text(text: str, field: str) -> str:
    """Text that every store can hold."""
    if "\0" in text:
        raise WrongType(f"{field} holds a NUL character, which cannot be stored")
    return text


def _check_title(title: str) -> str:
    if len(title) > TITLE_CHARS_MAX:
        raise TooLarge(f"title has more than {TITLE_CHARS_MAX} characters")
    return check_text(" ".join(title.split()), "title")
