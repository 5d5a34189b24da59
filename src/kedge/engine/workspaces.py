"""Open workspaces: their Lanes, their feed, and who holds them open."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from weakref import ref

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
    ClientNotAttached,
    ClientRetired,
    Invalid,
    KedgeError,
    SessionNotFound,
    ShuttingDown,
    StoreDamaged,
    WorkspaceClosing,
    WorkspaceNotFound,
)
from kedge.store.base import Store
from kedge.tools.known_files import KnownFiles

log = logging.getLogger("kedge.engine")

#: Stands for all clients of the last process; no client's id, which is a UUID.
_LOST = "lost"
#: Clients that said they are gone, kept so that a late request of theirs is refused. Items, the oldest forgotten first.
RETIRED_CLIENTS_MAX = 10_000
#: Idle sessions a workspace has in memory: more than people go back to. Each is about 2 KB, and 640 bytes for each file
#: its agent has read; one that was let go is read from the store again, and its agent views a file before changing it.
#: Every command looks through them, too. Items, those asked for longest ago let go first.
IDLE_LANES_MAX = 100


class ConfigSource(Protocol):
    """Where the configuration in force comes from: it may change while the workspace is open."""

    @property
    def config(self) -> Config: ...


class FixedConfig(Struct, frozen=True):
    config: Config


#: The source of one workspace. strict: BadConfig when a file of its repository is wrong; else that file is left out.
MakeSource = Callable[[Path, bool], ConfigSource]


@dataclass(slots=True)
class Workspace:
    record: WorkspaceRecord
    source: ConfigSource
    claims: Claims
    lanes: dict[str, LaneState] = field(default_factory=dict)
    #: client_id -> the session it looks at.
    current: dict[str, str] = field(default_factory=dict)
    #: The client that has approvals skipped; empty: they are asked for. Deny rules hold in any case.
    skip_given_by: str = ""
    #: What is in force; `reload_config` reads again what has changed.
    config: Config = field(init=False)
    feed: Feed = field(init=False)
    _known_files: dict[str, KnownFiles] = field(default_factory=dict)
    #: Commands under way; they hold it open too, or a Run could start in a workspace that is gone.
    _in_use: int = 0

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Refused when the workspace was let go since the caller looked it up. See `Workspaces.in_use`."""
        if self.feed.closed:
            raise WorkspaceClosing(f"Workspace {self.id} is being closed; create it again with its path.")
        self._in_use += 1
        try:
            yield
        finally:
            self._in_use -= 1

    @property
    def _may_become_live(self) -> bool:
        """A command is under way, or a Lane is in doubt, which may turn out to have a live Run."""
        return self._in_use > 0 or any(lane.loaded and lane.stale for lane in self.lanes.values())

    @property
    def is_held(self) -> bool:
        return self.claims.held or self._may_become_live

    @property
    def is_idle(self) -> bool:
        return not self.live_runs() and not self._may_become_live

    @property
    def id(self) -> str:
        return self.record.id

    def __post_init__(self) -> None:
        self.reload_config()

    def reload_config(self) -> None:
        """Costs a look at a dozen files, so not at each use: when a Run starts, and when somebody asks to see it."""
        self.config = self.source.config

    @property
    def root(self) -> Path:
        return Path(self.record.path)

    def known_files(self, session_id: str) -> KnownFiles:
        """What the agent of this session has read so far. Lost with the process: then it reads again."""
        return self._known_files.setdefault(session_id, KnownFiles())

    def forget(self, session_id: str) -> None:
        """The session is gone."""
        self.lanes.pop(session_id, None)
        self._known_files.pop(session_id, None)

    def known_lane(self, session_id: str) -> LaneState | None:
        """The Lane of this session if it is in memory: from now on the one that was asked for last."""
        if lane := self.lanes.pop(session_id, None):
            self.lanes[session_id] = lane
        return lane

    def evict_idle_lanes(self) -> None:
        """Of those beyond the limit. A session must never have two, whose locks would know nothing of each other: one
        that is still there when this is the last to let go of it is in somebody's hands, and stays."""
        if len(self.lanes) <= IDLE_LANES_MAX:
            return
        idle = [session_id for session_id, lane in self.lanes.items() if lane.is_idle]
        for session_id in idle[:-IDLE_LANES_MAX]:
            let_go = ref(self.lanes.pop(session_id))
            if (lane := let_go()) is not None:
                self.lanes[session_id] = lane
            else:
                self._known_files.pop(session_id, None)

    def is_busy(self, session_id: str) -> bool:
        lane = self.lanes.get(session_id)
        return lane is not None and lane.is_busy

    def attached_clients(self, session_id: str) -> int:
        return sum(1 for looked_at in self.current.values() if looked_at == session_id)

    def view(self, session: SessionRecord) -> SessionView:
        return SessionView(session, self.is_busy(session.id), self.attached_clients(session.id))

    @property
    def skip_approvals(self) -> bool:
        return bool(self.skip_given_by)

    def skip(self, given_by: str) -> None:
        """Have approvals skipped for this client, or asked for again (empty). All readers receive it."""
        if given_by != self.skip_given_by:
            self.skip_given_by = given_by
            self.feed.announce(self.feed.encoder.skip(given_by))

    def look_at(self, client_id: str, session_id: str) -> None:
        """This client looks at this session from now on; an empty one: at none. Whoever is there is told."""
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
        #: Called when the last client is gone while Runs are live.
        self._on_abandoned = on_abandoned
        self._open: dict[str, Workspace] = {}
        #: One at a time: two clients that open the same directory at once must get the same workspace.
        self._opening = asyncio.Lock()
        self._retired: dict[str, None] = {}
        #: Workspace id -> what is said of its damage, to everybody who asks for it.
        self._damaged: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        #: Loop time since which there was no workspace.
        self.idle_since: float | None = None

    # --- finding -------------------------------------------------------------------------------------------------

    @property
    def is_unused(self) -> bool:
        """Nothing is open, and nothing about to be."""
        return not self._open and not self._opening.locked()

    def all(self) -> list[Workspace]:
        return list(self._open.values())

    @property
    def damaged_count(self) -> int:
        return len(self._damaged)

    async def live_runs(self) -> list[RunRecord]:
        """Of every workspace, since a live Run holds it open. One in which damage is met hides no other's."""
        found: list[RunRecord] = []
        for workspace in self.all():
            with suppress(StoreDamaged):
                found += await self._store.live_runs(workspace.id)
        return found

    def get(self, workspace_id: str) -> Workspace:
        self._refuse_damaged(workspace_id)
        if workspace := self._open.get(workspace_id):
            return workspace
        if self._closed:  # not "create it again": that would be refused, too
            raise ShuttingDown("The server is shutting down; try again in a moment.")
        raise WorkspaceNotFound(f"Workspace {workspace_id} is not open; create it again with its path.")

    async def lane(self, workspace: Workspace, session_id: str) -> LaneState:
        """The Lane of a session, read from the store when it is first asked for."""
        if (lane := workspace.known_lane(session_id)) and not lane.deleted:
            return lane
        session = await self._store.session(workspace.id, session_id)
        if session is None:
            raise SessionNotFound(f"Session {session_id} does not exist in workspace {workspace.id}.")
        workspace.evict_idle_lanes()
        # Somebody else may have been first while the store was asked.
        return workspace.lanes.setdefault(session_id, LaneState(session, workspace.feed))

    def new_lane(self, workspace: Workspace, session: SessionRecord) -> LaneState:
        workspace.evict_idle_lanes()
        lane = workspace.lanes[session.id] = LaneState(session, workspace.feed, stale=False, loaded=True)
        return lane

    @contextmanager
    def in_use(self, workspace: Workspace) -> Iterator[None]:
        """Around every command; the last one to be over lets go of a workspace that nobody else holds."""
        try:
            with workspace.in_use():
                yield
        finally:
            if not workspace.is_held:
                self.sweep()

    # --- opening and closing -------------------------------------------------------------------------------------

    async def open(self, path: str, client_id: str | None) -> Workspace:
        """The workspace of this directory, whatever way it is spelled; the client holds it for a while."""
        return await self._open_resolved(_resolved(path), client_id)

    async def reopen(self, path: str) -> Workspace:
        """A workspace that Runs hold, by its stored path; the directory may be gone meanwhile.

        Its clients lost their streams with the last process: they have the grace to come back, like after any loss."""
        workspace = await self._open_resolved(path, None)
        lost = workspace.claims.stream_opened(_LOST, _LOST)
        workspace.claims = lost.stream_closed(_LOST, _LOST, _now_ms())
        return workspace

    async def _open_resolved(self, path: str, client_id: str | None) -> Workspace:
        async with self._opening:
            if client_id is not None and client_id in self._retired:
                raise ClientRetired(f"client {client_id} was retired; make a new client_id")
            now = self._clock.now_ms()
            new_id = self._ids.new("w")
            new = WorkspaceRecord(new_id, path, now, first_position(new_id))
            record = await self._store.workspace(path, new)
            self._refuse_damaged(record.id)
            workspace = self._open.get(record.id) or await self._load(record, for_client=client_id is not None)
            if client_id is not None:
                workspace.claims = workspace.claims.opened(client_id, _now_ms())
                self.sweep()
            return workspace

    async def _load(self, record: WorkspaceRecord, *, for_client: bool) -> Workspace:
        # With nobody to tell, one repository's mistake must not keep the server from going on with its Runs.
        source = self._make_source(Path(record.path), for_client)
        claims = Claims(int(self._server.hold_s * 1000), int(self._server.grace_s * 1000))
        workspace = Workspace(record, source, claims)
        _, head = await self._store.bounds(record.id)
        workspace.feed = Feed(record.id, head, self._store, self._encoder, self._clock, workspace)
        self._open[record.id] = workspace
        self.idle_since = None
        return workspace

    def set_aside(self, record: WorkspaceRecord, error: KedgeError) -> None:
        """It is damaged: from now on everybody is refused, and nothing more is written to it.

        For the start, when no Run of it is at work yet."""
        has_remedy = isinstance(error, StoreDamaged) and error.remedy
        remedy = "" if has_remedy else f"; {RESTORE_BACKUP}"
        told = f"workspace {record.id} ({record.path}) is damaged and left as it is: {error.message}{remedy}"
        self._damaged[record.id] = told
        log.error("%s; other workspaces are served", told)
        if workspace := self._open.get(record.id):
            self._close(workspace)

    def _refuse_damaged(self, workspace_id: str) -> None:
        if told := self._damaged.get(workspace_id):
            raise StoreDamaged(told)

    def release(self, workspace_id: str, client_id: str) -> None:
        workspace = self.get(workspace_id)
        workspace.claims = workspace.claims.released(client_id)
        self.sweep()

    def retire(self, client_id: str) -> None:
        """The client is gone for good: nothing of it holds anything, and its late creates are refused."""
        self._retired[client_id] = None
        while len(self._retired) > RETIRED_CLIENTS_MAX:
            del self._retired[next(iter(self._retired))]
        for workspace in self.all():
            workspace.claims = workspace.claims.dropped(client_id)
            workspace.look_at(client_id, "")
        self.sweep()

    def stream_opened(self, workspace: Workspace, client_id: str, stream_id: str) -> None:
        if client_id in self._retired:
            raise ClientRetired(f"client {client_id} was retired; make a new client_id")
        workspace.claims = workspace.claims.stream_opened(client_id, stream_id)
        self.sweep()

    def stream_closed(self, workspace: Workspace, client_id: str, stream_id: str) -> None:
        workspace.claims = workspace.claims.stream_closed(client_id, stream_id, _now_ms())
        self.sweep()

    def look_at(self, workspace: Workspace, client_id: str, session_id: str) -> None:
        """The client's current session; an empty one: none."""
        if not workspace.claims.has(client_id):
            raise ClientNotAttached(f"client {client_id} does not hold workspace {workspace.id}; create it first")
        workspace.look_at(client_id, session_id)

    def skip(self, workspace: Workspace, client_id: str, skip: bool) -> None:
        """Skip approvals as long as this client holds the workspace; any client may end that."""
        if skip and not workspace.claims.has(client_id):
            raise ClientNotAttached(f"client {client_id} does not hold workspace {workspace.id}; create it first")
        where = f"workspace {workspace.id} ({workspace.record.path})"
        if skip:
            log.warning("approvals are skipped in %s: client %s asked for it", where, client_id)
        elif workspace.skip_approvals:
            log.warning("approvals are asked for again in %s: client %s asked for it", where, client_id)
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
                # Who comes back may have missed that it was deleted: the log tells the ends of its Runs.
        reader = await workspace.feed.reader(after, session_id, deltas=deltas)
        try:
            # Behind the reader's start, so that none can be missed; one that is put meanwhile may come twice.
            asks = await self._store.asks(workspace.id)
        except BaseException:
            reader.close()
            raise
        encode = workspace.feed.encoder.encode
        wanted = [ask for ask in asks if session_id in (None, ask.session_id)]
        reader.pending = b"".join(encode(None, ask.session_id, Asked(ask.run_id, ask.id), ask) for ask in wanted)
        return reader

    # --- time ----------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Let go of what nobody holds any more, and plan the next look. Called whenever a claim or a Run ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = _now_ms()
        lapses: list[int] = []
        for workspace in self.all():
            workspace.claims = workspace.claims.lapsed(now)
            for client_id in [known for known in workspace.current if not workspace.claims.has(known)]:
                workspace.look_at(client_id, "")
            if workspace.skip_approvals and not workspace.claims.has(workspace.skip_given_by):
                log.warning("approvals are asked for again in workspace %s: the client has left", workspace.id)
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
            # One millisecond later than the lapse: a timer may come early by less than that.
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
    """The time that claims go by: the loop's, since the machine's clock may be set, and claims end early or never."""
    return int(asyncio.get_running_loop().time() * 1000)


def _resolved(path: str) -> str:
    if not os.path.isabs(path):
        raise Invalid(f"path must be absolute, not {path!r}")
    try:
        resolved = Path(path).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # not there, not allowed, a loop of links, a NUL
        raise Invalid(f"{path!r} does not exist or cannot be reached") from None
    if not resolved.is_dir():
        raise Invalid(f"{path} is not a directory")
    return str(resolved)
