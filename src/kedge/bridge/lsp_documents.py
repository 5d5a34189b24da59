"""The documents that a language server has open, and its findings about them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from lsprotocol import types
from pygls.uris import to_fs_path

from kedge.bridge.bridge_peer import CallFailed
from kedge.bridge.lsp_connection import Connection
from kedge.bridge.lsp_messages import EditedFile, EditedReply, LspFinding, new_findings

#: Open documents of one server; the least recently used is closed. Items.
DOCUMENTS_MAX = 50
#: Findings that are kept for one file, and files with findings. A build with generated code has many. Items.
FINDINGS_PER_FILE_MAX = 200
FILES_MAX = 500
#: New findings in a reply. Items.
REPLY_FINDINGS_MAX = 100
#: Limit of the text of a finding, as it is stored. Characters.
MESSAGE_CHARS_MAX = 1000
#: Limit of the wait for the findings of one content. No Run waits that long: later ones go to the next result. Seconds.
FINDINGS_S = 10.0
#: The same for the content before an edit. Some servers report nothing about a file without findings. Seconds.
BASELINE_S = 3.0
#: Servers report in several parts (syntax, types): a report is complete if no other follows within this time. Seconds.
SETTLE_S = 0.15


class _Document:
    def __init__(self, uri: str, text: str) -> None:
        self.uri = uri
        self.text = text
        self.version = 1
        self.lock = asyncio.Lock()
        #: Set by a later edit: the current one then stops waiting for findings about an older content.
        self.superseded = asyncio.Event()
        #: Set by each report for the current version.
        self.reported = asyncio.Event()
        #: The findings that the agent knows of, or that were there before; None: not known.
        self.known: list[LspFinding] | None = None


class Documents:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: OrderedDict[str, _Document] = OrderedDict()
        self._findings: OrderedDict[str, list[LspFinding]] = OrderedDict()
        connection.on_diagnostics = self._on_diagnostics

    async def edited(self, file: EditedFile) -> EditedReply:
        """Inform the server of an edit, and return the findings that it caused."""
        uri = self._connection.uri(file.path)
        document = self._open.get(uri)
        if document is not None and document.lock.locked():
            document.superseded.set()
        if document is None:
            document = self._opened(uri, file.language, file.after if file.before is None else file.before)
            document.known = [] if file.before is None else None
        async with document.lock:
            document.superseded.clear()
            if document.known is None and file.before is not None and document.text == file.before:
                document.known = await self._current(document, BASELINE_S)
            elif file.before is not None and document.text != file.before:
                self._change(document, file.before)  # another program changed it
                document.known = await self._current(document, BASELINE_S)
            others = {uri: list(findings) for uri, findings in self._findings.items() if uri != document.uri}
            if document.text != file.after:
                self._change(document, file.after)
            self._saved(document, is_new=file.before is None)
            now = await self._current(document, FINDINGS_S)
            if now is None:
                return EditedReply(is_answered=document.superseded.is_set())
            is_compared = document.known is not None
            new = new_findings(document.known or (), now)
            document.known = now
        for other, findings in self._findings.items():
            if other != uri:
                new += [each for each in new_findings(others.get(other, ()), findings) if each.severity == 1]
        new.sort(key=lambda finding: finding.severity)
        return EditedReply(tuple(new[:REPLY_FINDINGS_MAX]), is_compared)

    def sync(self, path: str, language: str, text: str) -> None:
        """Give the server the current content of a file."""
        uri = self._connection.uri(path)
        document = self._open.get(uri)
        if document is None:
            self._opened(uri, language, text)
        elif document.text != text and not document.lock.locked():
            self._change(document, text)

    def close_all(self, paths: tuple[str, ...]) -> None:
        """Close documents: the server then reads these files from disk."""
        for uri in map(self._connection.uri, paths):
            document = self._open.get(uri)
            if document is not None and not document.lock.locked():
                del self._open[uri]
                self._close(document)
                self._watched(uri, types.FileChangeType.Changed)

    # --- the server's view --------------------------------------------------------------------------------------------

    def _opened(self, uri: str, language: str, text: str) -> _Document:
        while len(self._open) >= DOCUMENTS_MAX:
            _, oldest = self._open.popitem(last=False)
            self._close(oldest)
        document = self._open[uri] = _Document(uri, text)
        item = types.TextDocumentItem(uri=uri, language_id=language, version=1, text=text)
        self._connection.notify(types.TEXT_DOCUMENT_DID_OPEN, types.DidOpenTextDocumentParams(item))
        return document

    def _change(self, document: _Document, text: str) -> None:
        document.version += 1
        document.text = text
        document.reported.clear()
        self._open[document.uri] = document
        self._open.move_to_end(document.uri)
        identifier = types.VersionedTextDocumentIdentifier(document.version, document.uri)
        change = types.TextDocumentContentChangeWholeDocument(text)
        self._connection.notify(types.TEXT_DOCUMENT_DID_CHANGE, types.DidChangeTextDocumentParams(identifier, [change]))

    def _saved(self, document: _Document, *, is_new: bool) -> None:
        if is_new:
            self._watched(document.uri, types.FileChangeType.Created)
        params = types.DidSaveTextDocumentParams(types.TextDocumentIdentifier(document.uri), document.text)
        self._connection.notify(types.TEXT_DOCUMENT_DID_SAVE, params)

    def _close(self, document: _Document) -> None:
        params = types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(document.uri))
        self._connection.notify(types.TEXT_DOCUMENT_DID_CLOSE, params)

    def _watched(self, uri: str, change: types.FileChangeType) -> None:
        params = types.DidChangeWatchedFilesParams([types.FileEvent(uri, change)])
        self._connection.notify(types.WORKSPACE_DID_CHANGE_WATCHED_FILES, params)

    # --- findings -----------------------------------------------------------------------------------------------------

    async def _current(self, document: _Document, limit_s: float) -> list[LspFinding] | None:
        """Return the findings about the current content; None if the server does not report any in time."""
        try:
            async with asyncio.timeout(limit_s):
                if self._connection.has_pull:
                    return await self._pulled(document)
                return await self._pushed(document)
        except (TimeoutError, CallFailed):
            return None

    async def _pulled(self, document: _Document) -> list[LspFinding] | None:
        params = types.DocumentDiagnosticParams(types.TextDocumentIdentifier(document.uri))
        report: Any = await self._connection.request(types.TEXT_DOCUMENT_DIAGNOSTIC, params)
        return _findings(document.uri, getattr(report, "items", None) or [])

    async def _pushed(self, document: _Document) -> list[LspFinding] | None:
        loop = asyncio.get_running_loop()
        superseded = loop.create_task(document.superseded.wait())
        reported = loop.create_task(document.reported.wait())
        try:
            await asyncio.wait({superseded, reported}, return_when=asyncio.FIRST_COMPLETED)
            if not reported.done():
                return None
            while document.reported.is_set():
                document.reported.clear()
                await asyncio.sleep(SETTLE_S)
        finally:
            superseded.cancel()
            reported.cancel()
        return self._findings.get(document.uri, [])

    def _on_diagnostics(self, params: types.PublishDiagnosticsParams) -> None:
        uri = self._connection.uri(to_fs_path(params.uri) or "")  # servers escape characters differently
        document = self._open.get(uri)
        if document is not None and params.version is not None and params.version < document.version:
            return  # about an older content
        self._findings[uri] = _findings(uri, params.diagnostics)
        self._findings.move_to_end(uri)
        while len(self._findings) > FILES_MAX:
            self._findings.popitem(last=False)
        if document is not None:
            document.reported.set()


def _findings(uri: str, diagnostics: Any) -> list[LspFinding]:
    path = to_fs_path(uri) or ""
    findings = [
        LspFinding(
            path,
            diagnostic.range.start.line,
            int(diagnostic.severity or 1),
            str(diagnostic.message)[:MESSAGE_CHARS_MAX],
            " ".join(str(part)[:100] for part in (diagnostic.source, diagnostic.code) if part is not None),
        )
        for diagnostic in diagnostics
    ]
    findings.sort(key=lambda finding: finding.severity)
    return findings[:FINDINGS_PER_FILE_MAX]
