"""The store's contract. `tests/store/` tests every store against it.

- `append` is the only way to change the log or the records of a workspace. It is atomic.
- A Write for a Lane states the version that it is based on; if the Lane has another version, `VersionConflict`.
- The entries of a workspace's log get consecutive Positions, in the order in which they become visible to `read`.
- A second RunEnded of a Run raises `VersionConflict`, whatever else is in the Write. A Run is identified by its session
  and its run_id; deleting the session frees the run_id.
- An Ask is settled once: replacing a settled Ask raises `VersionConflict`, so that the first answer wins. Storing the
  identical Ask again is harmless.
- A record cannot move to another session or workspace: `VersionConflict`.
- When `append` returns, the Write survives a crash of the process and, if it is `durable`, a power failure.
- Each entry has a hash over itself and the previous entry; `read` raises `StoreDamaged` if they do not match.
- The content of an attachment is stored once in a workspace, however many prompts and messages name its digest. It is
  kept as long as a session has, or had, a Run or message that names it, and is removed with the last such session. A
  record that names a digest without a content raises `VersionConflict`.
- A Write with the RunEnded of a Run and its record stores the facts of that Run, for statistics. They are kept when the
  session is deleted, and removed with the workspace. Of all workspaces together the latest FACTS_MAX are kept.
- Audit entries are kept when their session or workspace is removed. Of all workspaces together the latest AUDIT_MAX are
  kept.
- Storing a streamed message takes time linear in its length: tails are added as they arrive, and replaced when the
  complete message is stored.
- Long work is done in slices, between which other Writes happen: `copy_messages` and `reclaim` return after a slice.
  What is copied but not complete, or deleted but not removed, is invisible to every read.
- Values that no store can hold (a lone surrogate, a number that is not finite) raise `WrongType`.
- An error of the system or the database is `StoreUnavailable`: the Write may have happened, and the caller reads again.
- Several stores may be open on one PostgreSQL database. A change of a workspace that another node serves raises
  `LeaseLost` (`leases`).

A Write that raises anything but `StoreUnavailable` changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from kedge.core.approvals import Ask, Grant
from kedge.core.audit import AuditEntry
from kedge.core.events import Event
from kedge.core.records import (
    EVERY_RUN,
    AttachmentContent,
    FileVersion,
    LaneRecord,
    RunRecord,
    RunSpan,
    SessionRecord,
    WorkspaceRecord,
)
from kedge.core.run_facts import RunFacts
from kedge.core.transcript import Message, Tail
from kedge.core.users import UserRecord


class LaneWrite(Struct, frozen=True):
    """The Lane after the Write, and the version that it must have before."""

    lane: LaneRecord
    expected_version: int


class Write(Struct, frozen=True):
    """One atomic change of one workspace. A record is inserted, or replaces the record with the same id.

    Attachments are stored first, so that new records may name them. Cuts come before messages, and must not contain
    messages of the Write. Messages are stored before tails, so that a new
    message may have tails, and deletions come last. A tail without its message in the session raises
    `VersionConflict`."""

    workspace_id: str
    events: tuple[tuple[str, Event], ...] = ()  # (session_id, event), in order
    lane: LaneWrite | None = None
    sessions: tuple[SessionRecord, ...] = ()
    runs: tuple[RunRecord, ...] = ()
    messages: tuple[Message, ...] = ()
    tails: tuple[Tail, ...] = ()
    #: Deletes the sessions with their messages, Lanes, Runs, attachments, Asks, session grants and file versions: no
    #: read returns them any more, and `reclaim` removes them. The log keeps its entries.
    deleted_sessions: tuple[str, ...] = ()
    asks: tuple[Ask, ...] = ()
    #: Removes the messages of a session, from this one to its last one before this Write: no read returns them any
    #: more, and `reclaim` removes them. Pairs of session_id and message_id; MessageNotFound if the session has no such
    #: message.
    cuts: tuple[tuple[str, str], ...] = ()
    grants: tuple[Grant, ...] = ()
    #: Ids of grants of other workspaces are ignored.
    deleted_grants: tuple[str, ...] = ()
    files: tuple[FileVersion, ...] = ()
    #: Contents of versions in `files`, by id. The first content of a version is kept, so that a Write can be repeated.
    originals: Mapping[str, bytes] = {}
    attachments: tuple[AttachmentContent, ...] = ()
    #: The run_ids in `runs` with the prompt that is stored already: it may be long, and is not written again.
    unchanged_prompts: frozenset[str] = frozenset()
    #: For the audit listing, oldest first.
    audit: tuple[AuditEntry, ...] = ()
    #: False: a power failure may lose the Write, a crash of the process may not.
    durable: bool = True


class LogEntry(Struct, frozen=True):
    position: int
    session_id: str
    event: Event


class KnownWorkspace(Struct, frozen=True):
    """A stored workspace, open or not."""

    record: WorkspaceRecord
    sessions: int
    live_runs: int
    grants: int
    #: When a session was changed last; 0: no session. Milliseconds since the epoch.
    used_at: int


class CopiedMessages(Struct, frozen=True):
    """One slice of a copy."""

    count: int
    #: The last message that was copied; empty: none was left.
    last: str = ""
    #: The copy of the last complete summary in this slice, and its original; empty: none.
    summary_id: str = ""
    summary_source: str = ""


class SearchHit(Struct, frozen=True):
    session_id: str
    message_id: str
    #: One line of text around the first match.
    snippet: str


class UserStore(Protocol):
    """The users, and the audit listing. They belong to no workspace; all nodes of a cluster share them."""

    async def all(self) -> list[UserRecord]:
        """Return the users by name."""
        ...

    async def add(self, user: UserRecord, entry: AuditEntry) -> None:
        """Store the user and the entry. UserExists if the name is in use."""

    async def remove(self, name: str, entry: AuditEntry) -> None:
        """Remove the user, and store the entry. UserNotFound if there is no such user."""

    async def audit(
        self, limit: int, before: int = 0, author: str | None = None, workspace_id: str | None = None
    ) -> tuple[list[AuditEntry], int]:
        """Return up to `limit` entries, the last stored first, and the number to continue with as `before`; 0: there
        are no more. `author` and `workspace_id` select entries."""
        ...


class Store(Protocol):
    @property
    def users(self) -> UserStore: ...

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Write everything to disk and close. Closing twice is harmless."""

    # The log

    async def append(self, write: Write) -> int:
        """Apply the Write; return the Position of the last entry of the workspace's log, new or not.

        Like the other methods of the log, raise WorkspaceNotFound for an unknown workspace.

        The last `len(write.events)` entries are those of this Write. A RunRecord whose RunAccepted is in the Write is
        stored with the Position of that entry."""
        ...

    async def read(self, workspace_id: str, after: int, limit: int) -> list[LogEntry]:
        """Return up to `limit` entries after a Position, oldest first."""
        ...

    async def bounds(self, workspace_id: str) -> tuple[int, int]:
        """Return (floor, head): the log holds floor < Position <= head. They are equal if it is empty."""
        ...

    async def trim(self, workspace_id: str, keep: int) -> None:
        """Remove all entries but the last `keep`; the floor rises. Records are not affected."""

    async def verify(self, workspace_id: str) -> int:
        """Check the hash chain; return the number of entries, or raise StoreDamaged with the first bad Position."""
        ...

    # Records

    async def workspace(self, path: str, new: WorkspaceRecord) -> WorkspaceRecord:
        """Return the workspace of this path; store `new` if none exists."""
        ...

    async def workspace_at(self, path: str) -> WorkspaceRecord | None:
        """Return the workspace of this path, if it is stored."""
        ...

    async def workspaces(self) -> list[WorkspaceRecord]: ...

    async def known_workspaces(self, after: str, limit: int) -> list[KnownWorkspace]:
        """Return up to `limit` workspaces whose ids follow `after`, by id."""
        ...

    async def known_workspace(self, workspace_id: str) -> KnownWorkspace | None: ...

    async def remove_workspace(self, workspace_id: str, audit: tuple[AuditEntry, ...] = ()) -> None:
        """Remove the workspace with all its sessions, its log and its grants, and store the audit entries.
        WorkspaceNotFound if it is unknown.

        From then on it is unknown, and its path can be used again. Its rows are deleted by `purge`."""

    async def purge(self) -> bool:
        """Free some space of removed workspaces, in a time that delays no other Write; return True if more is left."""
        ...

    async def live_workspaces(self) -> list[WorkspaceRecord]:
        """Return the workspaces with live Runs, in time proportional to the live Runs."""
        ...

    async def sessions(
        self,
        workspace_id: str,
        after: tuple[int, str] | None = None,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[SessionRecord]:
        """Return the sessions, last updated first, then by id. `after`: those after this (updated_at, id).

        The last session is the one with which their records have `bytes_max` bytes: one session at least."""
        ...

    async def session(self, workspace_id: str, session_id: str) -> SessionRecord | None: ...

    async def lane(self, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        """Return the Lane and its live Runs; a new LaneRecord if none is stored."""
        ...

    async def run(self, workspace_id: str, run_id: str) -> RunRecord | None: ...

    async def attachment(self, workspace_id: str, digest: str) -> bytes:
        """Return the content, checked against its digest. StoreDamaged if it is missing or differs."""
        ...

    async def runs(
        self, session_id: str, limit: int, bytes_max: int | None = None, within: RunSpan = EVERY_RUN
    ) -> list[RunRecord]:
        """Return the last `limit` Runs in this span, in ascending order of seq.

        The first is the one with which they have `bytes_max` bytes, as stored: one Run at least."""
        ...

    async def run_facts(
        self, after: int, limit: int, since: int, until: int, workspace_id: str | None = None
    ) -> tuple[list[RunFacts], int]:
        """Return facts of Runs that ended at `since` or later and before `until`, in the order in which they were
        stored, and the number to continue after; 0: there are no more. Begin with 0."""
        ...

    async def live_runs(self, workspace_id: str) -> list[RunRecord]:
        """Return the Runs that have not ended, by session and seq.

        One workspace at a time, so that damage in one does not affect the others."""
        ...

    async def messages(
        self,
        session_id: str,
        after: str | None,
        limit: int,
        bytes_max: int | None = None,
        before: str | None = None,
        run_id: str | None = None,
    ) -> list[Message]:
        """Return messages with their tails, of one Run or of all, in the order of their first Write; `after` excludes
        that message and the earlier ones. MessageNotFound if the session does not hold it.

        With `before` instead, it returns those directly before that message; if it is empty, the last ones.
        `bytes_max` ends a page early: with the message with which their encoded parts have as many bytes."""
        ...

    async def last_messages(self, session_id: str, limit: int, first: str = "") -> list[Message]:
        """Return the last `limit` messages in the same order, from message `first` on if the session holds it."""
        ...

    async def message(self, workspace_id: str, message_id: str) -> Message | None: ...

    async def message_runs(self, session_id: str, message_id: str) -> tuple[set[str], set[str]]:
        """Return the run_ids of the messages before this one, and of those from it on. MessageNotFound if the session
        does not hold it."""
        ...

    async def copy_messages(
        self, workspace_id: str, source: str, target: str, after: str, until: str, new_ids: Sequence[str]
    ) -> CopiedMessages:
        """Copy messages with their tails from one session to a new one: those after `after` (empty: from the first) and
        before `until`, as many as have a new id and fit into one slice. The new ids are used in order.

        The copies are invisible until a Write stores the SessionRecord of the new session. Deleting that session gives
        the copy up, and so does a crash. MessageNotFound if the source does not hold `after` or `until`."""
        ...

    async def reclaim(self) -> bool:
        """Do one slice of the removal of deleted sessions and of copies that were given up, or of the return of free
        space to the file system. Return False if nothing is left to do."""
        ...

    async def search(self, workspace_id: str, query: str, limit: int) -> list[SearchHit]:
        """Return messages with a word for each word of the query that begins with it, ignoring case; newest first.

        Searches the Text parts of complete messages, without tails; `store/search_tokens.py` has the limits."""
        ...

    # Approvals and undo

    async def asks(self, workspace_id: str) -> list[Ask]:
        """Return the pending Asks in the order of their first Write."""
        ...

    async def session_asks(self, session_id: str, *, settled: bool = False) -> list[Ask]:
        """Return the pending Asks of one session in the same order; with `settled`, all its Asks."""
        ...

    async def ask(self, workspace_id: str, ask_id: str) -> Ask | None:
        """Return the Ask, pending or settled."""
        ...

    async def grants(self, workspace_id: str) -> list[Grant]:
        """Return the grants in the order of their first Write."""
        ...

    async def file_versions(self, workspace_id: str, session_id: str, run_id: str | None) -> list[FileVersion]:
        """Return the versions, undone ones too, in the order of their first Write; of all Runs if `run_id` is None."""
        ...

    async def file_version(self, workspace_id: str, version_id: str) -> FileVersion | None: ...

    async def original(self, workspace_id: str, version_id: str) -> bytes:
        """Return the content of a file version. `StoreDamaged` if it is missing."""
        ...
