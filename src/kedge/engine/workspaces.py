"""Open workspaces: their Lanes, their feed, and the claims that keep them open."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary, ref

from msgspec import Struct

from kedge.config.load import load_workspace
from kedge.config.schema import Config
from kedge.core.claims import Claims
from kedge.core.events import Asked
from kedge.core.records import RunRecord, SessionRecord, SessionView, WorkspaceRecord, first_position
from kedge.engine.feed import Feed, Reader
from kedge.engine.lane_state import LaneState
from kedge.engine.ports import Clock, Encoder, Ids
from kedge.errors import (
    RESTORE_BACKUP,
    Busy,
    ClientNotAttached,
    ClientRetired,
    DirectoryTimeout,
    Invalid,
    KedgeError,
    SessionNotFound,
    ShuttingDown,
    StoreDamaged,
    WorkspaceClosing,
    WorkspaceNotFound,
)
from kedge.store.base import Store
from kedge.tools import file_threads
from kedge.tools.file_threads import FileThreads
from kedge.tools.known_files import KnownFiles

log = logging.getLogger("kedge.engine")

#: The claim of all clients of the last process. Client ids are UUIDs, so no client has this id.
_LOST = "lost"
#: Retired clients, remembered so that their late requests are refused. Items, the oldest are dropped first.
RETIRED_CLIENTS_MAX = 10_000
#: Idle sessions in memory per workspace: more than a user returns to. Each takes about 2 KB, plus 640 bytes per file
#: that its agent has read. An evicted one is loaded again on demand, and its agent has to view files again before it
#: changes them. Every command scans them. Items, the least recently used are evicted first.
IDLE_LANES_MAX = 100
#: Directories that do not answer and whose threads still wait. More cannot be opened. Each takes some 100 KB. Items.
DEAD_DIRECTORIES_MAX = 200


class ConfigSource(Protocol):
    """A source of the current configuration, which may change while the workspace is open. Blocking."""

    @property
    def config(self) -> Config: ...


class FixedConfig(Struct, frozen=True):
    """A configuration that never changes."""

    config: Config


#: Makes the source of one workspace. strict: BadConfig if a file of its repository is not valid; else it is ignored.
#: Blocking.
MakeSource = Callable[[Path, bool], ConfigSource]


@dataclass(slots=True)
class Workspace:
    record: WorkspaceRecord
    source: ConfigSource
    #: The current configuration; see `reload_config`.
    config: Config
    claims: Claims
    #: For all access to its directory, which may stop answering.
    files: FileThreads
    lanes: dict[str, LaneState] = field(default_factory=dict)
    #: client_id -> its current session.
    current: dict[str, str] = field(default_factory=dict)
    #: The client that skips approvals; empty: approvals are required. Deny rules always apply.
    skip_given_by: str = ""
    feed: Feed = field(init=False)
    _known_files: dict[str, KnownFiles] = field(default_factory=dict)
    _reloading: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Running commands. They keep the workspace open, or a Run could start in a closed one.
    _in_use: int = 0

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold the workspace open; WorkspaceClosing if it was closed meanwhile. See `Workspaces.in_use`."""
        if self.feed.closed:
            raise WorkspaceClosing(f"Workspace {self.id} is being closed; create it again with its path.")
        self._in_use += 1
        try:
            yield
        finally:
            self._in_use -= 1

    @property
    def _may_become_live(self) -> bool:
        """True if a command is running, or a Lane is uncertain and may have a live Run."""
        return self._in_use > 0 or any(lane.is_uncertain for lane in self.lanes.values())

    @property
    def is_held(self) -> bool:
        return self.claims.held or self._may_become_live

    @property
    def is_idle(self) -> bool:
        return not self.live_runs() and not self._may_become_live

    @property
    def id(self) -> str:
        return self.record.id

    async def reload_config(self) -> None:
        """Reload the configuration if its files changed. DirectoryTimeout if the directory does not answer.

        Stats about a dozen files; called when a prompt is accepted, when a Run starts, and when the configuration is
        shown."""
        if isinstance(self.source, FixedConfig):
            return
        limit = asyncio.timeout(file_threads.LOOK_S)
        try:
            async with limit, self._reloading:  # one thread at a time
                self.config = await self.files.run(lambda: self.source.config)
        except DirectoryTimeout:
            raise
        except Exception:  # an accepted Run is executed, whatever the files contain
            if limit.expired():  # another caller waits for the directory
                raise self.files.timeout() from None
            log.exception("the configuration of %s could not be reloaded; keeping the last one", self.record.path)

    @property
    def root(self) -> Path:
        return Path(self.record.path)

    def known_files(self, session_id: str) -> KnownFiles:
        """Return the files that the agent of this session has read. Lost with the process: then it reads again."""
        return self._known_files.setdefault(session_id, KnownFiles())

    def forget(self, session_id: str) -> None:
        """Drop the state of a deleted session."""
        self.lanes.pop(session_id, None)
        self._known_files.pop(session_id, None)

    def known_lane(self, session_id: str) -> LaneState | None:
        """Return the Lane of this session if it is in memory, and mark it as the most recently used."""
        if lane := self.lanes.pop(session_id, None):
            self.lanes[session_id] = lane
        return lane

    def evict_idle_lanes(self) -> None:
        """Evict idle Lanes beyond the limit.

        A Lane that is still referenced elsewhere is put back: two Lanes for one session would have two locks."""
        if len(self.lanes) <= IDLE_LANES_MAX:
            return
        idle = [session_id for session_id, lane in self.lanes.items() if lane.is_idle]
        for session_id in idle[:-IDLE_LANES_MAX]:
            evicted = ref(self.lanes.pop(session_id))
            if (lane := evicted()) is not None:
                self.lanes[session_id] = lane
            else:
                self._known_files.pop(session_id, None)

    def is_busy(self, session_id: str) -> bool:
        lane = self.lanes.get(session_id)
        return lane is not None and lane.is_busy

    def attached_clients(self, session_id: str) -> int:
        return sum(1 for current in self.current.values() if current == session_id)

    def view(self, session: SessionRecord) -> SessionView:
        return SessionView(session, self.is_busy(session.id), self.attached_clients(session.id))

    @property
    def skip_approvals(self) -> bool:
        return bool(self.skip_given_by)

    def skip(self, given_by: str) -> None:
        """Skip approvals for this client, or require them again (empty); notify all readers."""
        if given_by != self.skip_given_by:
            self.skip_given_by = given_by
            self.feed.announce(self.feed.encoder.skip(given_by))

    def set_current_session(self, client_id: str, session_id: str) -> None:
        """Set the client's current session (empty: none) and notify the readers of the sessions concerned."""
        before = self.current.pop(client_id, "")
        if session_id:
            self.current[client_id] = session_id
        for other in (before, session_id) if before != session_id else ():
            if other:
                self.feed.send_transient(other, self.feed.encoder.presence(other, self.attached_clients(other)))

    def live_runs(self) -> list[RunRecord]:
        return [run for lane in self.lanes.values() for run in lane.runs.values()]


