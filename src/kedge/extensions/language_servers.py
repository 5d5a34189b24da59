"""The language servers of one workspace: found in PATH, started by the first edit or question, never waited for long.

They run in a bridge that writes nothing and has no network: a language server may execute parts of the project. On a
machine that cannot confine it, they are started only if the user has enabled them.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec

from kedge.bridge.bridge_peer import CallFailed
from kedge.bridge.lsp_messages import (
    EDITED,
    QUERY,
    REPORT,
    EditedFile,
    EditedReply,
    Query,
    QueryOperation,
    QueryReply,
    ServerReport,
    ServerSpec,
)
from kedge.config.schema import Config, LspConfig, origin_of
from kedge.core.extensions import EditReport, ExtensionState
from kedge.core.untrusted_text import one_line
from kedge.errors import DirectoryTimeout
from kedge.extensions.bridge_process import BridgeProcess
from kedge.extensions.code_tools import CodeTool, RenameTool
from kedge.extensions.language_reports import edit_report
from kedge.extensions.language_table import (
    LANGUAGE_IDS,
    FoundServer,
    find_servers,
    missing_servers,
    suffixes_in,
)
from kedge.extensions.part import ExtensionHost
from kedge.tools.base import Tool, WrittenFile
from kedge.tools.textfile import decode
from kedge.waiting import retrieve_exception, wait_uncancelled

#: The wait of an edit for the findings of a running server, of one that is being started, and of one that was silent
#: the last time. What comes later is in the next report. Seconds.
WARM_S = 2.0
COLD_S = 1.0
SILENT_S = 0.3
#: Limit of the work of the bridge for one edit: a start, and two contents. Seconds.
EDITED_S = 90.0
QUERY_S = 80.0
#: Edits whose findings have not arrived; the oldest are dropped. Items.
LATE_MAX = 20
#: Size of a file that a server is informed of. Larger ones are generated. Bytes.
SYNCED_BYTES_MAX = 1_000_000
#: Files of one call that servers are informed of. Items.
SYNCED_FILES_MAX = 30
#: Files whose state on disk is remembered: the open documents of a bridge. Items.
REMEMBERED_MAX = 50
#: Servers end after this time without use: they take hundreds of megabytes. Seconds.
IDLE_S = 900.0
#: Time between two searches for programs and languages. Seconds.
SEARCH_S = 30.0
ERROR_CHARS_MAX = 200

_UNCONFINED = "this machine cannot confine language servers; to start them anyway, set lsp.enabled = true"


class LanguageServers:
    """The ExtensionPart of language servers."""

    def __init__(self, host: ExtensionHost) -> None:
        self._host = host
        self._config = LspConfig()
        self._searched: tuple[bytes, float] | None = None
        self._servers: tuple[FoundServer, ...] = ()
        self._missing: tuple[FoundServer, ...] = ()
        self._seen: frozenset[str] = frozenset()
        self._reports: dict[str, ServerReport] = {}
        self._silent: set[str] = set()
        self._bridge: BridgeProcess | None = None
        self._is_unconfined = False
        self._tools: tuple[Tool, ...] = (CodeTool(self, host.guarded), RenameTool(self, host.guarded))
        #: Check of an edit -> the name of its server, in the order of the edits.
        self._late: OrderedDict[asyncio.Task[EditedReply | None], str] = OrderedDict()
        #: Path -> identity of the content that a server was given.
        self._synced: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        #: Edits reach the bridge in their order.
        self._order = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    # --- the part -----------------------------------------------------------------------------------------------------

    async def refresh(self, config: Config) -> None:
        self._config = config.lsp
        if config.lsp.enabled is False:
            self._servers, self._missing, self._searched = (), (), None
            if self._bridge is not None:
                self._end_bridge()
            return
        key, now = msgspec.json.encode(config.lsp), asyncio.get_running_loop().time()
        if self._searched is not None and self._searched[0] == key and now - self._searched[1] < SEARCH_S:
            return
        path, root = os.environ.get("PATH", os.defpath), self._host.root
        before = self._servers
        self._servers = await self._host.files.run(find_servers, config.lsp, path, root)
        if self._bridge is not None and any(server not in self._servers for server in before):
            self._end_bridge()  # one that was removed or changed may run there
        self._seen = await self._host.files.run(suffixes_in, root)
        self._missing = tuple(missing_servers(self._seen, self._servers))
        self._searched = (key, now)

    def states(self) -> tuple[ExtensionState, ...]:
        return tuple(map(self._state, (*self._servers, *self._missing)))

    def tools(self) -> tuple[Tool, ...]:
        return self._tools if self.servers_in_use() else ()

    def system_text(self) -> str:
        return ""

    @property
    def has_processes(self) -> bool:
        return self._bridge is not None or bool(self._ending)

    async def close(self) -> None:
        self._end_bridge()
        await wait_uncancelled(list(self._ending))

    def _state(self, server: FoundServer) -> ExtensionState:
        report = self._reports.get(server.name)
        state = ExtensionState(
            kind="lsp",
            name=server.name,
            condition="idle",
            origin=origin_of(server.source),
            path=server.argv[0] if server.argv else "",
            description=f"language server for {', '.join(server.languages)}",
            offers=server.suffixes,
        )
        if server.is_disabled:
            return msgspec.structs.replace(state, condition="disabled")
        if server.error:
            return msgspec.structs.replace(state, condition="missing", error=server.error)
        if self._is_unconfined and self._config.enabled is not True:
            return msgspec.structs.replace(state, condition="disabled", error=_UNCONFINED)
        if report is not None:
            return msgspec.structs.replace(state, condition=report.condition, error=report.error)
        return state

    # --- edits --------------------------------------------------------------------------------------------------------

    async def edited(self, files: tuple[WrittenFile, ...], is_hidden: Callable[[str], bool]) -> EditReport:
        """Return the new findings about written files, and those of earlier edits that arrived late."""
        names: set[str] = set()
        wait_s = 0.0
        for file in files[:SYNCED_FILES_MAX]:
            server = self.server_for(file.path)
            if server is None or max(len(file.before or b""), len(file.after)) > SYNCED_BYTES_MAX:
                continue
            check = asyncio.get_running_loop().create_task(self._check(server, file), name=f"check {file.path}")
            check.add_done_callback(retrieve_exception)
            names.add(server.name)
            self._seen |= {file.path.suffix}
            self._late[check] = server.name
            wait_s = max(wait_s, self._patience(server))
        while len(self._late) > LATE_MAX:
            self._late.popitem(last=False)[0].cancel()
        if checks := [check for check, name in self._late.items() if name in names]:
            await asyncio.wait(checks, timeout=wait_s)
        done = [check for check in self._late if check.done()]
        for check in done:
            del self._late[check]
        replies = [check.result() for check in done if not check.cancelled()]
        findings = [finding for reply in replies if reply for finding in reply.findings]
        is_compared = all(reply.is_compared for reply in replies if reply)
        return edit_report(findings, self._host.root, is_hidden, is_compared=is_compared)

    def _patience(self, server: FoundServer) -> float:
        if server.name in self._silent:
            return SILENT_S
        report = self._reports.get(server.name)
        return WARM_S if report is not None and report.condition == "ready" else COLD_S

    async def _check(self, server: FoundServer, file: WrittenFile) -> EditedReply | None:
        """Return the findings about one file; None if the server cannot report any."""
        before, after = None if file.before is None else decode(file.before), decode(file.after)
        if after is None or (file.before is not None and before is None):
            return None  # binary
        path = str(file.path)
        try:
            async with self._order:
                spec, stale = await self._spec(server), await self._stale(path)
            old = None if before is None else before.text
            edited = EditedFile(spec, path, _language(file.path), old, after.text, stale)
            reply = await self._running_bridge(spec).request(EDITED, edited, EditedReply, EDITED_S)
        except CallFailed as error:
            self._on_failure(server, str(error))
            return None
        except DirectoryTimeout:
            return None
        (self._silent.discard if reply.is_answered else self._silent.add)(server.name)
        return reply

    # --- questions ----------------------------------------------------------------------------------------------------

    async def query(
        self,
        server: FoundServer,
        operation: QueryOperation,
        *,
        path: Path | None = None,
        text: str = "",
        line: int = 0,
        character: int = 0,
        name: str = "",
    ) -> QueryReply:
        """Ask a server. CallFailed if it does not answer."""
        spec = await self._spec(server)
        where, language = ("", "") if path is None else (str(path), _language(path))
        stale = await self._stale(where)
        query = Query(spec, operation, where, language, text, line, character, name, stale)
        return await self._running_bridge(spec).request(QUERY, query, QueryReply, QUERY_S)

    def server_for(self, path: Path) -> FoundServer | None:
        """Return the server of a file: the first that serves its extension. None if no server may start."""
        server = next((server for server in self._servers if path.suffix in server.suffixes), None)
        return server if server is not None and server.argv else None

    def servers_in_use(self) -> tuple[FoundServer, ...]:
        """Return the servers of the languages in the workspace."""
        if self._is_unconfined and self._config.enabled is not True:
            return ()
        return tuple(server for server in self._servers if server.argv and not self._seen.isdisjoint(server.suffixes))

    # --- the bridge ---------------------------------------------------------------------------------------------------

    async def _spec(self, server: FoundServer) -> ServerSpec:
        """Return how to start a server. CallFailed if it must not be started on this machine."""
        is_confined = (await self._host.processes()).can_confine
        self._is_unconfined = not is_confined
        if not is_confined and self._config.enabled is not True:
            raise CallFailed(_UNCONFINED)
        return ServerSpec(server.name, server.argv, server.options, is_confined)

    def _running_bridge(self, spec: ServerSpec) -> BridgeProcess:
        if self._bridge is None:

            async def refuse(method: str, params: msgspec.Raw) -> None:
                raise CallFailed("not served")

            self._bridge = BridgeProcess(
                "lsp",
                self._host.root,
                self._host.processes,
                refuse,
                self._on_notice,
                self._on_lost,
                confinement="read_only" if spec.is_confined else "configured",
            )
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_bridge)
        return self._bridge

    def _end_bridge(self) -> None:
        """End all servers. The next use starts them again."""
        bridge, self._bridge = self._bridge, None
        if self._idle is not None:
            self._idle.cancel()
        for check in self._late:
            check.cancel()
        self._late.clear()
        self._forget_servers("")
        if bridge is not None:
            ending = asyncio.get_running_loop().create_task(bridge.close(), name="end language servers")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _stale(self, path: str) -> tuple[str, ...]:
        """Return the files that were changed on disk since a server was given them, and remember `path`. A server
        takes the content that it was given for the current one, until it is notified."""

        def look() -> tuple[list[str], tuple[int, ...]]:
            stale = [other for other, identity in remembered.items() if other != path and _identity(other) != identity]
            return stale, _identity(path) if path else ()

        remembered = dict(self._synced)
        stale, identity = await self._host.files.run(look)
        for other in stale:
            self._synced.pop(other, None)
        if path:
            self._synced[path] = identity
            self._synced.move_to_end(path)
        while len(self._synced) > REMEMBERED_MAX:
            self._synced.popitem(last=False)
        return tuple(stale)

    def _on_notice(self, method: str, params: msgspec.Raw) -> None:
        if method != REPORT:
            return
        try:
            report = msgspec.json.decode(params, type=ServerReport)
        except msgspec.DecodeError:
            return
        self._report(msgspec.structs.replace(report, error=one_line(report.error, ERROR_CHARS_MAX)))

    def _on_failure(self, server: FoundServer, error: str) -> None:
        """Record a failure that the bridge could not report itself."""
        report = self._reports.get(server.name)
        if self._bridge is None or self._bridge.is_running or error == _UNCONFINED:
            return
        if report is None or report.condition != "failed":
            self._report(ServerReport(server.name, "failed", one_line(error, ERROR_CHARS_MAX)))

    def _on_lost(self, why: str) -> None:
        self._forget_servers(why)

    def _forget_servers(self, why: str) -> None:
        self._synced.clear()
        for name, report in list(self._reports.items()):
            if report.condition in ("ready", "starting"):
                self._report(ServerReport(name, "failed" if why else "idle", one_line(why, ERROR_CHARS_MAX)))

    def _report(self, report: ServerReport) -> None:
        if self._reports.get(report.name) == report:
            return
        self._reports[report.name] = report
        for server in self._servers:
            if server.name == report.name:
                self._host.announce(self._state(server))


def _language(path: Path) -> str:
    return LANGUAGE_IDS.get(path.suffix, path.suffix.lstrip("."))


def _identity(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_ino, status.st_size, status.st_mtime_ns)
