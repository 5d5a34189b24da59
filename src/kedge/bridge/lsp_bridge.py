"""The bridge of language servers. It and its `lsp_` neighbours are the only modules that load pygls and lsprotocol.

It starts each server on its first use, keeps its open documents in step with what the agent wrote, and answers
questions of the server process. Everything that a language server sends is data: bounded, and never acted upon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

import msgspec
from lsprotocol import types

from kedge.bridge.bridge_peer import CallFailed, Peer
from kedge.bridge.lsp_connection import Connection, is_method_missing
from kedge.bridge.lsp_documents import Documents
from kedge.bridge.lsp_messages import (
    EDITED,
    QUERY,
    REPORT,
    EditedFile,
    EditedReply,
    Query,
    QueryReply,
    ServerReport,
    ServerSpec,
)
from kedge.bridge.lsp_results import changes_of, hover_text, places_of, symbols_of

#: Starts of one language server within `STARTS_S`. One that dies more often is broken. Items, seconds.
STARTS_MAX = 3
STARTS_S = 600.0
#: Limit of the first answer of a server: large projects are loaded before it. Seconds.
INITIALIZE_S = 45.0
#: Limit of an answer to a question. Seconds.
QUERY_S = 25.0
#: Requests in a row that a server did not answer in time: it hangs, and is ended. Items.
UNANSWERED_MAX = 3


class LanguageServer:
    """One language server, started on demand."""

    def __init__(self, spec: ServerSpec, root: str, peer: Peer) -> None:
        self.spec = spec
        self._root = root
        self._peer = peer
        self._starting = asyncio.Lock()
        self._starts: list[float] = []
        self._connection: Connection | None = None
        self._documents: Documents | None = None
        self._unanswered = 0

    async def edited(self, file: EditedFile) -> EditedReply:
        documents = await self._ready()
        documents.close_all(file.stale)
        reply = await documents.edited(file)
        self._check_lost()
        return reply

    async def query(self, query: Query) -> QueryReply:
        documents = await self._ready()
        documents.close_all(query.stale)
        if query.path:
            documents.sync(query.path, query.language, query.text)
        try:
            async with asyncio.timeout(QUERY_S):
                reply = await self._answer(query)
        except TimeoutError:
            await self._count_unanswered()
            raise CallFailed(f"{self.spec.name} did not answer within {QUERY_S:g} s") from None
        self._unanswered = 0
        return reply

    async def close(self) -> None:
        connection, self._connection, self._documents = self._connection, None, None
        if connection is not None:
            await connection.close()

    async def _answer(self, query: Query) -> QueryReply:
        connection = self._connection
        if connection is None:
            raise CallFailed(f"{self.spec.name} ended unexpectedly")
        document = types.TextDocumentIdentifier(uri=connection.uri(query.path))
        position = types.Position(line=query.line, character=query.character)
        match query.operation:
            case "definition":
                answer = await connection.request(
                    types.TEXT_DOCUMENT_DEFINITION, types.DefinitionParams(document, position)
                )
                return places_of(answer)
            case "references":
                context = types.ReferenceContext(include_declaration=True)
                answer = await connection.request(
                    types.TEXT_DOCUMENT_REFERENCES, types.ReferenceParams(context, document, position)
                )
                return places_of(answer)
            case "hover":
                answer = await connection.request(types.TEXT_DOCUMENT_HOVER, types.HoverParams(document, position))
                return hover_text(answer)
            case "symbols" if query.path:
                answer = await connection.request(
                    types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, types.DocumentSymbolParams(document)
                )
                return symbols_of(answer, query.path)
            case "symbols":
                answer = await connection.request(types.WORKSPACE_SYMBOL, types.WorkspaceSymbolParams(query.name))
                return symbols_of(answer, "")
            case "rename":
                answer = await connection.request(
                    types.TEXT_DOCUMENT_RENAME, types.RenameParams(document, position, query.name)
                )
                return changes_of(answer)

    async def _ready(self) -> Documents:
        async with self._starting:
            if self._connection is not None and self._connection.lost:
                await self.close()
            if self._documents is None:
                self._documents = await self._start()
            return self._documents

    async def _start(self) -> Documents:
        now = asyncio.get_running_loop().time()
        self._starts = [at for at in self._starts if now - at < STARTS_S]
        if len(self._starts) >= STARTS_MAX:
            raise self._failed(f"it failed {STARTS_MAX} times; it is started again after some minutes")
        self._starts.append(now)
        self._report("starting")
        connection = Connection(self.spec, self._root, self._on_lost)
        try:
            async with asyncio.timeout(INITIALIZE_S):
                await connection.start()
        except BaseException as error:  # cancelled as well: a server that is half started is ended
            await connection.close()
            if isinstance(error, TimeoutError):
                raise self._failed(f"it did not answer within {INITIALIZE_S:g} s") from None
            if isinstance(error, (CallFailed, OSError)):
                raise self._failed(str(error)) from None
            if isinstance(error, asyncio.CancelledError):
                self._report("idle")
            raise
        self._connection = connection
        self._unanswered = 0
        self._report("ready")
        return Documents(connection)

    def _failed(self, error: str) -> CallFailed:
        self._report("failed", error)
        return CallFailed(f"{self.spec.name}: {error}")

    def _on_lost(self, why: str) -> None:
        self._report("failed", why)

    def _check_lost(self) -> None:
        if self._connection is not None and self._connection.lost:
            raise CallFailed(f"{self.spec.name}: {self._connection.lost}")

    async def _count_unanswered(self) -> None:
        self._unanswered += 1
        if self._unanswered >= UNANSWERED_MAX:
            await self.close()
            self._report("failed", "it does not answer; it is started again with its next use")

    def _report(self, condition: Any, error: str = "") -> None:
        report = ServerReport(self.spec.name, condition, error)
        task = asyncio.get_running_loop().create_task(self._peer.notify(REPORT, report))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


class LspBridge:
    """The Bridge of language servers. The working directory of the process is the workspace."""

    def __init__(self, peer: Peer, root: str) -> None:
        self._peer = peer
        self._root = root
        self._servers: dict[str, LanguageServer] = {}

    async def on_request(self, method: str, params: msgspec.Raw) -> Any:
        try:
            if method == EDITED:
                file = msgspec.json.decode(params, type=EditedFile)
                return await (await self._server(file.server)).edited(file)
            if method == QUERY:
                query = msgspec.json.decode(params, type=Query)
                return await (await self._server(query.server)).query(query)
        except Exception as error:
            if is_method_missing(error):
                raise CallFailed("the language server does not support this") from None
            raise
        raise CallFailed(f"unknown method {method}")

    def on_notice(self, method: str, params: msgspec.Raw) -> None:
        pass

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def _server(self, spec: ServerSpec) -> LanguageServer:
        server = self._servers.get(spec.name)
        if server is not None and server.spec != spec:  # its configuration has changed
            await server.close()
            server = None
        if server is None:
            server = self._servers[spec.name] = LanguageServer(spec, self._root, self._peer)
        return server


def make(peer: Peer) -> LspBridge:
    return LspBridge(peer, os.getcwd())