class Workspaces:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        encoder: Encoder,
        user_config: Config,
        make_source: MakeSource | None,
        on_abandoned: Callable[[Workspace], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._encoder = encoder
        self._server = user_config.server

        def fixed(path: Path, strict: bool) -> ConfigSource:
            return FixedConfig(load_workspace(user_config, path, strict=strict))

        self._make_source = make_source or fixed
        #: Called when the last client leaves while Runs are live.
        self._on_abandoned = on_abandoned
        self._open: dict[str, Workspace] = {}
        #: Serialises the last part of opening: two clients that open the same directory at once must get the same
        #: workspace. Not held while a directory is read.
        self._opening = asyncio.Lock()
        self._openings = 0
        #: Path -> its threads, for as long as a workspace or a thread uses them: opening a dead directory again and
        #: again must not take more threads each time.
        self._files: WeakValueDictionary[str, FileThreads] = WeakValueDictionary()
        self._retired: dict[str, None] = {}
        #: Workspace id -> the error message about its damage.
        self._damaged: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        #: Loop time since which no workspace is open.
        self.idle_since: float | None = None

    # --- lookup --------------------------------------------------------------------------------------------------

    @property
    def is_unused(self) -> bool:
        """True if no workspace is open or being opened."""
        return not self._open and not self._openings

    def all(self) -> list[Workspace]:
        return list(self._open.values())

    @property
    def damaged_count(self) -> int:
        return len(self._damaged)

    async def live_runs(self) -> list[RunRecord]:
        """Return the live Runs of all workspaces; a live Run holds its workspace open. A damaged one is skipped."""
        runs: list[RunRecord] = []
        for workspace in self.all():
            with suppress(StoreDamaged):
                runs += await self._store.live_runs(workspace.id)
        return runs

    def get(self, workspace_id: str) -> Workspace:
        self._refuse_damaged(workspace_id)
        if workspace := self._open.get(workspace_id):
            return workspace
        if self._closed:  # creating it again would be refused, too
            raise ShuttingDown("The server is shutting down; try again in a moment.")
        raise WorkspaceNotFound(f"Workspace {workspace_id} is not open; create it again with its path.")

    async def lane(self, workspace: Workspace, session_id: str) -> LaneState:
        """Return the Lane of a session, loaded from the store on first use."""
        if (lane := workspace.known_lane(session_id)) and not lane.deleted:
            return lane
        session = await self._store.session(workspace.id, session_id)
        if session is None:
            raise SessionNotFound(
                f"Session {session_id} not found in workspace {workspace.id}. List sessions with: kedge sessions list"
            )
        workspace.evict_idle_lanes()
        # Another task may have added it while the store was read.
        return workspace.lanes.setdefault(session_id, LaneState(session, workspace.feed))

    def new_lane(self, workspace: Workspace, session: SessionRecord) -> LaneState:
        workspace.evict_idle_lanes()
        lane = workspace.lanes[session.id] = LaneState(session, workspace.feed, stale=False, loaded=True)
        return lane

    @contextmanager
    def in_use(self, workspace: Workspace) -> Iterator[None]:
        """Hold the workspace open for a command; the last command closes a workspace without claims."""
        try:
            with workspace.in_use():
                yield
        finally:
            if not workspace.is_held:
                self.sweep()

    # --- opening and closing -------------------------------------------------------------------------------------

    async def open(self, path: str, client_id: str | None) -> Workspace:
        """Open the workspace of a directory, however its path is spelled; the client gets a claim for a while.

        DirectoryTimeout if the directory does not answer."""
        if not os.path.isabs(path):
            raise Invalid(f"path must be absolute, not {path!r}.")
        self._openings += 1
        try:
            resolved = await self._files_of(path).run(_resolved, path)
            return await self._open_resolved(resolved, client_id)
        finally:
            self._openings -= 1

    async def reopen(self, path: str) -> Workspace:
        """Open a workspace with live Runs by its stored path; the directory may be gone. DirectoryTimeout if it does
        not answer.

        Its clients lost their streams with the last process and have the usual grace period to come back."""
        workspace = await self._open_resolved(path, None)
        lost = workspace.claims.stream_opened(_LOST, _LOST)
        workspace.claims = lost.stream_closed(_LOST, _LOST, _now_ms())
        return workspace

    def _files_of(self, path: str) -> FileThreads:
        path = os.path.normpath(path)
        files = self._files.get(path)
        if files is None:
            if sum(one.stuck > 0 for one in self._files.values()) >= DEAD_DIRECTORIES_MAX:
                raise Busy(f"{DEAD_DIRECTORIES_MAX} other directories do not answer; check their mounts.")
            files = self._files[path] = FileThreads(f"The directory of workspace {path}")
        return files

    async def _open_resolved(self, path: str, client_id: str | None) -> Workspace:
        files = self._files_of(path)

        def load() -> tuple[ConfigSource, Config]:
            # Without a client to report to, a mistake in a repository must not keep the server from resuming its Runs.
            source = self._make_source(Path(path), client_id is not None)
            return source, source.config

        while True:
            is_open = any(workspace.record.path == path for workspace in self.all())
            loaded = None if is_open else await files.run(load)
            async with self._opening:
                if client_id is not None and client_id in self._retired:
                    raise ClientRetired(f"Client {client_id} was retired. Create a new client_id.")
                now = self._clock.now_ms()
                new_id = self._ids.new("w")
                new = WorkspaceRecord(new_id, path, now, first_position(new_id))
                record = await self._store.workspace(path, new)
                self._refuse_damaged(record.id)
                workspace = self._open.get(record.id)
                if workspace is None:
                    if loaded is None:  # closed meanwhile
                        continue
                    workspace = await self._add(record, files, *loaded)
                if client_id is not None:
                    workspace.claims = workspace.claims.opened(client_id, _now_ms())
                    self.sweep()
                return workspace

    async def _add(
        self, record: WorkspaceRecord, files: FileThreads, source: ConfigSource, config: Config
    ) -> Workspace:
        claims = Claims(int(self._server.hold_s * 1000), int(self._server.grace_s * 1000))
        workspace = Workspace(record, source, config, claims, files)
        _, head = await self._store.bounds(record.id)
        workspace.feed = Feed(record.id, head, self._store, self._encoder, self._clock, workspace)
        self._open[record.id] = workspace
        self.idle_since = None
        return workspace

    def set_aside(self, record: WorkspaceRecord, error: KedgeError) -> None:
        """Refuse all access to a damaged workspace and write nothing to it. Called before any of its Runs starts."""
        has_remedy = isinstance(error, StoreDamaged) and error.remedy
        remedy = "" if has_remedy else f"; {RESTORE_BACKUP}"
        text = f"workspace {record.id} ({record.path}) is damaged and was left unchanged: {error.message}{remedy}"
        self._damaged[record.id] = text
        log.error("%s; other workspaces are available", text)
        if workspace := self._open.get(record.id):
            self._close(workspace)

    def _refuse_damaged(self, workspace_id: str) -> None:
        if text := self._damaged.get(workspace_id):
            raise StoreDamaged(text)

    def release(self, workspace_id: str, client_id: str) -> None:
        workspace = self.get(workspace_id)
        workspace.claims = workspace.claims.released(client_id)
        self.sweep()

    def retire(self, client_id: str) -> None:
        """Drop all claims of a client that is gone for good, and refuse its late requests."""
        self._retired[client_id] = None
        while len(self._retired) > RETIRED_CLIENTS_MAX:
            del self._retired[next(iter(self._retired))]
        for workspace in self.all():
            workspace.claims = workspace.claims.dropped(client_id)
            workspace.set_current_session(client_id, "")
        self.sweep()

    def stream_opened(self, workspace: Workspace, client_id: str, stream_id: str) -> None:
        if client_id in self._retired:
            raise ClientRetired(f"Client {client_id} was retired. Create a new client_id.")
        workspace.claims = workspace.claims.stream_opened(client_id, stream_id)
        self.sweep()

    def stream_closed(self, workspace: Workspace, client_id: str, stream_id: str) -> None:
        workspace.claims = workspace.claims.stream_closed(client_id, stream_id, _now_ms())
        self.sweep()

    def set_current_session(self, workspace: Workspace, client_id: str, session_id: str) -> None:
        """Set the client's current session; empty: none."""
        if not workspace.claims.has(client_id):
            raise ClientNotAttached(f"Client {client_id} does not hold workspace {workspace.id}. Create it first.")
        workspace.set_current_session(client_id, session_id)

    def skip(self, workspace: Workspace, client_id: str, skip: bool) -> None:
        """Skip approvals while this client holds the workspace; any client may require them again."""
        if skip and not workspace.claims.has(client_id):
            raise ClientNotAttached(f"Client {client_id} does not hold workspace {workspace.id}. Create it first.")
        where = f"workspace {workspace.id} ({workspace.record.path})"
        if skip:
            log.warning("approvals are skipped in %s at the request of client %s", where, client_id)
        elif workspace.skip_approvals:
            log.warning("approvals are required again in %s at the request of client %s", where, client_id)
        workspace.skip(client_id if skip else "")

    async def read_events(
        self, workspace: Workspace, after: int | None, session_id: str | None, *, deltas: bool
    ) -> Reader:
        if session_id is not None:
            try:
                await self.lane(workspace, session_id)
            except SessionNotFound:
                if after is None:
                    raise
                # A client that resumes may have missed the deletion: the log has the ends of its Runs.
        reader = await workspace.feed.reader(after, session_id, deltas=deltas)
        try:
            # After the reader's start, so that no Ask is missed; one put meanwhile may be sent twice.
            asks = await self._store.asks(workspace.id)
        except BaseException:
            reader.close()
            raise
        encode = workspace.feed.encoder.encode
        reader.pending = b"".join(
            encode(None, ask.session_id, Asked(ask.run_id, ask.id), {"ask": {ask.id: ask}})
            for ask in asks
            if session_id in (None, ask.session_id)
        )
        return reader

    # --- sweeping ------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Close workspaces without claims and schedule the next sweep. Called whenever a claim or a Run ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = _now_ms()
        lapses: list[int] = []
        for workspace in self.all():
            workspace.claims = workspace.claims.lapsed(now)
            for client_id in [known for known in workspace.current if not workspace.claims.has(known)]:
                workspace.set_current_session(client_id, "")
            if workspace.skip_approvals and not workspace.claims.has(workspace.skip_given_by):
                log.warning("approvals are required again in workspace %s: the client has left", workspace.id)
                workspace.skip("")
            if (lapse := workspace.claims.next_lapse) is not None:
                lapses.append(lapse)
            if workspace.is_held:
                continue
            if workspace.live_runs():
                self._on_abandoned(workspace)
            else:
                self._close(workspace)
        loop = asyncio.get_running_loop()
        if lapses:
            # One millisecond after the lapse: a timer may fire early by less than that.
            self._timer = loop.call_later((min(lapses) - now + 1) / 1000, self.sweep)
        if not self._open and self.idle_since is None:
            self.idle_since = loop.time()

    def _close(self, workspace: Workspace) -> None:
        del self._open[workspace.id]
        workspace.feed.close()

    def close_all(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for workspace in self.all():
            self._close(workspace)


def _now_ms() -> int:
    """Return the loop time for claims: with the wall clock, which may be set, they could end early or never."""
    return int(asyncio.get_running_loop().time() * 1000)


def _resolved(path: str) -> str:
    """Blocking."""
    try:
        resolved = Path(path).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # missing, not permitted, a loop of links, a NUL byte
        raise Invalid(f"{path!r} does not exist or is not accessible.") from None
    if not resolved.is_dir():
        raise Invalid(f"{path} is not a directory.")
    return str(resolved)
