"""The open workspaces: opening, claims, closing."""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from msgspec.structs import replace

from kedge.config.load import load_workspace
from kedge.config.schema import Config
from kedge.core.claims import Claims
from kedge.core.records import RunRecord, SessionRecord, WorkspaceRecord, first_position
from kedge.engine.feed import Feed, Reader
from kedge.engine.lane_state import LaneState
from kedge.engine.mirror import Mirror
from kedge.engine.placement import Placement
from kedge.engine.ports import Clock, Encoder, Ids
from kedge.engine.readers import read_feed, session_not_found
from kedge.engine.unserved import Unserved
from kedge.engine.workspace import (
    ConfigSource,
    FixedConfig,
    MakeExtensions,
    MakeSource,
    NoDirectory,
    Workspace,
    no_node,
    resolved_directory,
)
from kedge.errors import (
    Busy,
    ClientNotAttached,
    ClientRetired,
    Invalid,
    KedgeError,
    NoNode,
    ServedElsewhere,
    SessionNotFound,
    ShuttingDown,
    StoreDamaged,
    VersionConflict,
    WorkspaceInUse,
    WorkspaceNotFound,
)
from kedge.store.base import Store
from kedge.tools.file_threads import FileThreads
from kedge.waiting import retrieve_exception

log = logging.getLogger("kedge.engine")

#: The claim of all clients of the last process. Client ids are UUIDs, so no client has this id.
_LOST = "lost"
#: Retired clients, remembered so that their late requests are refused. Items, the oldest are dropped first.
RETIRED_CLIENTS_MAX = 10_000
#: Directories that do not answer and whose threads still wait. More cannot be opened. Each takes some 100 KB. Items.
DEAD_DIRECTORIES_MAX = 200


class WorkspaceReactions(Protocol):
    async def recover(self, workspace: Workspace) -> None:
        """Verify a workspace and recover its Runs, before this process opens it for the first time."""

    def reconcile(self, state: LaneState) -> None:
        """Start the recovered Run of a Lane, now that its workspace is open."""

    def abandoned(self, workspace: Workspace) -> None:
        """Called when the last client leaves while Runs are live."""


