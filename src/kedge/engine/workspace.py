"""One open workspace: its Lanes, its feed, its configuration, and the claims that keep it open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar, TypeVarTuple
from weakref import ref

from msgspec import Struct
from msgspec.structs import replace

from kedge.config.schema import Config
from kedge.core.claims import Claims
from kedge.core.kept_commands import kept_now
from kedge.core.records import RunRecord, SessionRecord, SessionView, WorkspaceRecord
from kedge.core.transcript import Message
from kedge.engine.extension_port import Extensions, NoExtensions
from kedge.engine.feed import Feed
from kedge.engine.lane_state import LaneState
from kedge.errors import DirectoryTimeout, Invalid, NoNode, WorkspaceClosing
from kedge.tools import file_threads
from kedge.tools.file_threads import FileCall, FileThreads
from kedge.tools.known_files import KnownFiles

log = logging.getLogger("kedge.engine")

#: Idle sessions in memory per workspace: more than a user returns to. Each takes about 2 KB, plus 640 bytes per file
#: that its agent has read. An evicted one is loaded again on demand, and its agent has to view files again before it
#: changes them. Every command scans them. Items, the least recently used are evicted first.
IDLE_LANES_MAX = 100

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ConfigSource(Protocol):
    """A source of the current configuration, which may change while the workspace is open. Blocking."""

    @property
    def config(self) -> Config: ...

    @property
    def problem(self) -> str:
        """The reason why its files are not in effect; empty: they are. As of the last access to `config`."""


class FixedConfig(Struct, frozen=True):
    """A configuration that never changes."""

    config: Config
    problem: str = ""


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
    #: Why the current configuration files are not in effect; empty: they are.
    config_problem: str = ""
    lanes: dict[str, LaneState] = field(default_factory=dict)
    #: client_id -> its current session.
    current: dict[str, str] = field(default_factory=dict)
    #: False: no live node has the directory. This one accepts prompts for it, and no Run begins.
    has_directory: bool = True
    #: A node with the directory is alive now: this workspace closes, even if clients hold it.
    is_leaving: bool = False
    feed: Feed = field(init=False)
    extensions: Extensions = field(default_factory=NoExtensions)
    #: The Position up to which its log was trimmed, about.
    trimmed_to: int = 0
    _known_files: dict[str, KnownFiles] = field(default_factory=dict)
    _reloading: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Running commands. They keep the workspace open, or a Run could start in a closed one.
    _in_use: int = 0

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold the workspace open; WorkspaceClosing if it was closed meanwhile. See `Workspaces.in_use`."""
        if self.feed.closed or self.is_leaving:
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
        return (self.claims.held and not self.is_leaving) or self._may_become_live

    @property
    def is_idle(self) -> bool:
        return not self.live_runs() and not self._may_become_live and not self.has_kept

    @property
    def has_kept(self) -> bool:
        """True if a kept command is running. It keeps the workspace, and so the server, open."""
        return any(lane.has_kept for lane in self.lanes.values())

    @property
    def id(self) -> str:
        return self.record.id

    async def reload_config(self) -> None:
        """Reload the configuration if its files changed. DirectoryTimeout if the directory does not answer.

        Stats about a dozen files; called when a client opens the workspace, when a prompt is accepted, when a Run
        starts, and when the configuration is shown."""
        if isinstance(self.source, FixedConfig):
            return
        limit = asyncio.timeout(file_threads.LOOK_S)
        try:
            async with limit, self._reloading:  # one thread at a time
                self.config, problem = await self.files.run(lambda: (self.source.config, self.source.problem))
            self.set_config_problem(problem)
        except DirectoryTimeout:
            raise
        except Exception:  # an accepted Run is executed, whatever the files contain
            if limit.expired():  # another caller waits for the directory
                raise self.files.timeout() from None
            log.exception("the configuration of %s could not be reloaded; keeping the last one", self.record.path)

    def set_config_problem(self, problem: str) -> None:
        if problem != self.config_problem:
            self.config_problem = problem
            self.feed.announce(self.feed.encoder.config_problem(problem))

    def require_directory(self) -> None:
        if not self.has_directory:
            raise no_node(self.record.path)

    @property
    def root(self) -> Path:
        return Path(self.record.path)

    def with_draft(self, message: Message, now_ms: int) -> Message:
        """Return the message; a streaming one with all the text it has so far."""
        draft = None if message.finish else self.feed.streaming(message.id)
        return message if draft is None else draft.message(now_ms)

    def known_files(self, session_id: str) -> KnownFiles:
        """Return the files that the agent of this session has read. Lost with the process: then it reads again."""
        return self._known_files.setdefault(session_id, KnownFiles())

    def forget(self, session_id: str) -> None:
        """Drop the state of a deleted session."""
        self.lanes.pop(session_id, None)
        self._known_files.pop(session_id, None)

    def forget_files(self, session_id: str) -> None:
        """Drop what the agent of this session has read: it must view files again before it changes them."""
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
        lane = self.lanes.get(session.id)
        if session.kept_commands or (lane is not None and lane.own_kept):
            session = replace(session, kept_commands=kept_now(session.kept_commands, lane.own_kept if lane else {}))
        return SessionView(session, self.is_busy(session.id), self.attached_clients(session.id))

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


class NoDirectory(FileThreads):
    """The threads of a directory that no live node has."""

    def __init__(self, path: str) -> None:
        super().__init__(f"The directory of workspace {path}")
        self._path = path

    def begin(self, function: Callable[[*Ts], T], *args: *Ts) -> FileCall[T]:
        raise no_node(self._path)


def no_node(path: str) -> NoNode:
    return NoNode(f"No live node serves {path}. Start one with --workspace-root. List the nodes with: kedge nodes")


def resolved_directory(path: str) -> str:
    """Blocking."""
    try:
        resolved = Path(path).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # missing, not permitted, a loop of links, a NUL byte
        raise Invalid(f"{path!r} does not exist or is not accessible.") from None
    if not resolved.is_dir():
        raise Invalid(f"{path} is not a directory.")
    return str(resolved)


#: Makes the extensions of an open workspace.
MakeExtensions = Callable[[Workspace], Extensions]