class Workspaces:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        encoder: Encoder,
        user_config: Config,
        placement: Placement,
        make_source: MakeSource | None,
        make_extensions: MakeExtensions | None,
        reactions: WorkspaceReactions,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._encoder = encoder
        self._user_config = user_config
        self._server = user_config.server
        self._placement = placement

        def fixed(path: Path, strict: bool) -> ConfigSource:
            return FixedConfig(load_workspace(user_config, path, strict=strict))

        self._make_source = make_source or fixed
        self._make_extensions = make_extensions
        self._reactions = reactions
        #: Closed workspaces whose extensions are being ended, and which are then released.
        self._ending: set[asyncio.Task[None]] = set()
        self._open: dict[str, Workspace] = {}
        #: Path -> serialises its opening: two clients that open a directory at once must get the same workspace.
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.unserved = Unserved()
        #: Workspaces whose recovery has begun. An attempt that failed is continued with the same Lanes.
        self.recovering: dict[str, Workspace] = {}
        #: Ids of the workspaces that this process has verified and recovered: at most all that are stored.
        self._recovered: set[str] = set()
        #: Path -> its threads, for as long as a workspace or a thread uses them: opening a dead directory again and
        #: again must not take more threads each time.
        self._files: WeakValueDictionary[str, FileThreads] = WeakValueDictionary()
        self._openings = 0
        self._retired: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        #: Loop time since which no workspace is open.
        self.idle_since: float | None = None

    # --- lookup --------------------------------------------------------------------------------------------------

    @property
    def is_unused(self) -> bool:
        """True if no workspace is open or being opened."""
        return not (self._open or self.unserved.unrecovered or self._openings)

    @property
    def are_idle(self) -> bool:
        """True if no Run is live, or may become live."""
        return not self.unserved.unrecovered and all(workspace.is_idle for workspace in self.all())

    def has_clients(self, *, except_for: str) -> bool:
        """Return whether another client than this one holds a workspace, or opens one."""
        now = _now_ms()
        claims = (workspace.claims.lapsed(now) for workspace in self._open.values())
        return self._openings > 0 or any(client != except_for for one in claims for client in one.by_client)

    def all(self) -> list[Workspace]:
        return list(self._open.values())

    async def live_runs(self) -> list[RunRecord]:
        """Return the live Runs of all workspaces; a live Run holds its workspace open. A damaged one is skipped."""
        runs: list[RunRecord] = []
        workspaces = await self._store.live_workspaces()
        missing = await self._placement.without_node(workspace.path for workspace in workspaces)
        for workspace in workspaces:
            if workspace.id not in self.unserved.damaged:
                with suppress(StoreDamaged):
                    live = await self._store.live_runs(workspace.id)
                    runs += [replace(run, waits_for_node=True) for run in live] if workspace.path in missing else live
        return runs

    def find(self, workspace_id: str) -> Workspace | None:
        """Return the workspace if it is open."""
        return self._open.get(workspace_id)

    def get(self, workspace_id: str) -> Workspace:
        self.unserved.refuse_damaged(workspace_id)
        if workspace := self._open.get(workspace_id):
            return workspace
        if self._closed:  # creating it again would be refused, too
            raise ShuttingDown("The server is shutting down; try again in a moment.")
        self.unserved.refuse_unrecovered(workspace_id)
        raise WorkspaceNotFound(f"Workspace {workspace_id} is not open; create it again with its path.")

    async def lane(self, workspace: Workspace, session_id: str) -> LaneState:
        """Return the Lane of a session, loaded from the store on first use."""
        if (lane := workspace.known_lane(session_id)) and not lane.deleted:
            return lane
        session = await self._store.session(workspace.id, session_id)
        if session is None:
            raise session_not_found(workspace.id, session_id)
        workspace.evict_idle_lanes()
        # Another task may have added it while the store was read.
        return workspace.lanes.setdefault(session_id, LaneState(session, workspace.feed, workspace.has_directory))

    def new_lane(self, workspace: Workspace, session: SessionRecord) -> LaneState:
        workspace.evict_idle_lanes()
        lane = workspace.lanes[session.id] = LaneState(
            session, workspace.feed, workspace.has_directory, stale=False, loaded=True
        )
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
            try:
                await self._placement.locate(path)
            except NoNode:
                return await self._open_without_directory(posixpath.normpath(path), client_id)
            except ServedElsewhere:
                await self.hand_over()  # this node may have it open without its directory
                raise
            resolved = await self._files_of(path).run(resolved_directory, path)
            return await self._open_resolved(resolved, client_id)
        finally:
            self._openings -= 1

    async def reopen(self, record: WorkspaceRecord) -> None:
        """Open a workspace with live Runs, and recover them; its directory may be gone.

        DirectoryTimeout if it does not answer."""
        async with self.opening(record.path):
            self.unserved.refuse_damaged(record.id)
            if record.id in self.unserved.unrecovered:
                await self._load(record, strict=False)
                self.sweep()

    def _files_of(self, path: str) -> FileThreads:
        path = os.path.normpath(path)
        files = self._files.get(path)
        if files is None:
            if sum(one.stuck > 0 for one in self._files.values()) >= DEAD_DIRECTORIES_MAX:
                raise Busy(f"{DEAD_DIRECTORIES_MAX} other directories do not answer; check their mounts.")
            files = self._files[path] = FileThreads(f"The directory of workspace {path}")
        return files

    def opening(self, path: str) -> asyncio.Lock:
        """Return the lock under which the workspace of this path is opened or removed."""
        return self._opening.setdefault(path, asyncio.Lock())

    def close_unused(self, workspace_id: str) -> None:
        """Close a workspace that is about to be removed. WorkspaceInUse if clients hold it."""
        if workspace := self._open.get(workspace_id):
            workspace.claims = workspace.claims.lapsed(_now_ms())
            if workspace.is_held or workspace.live_runs() or workspace.has_kept:
                path = workspace.record.path
                raise WorkspaceInUse(f"{path} is open in other clients or was until a moment ago. Close them first.")
            self._close(workspace)

    def removed(self, workspace_id: str) -> None:
        """Drop what is known about a workspace that was removed from the store."""
        self._recovered.discard(workspace_id)
        self.recovering.pop(workspace_id, None)

    async def _open_resolved(self, path: str, client_id: str | None) -> Workspace:
        async with self.opening(path):
            self._refuse_retired(client_id)
            now = self._clock.now_ms()
            new_id = self._ids.new("w")
            new = WorkspaceRecord(new_id, path, now, first_position(new_id))
            record = await self._store.workspace(path, new)
            self.unserved.refuse_damaged(record.id)
            # A mistake in one repository must not keep the server from resuming its Runs.
            strict = record.id not in self.unserved.unrecovered
            was_open = record.id in self._open
            workspace = self._open.get(record.id) or await self._load(record, strict=strict)
            if client_id is not None:
                workspace.claims = workspace.claims.opened(client_id, _now_ms())
                self.sweep()
                if was_open:
                    await workspace.reload_config()  # a file that is invalid by now is reported to the client
            return workspace

    async def _open_without_directory(self, path: str, client_id: str | None) -> Workspace:
        """Open a stored workspace whose directory no live node has. Its Runs begin when one has it."""
        async with self.opening(path):
            self._refuse_retired(client_id)
            record = await self._store.workspace_at(path)
            if record is None:
                raise no_node(path)
            self.unserved.refuse_damaged(record.id)
            if (workspace := self._open.get(record.id)) is None:
                await self._placement.acquire(record.id)
                problem = f"No live node serves {path}, so its configuration is not in effect."
                source = FixedConfig(self._user_config, problem)
                workspace = self._new(
                    record, source, source.config, NoDirectory(path), await self._store.bounds(record.id)
                )
                workspace.has_directory = False
                workspace.set_config_problem(source.problem)
                self._open[record.id] = workspace
                self.idle_since = None
            if client_id is not None:
                workspace.claims = workspace.claims.opened(client_id, _now_ms())
            self.sweep()
            return workspace

    async def hand_over(self) -> None:
        """Close the workspaces whose directory a live node has by now: that node recovers them. Release the leases that
        no open workspace needs: the store may have been away when they were not needed any more."""
        for workspace_id in self._placement.held - self._open.keys() - self.recovering.keys():
            known = await self._store.known_workspace(workspace_id)
            path = known.record.path if known else ""
            if not self.opening(path).locked():  # else it is being opened, closed or removed now
                async with self.opening(path):
                    await self._release_unused(workspace_id)
        waiting = [workspace for workspace in self.all() if not workspace.has_directory]
        missing = await self._placement.without_node([workspace.record.path for workspace in waiting])
        for workspace in waiting:
            workspace.is_leaving = workspace.record.path not in missing
        self.sweep()

    def _refuse_retired(self, client_id: str | None) -> None:
        if client_id in self._retired:
            raise client_retired(str(client_id))

    async def _load(self, record: WorkspaceRecord, *, strict: bool) -> Workspace:
        try:
            workspace = self.recovering.get(record.id) or await self._acquire(record, strict=strict)
            if record.id not in self._recovered:
                self.recovering[record.id] = workspace
                await self._reactions.recover(workspace)
        # A version conflict: the log and the records contradict each other, since no other process writes.
        except (StoreDamaged, VersionConflict) as error:
            self.recovering.pop(record.id, None)
            self.unserved.set_aside(record, error)
            raise StoreDamaged(self.unserved.damaged[record.id]) from error
        if self._closed:
            raise ShuttingDown("The server is shutting down; try again in a moment.")
        self._recovered.add(record.id)
        self.recovering.pop(record.id, None)
        self.unserved.unrecovered.pop(record.id, None)
        self._open[record.id] = workspace
        self.idle_since = None
        self._start_recovered(workspace)
        return workspace

    async def _acquire(self, record: WorkspaceRecord, *, strict: bool) -> Workspace:
        await self._placement.acquire(record.id)
        try:
            return await self._make(record, strict=strict)
        except BaseException:
            with suppress(KedgeError):  # the lease ends with this process at the latest
                await self._placement.release(record.id)
            raise

    async def _make(self, record: WorkspaceRecord, *, strict: bool) -> Workspace:
        def load() -> tuple[ConfigSource, Config, str]:
            source = self._make_source(Path(record.path), strict)
            return source, source.config, source.problem

        files = self._files_of(record.path)
        source, config, problem = await files.run(load)
        workspace = self._new(record, source, config, files, await self._store.bounds(record.id))
        workspace.set_config_problem(problem)
        if self._make_extensions is not None:
            workspace.extensions = self._make_extensions(workspace)
        return workspace

    def _new(
        self, record: WorkspaceRecord, source: ConfigSource, config: Config, files: FileThreads, bounds: tuple[int, int]
    ) -> Workspace:
        claims = Claims(int(self._server.hold_s * 1000), int(self._server.grace_s * 1000))
        workspace = Workspace(record, source, config, claims, files)
        workspace.trimmed_to, head = bounds
        workspace.feed = Feed(record, head, self._store, self._encoder, self._clock, workspace)
        return workspace

    def _start_recovered(self, workspace: Workspace) -> None:
        lanes = list(workspace.lanes.values())
        if lanes:
            # The clients lost their streams with the last process and have the usual grace period to come back.
            lost = workspace.claims.stream_opened(_LOST, _LOST)
            workspace.claims = lost.stream_closed(_LOST, _LOST, _now_ms())
        with workspace.in_use():  # a Run that has ended must not close the workspace for the others
            for lane in lanes:
                self._reactions.reconcile(lane)

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
        self._refuse_retired(client_id)
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
        return await read_feed(workspace.feed, self._store, after, session_id, deltas=deltas)

    async def mirror(self, workspace_id: str) -> Mirror:
        """Return a feed for the readers of a workspace that another node serves."""
        known = await self._store.known_workspace(workspace_id)
        if known is None:
            raise WorkspaceNotFound(f"Workspace {workspace_id} not found. List them with: kedge workspaces list")
        _, head = await self._store.bounds(workspace_id)
        return Mirror(known.record, head, self._store, self._encoder, self._clock)

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
            if (lapse := workspace.claims.next_lapse) is not None:
                lapses.append(lapse)
            if workspace.is_held:
                continue
            if workspace.live_runs() and not workspace.is_leaving:
                self._reactions.abandoned(workspace)
            elif not workspace.has_kept:
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
        if workspace.extensions.has_processes or self._placement.is_shared:
            ending = asyncio.get_running_loop().create_task(self._end(workspace))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            ending.add_done_callback(retrieve_exception)

    async def _end(self, workspace: Workspace) -> None:
        """End the processes of a closed workspace, and let other nodes open it."""
        await workspace.extensions.close()
        async with self.opening(workspace.record.path):
            await self._release_unused(workspace.id)

    async def _release_unused(self, workspace_id: str) -> None:
        """Under the lock of its path. If the store does not take it, `hand_over` tries again."""
        if not (self._closed or workspace_id in self._open or workspace_id in self.recovering):
            self._recovered.discard(workspace_id)  # another node may change it before this one opens it again
            await self._placement.release(workspace_id)

    async def close_extensions(self) -> None:
        """End the processes of all extensions, before the server stops."""
        await asyncio.gather(*(workspace.extensions.close() for workspace in self.all()), *self._ending)

    def close_all(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for workspace in self.all():
            self._close(workspace)


def client_retired(client_id: str) -> ClientRetired:
    return ClientRetired(f"Client {client_id} was retired. Create a new client_id.")


def _now_ms() -> int:
    """Return the loop time for claims: with the wall clock, which may be set, they could end early or never."""
    return int(asyncio.get_running_loop().time() * 1000)
