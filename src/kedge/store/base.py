"""The store's contract. `tests/store/` holds every store to it.

- `append` is the only way to change a workspace's log or records. It is atomic: all of a Write happens, or none.
- A Write for a Lane names the version it was decided on; if the Lane has moved on, `VersionConflict` and no change.
- Entries of one workspace's log get consecutive Positions, in the order in which they become visible to `read`.
- A second RunEnded for a Run is refused (`VersionConflict`), whatever else is in the Write. A Run is known by its
  session and its run_id, which is free again once the session is deleted.
- An Ask is settled once: one that is not pending any more is not replaced by another (`VersionConflict`), so that the
  first answer wins. Putting the very same again is harmless.
- A record that exists under another session or workspace is not moved: `VersionConflict`.
- When `append` returns, the Write survives the death of the process; if it is `durable`, also a loss of power.
- Each entry carries a hash over itself and the entry before; `read` refuses (`StoreDamaged`) what does not fit.
- Storing a streamed message costs its length: tails are added as they come and folded in when the message is put whole.
- What no store can keep (half a surrogate pair, a number that is not finite) is `WrongType`, and no change.
- An OS or database fault is `StoreUnavailable`; the caller cannot know whether its Write happened and reads again.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from kedge.core.approvals import Ask, Grant
from kedge.core.events import Event
from kedge.core.records import FileVersion, LaneRecord, RunRecord, SessionRecord, WorkspaceRecord
from kedge.core.transcript import Message, Tail


class LaneWrite(Struct, frozen=True):
    """The Lane after the Write, and the version it must have before it."""

    lane: LaneRecord
    expected_version: int


class Write(Struct, frozen=True):
    """One atomic change of one workspace. Records are put whole: inserted, or replaced by their id.

    Within a Write messages come before tails, so that a new message may have some, and deletions come last. A tail for
    a message that is not in its session is refused (`VersionConflict`)."""

    workspace_id: str
    events: tuple[tuple[str, Event], ...] = ()  # (session_id, event), in order
    lane: LaneWrite | None = None
    sessions: tuple[SessionRecord, ...] = ()
    runs: tuple[RunRecord, ...] = ()
    messages: tuple[Message, ...] = ()
    tails: tuple[Tail, ...] = ()
    #: A deleted session takes its messages, its Lane, its Runs, its Asks, the grants for it alone and its file versions
    #: with it. The log keeps its entries.
    deleted_sessions: tuple[str, ...] = ()
    asks: tuple[Ask, ...] = ()
    grants: tuple[Grant, ...] = ()
    #: Ids of grants of this workspace; others are left alone.
    deleted_grants: tuple[str, ...] = ()
    files: tuple[FileVersion, ...] = ()
    #: False: may be lost with the machine's power (never with the process alone).
    durable: bool = True


class LogEntry(Struct, frozen=True):
    position: int
    session_id: str
    event: Event


class SearchHit(Struct, frozen=True):
    session_id: str
    message_id: str
    #: Some text around the first match, one line.
    snippet: str


class Store(Protocol):
    async def open(self) -> None: ...

    async def close(self) -> None:
        """Everything appended is on disk when this returns. Closing twice is harmless."""

    # The log

    async def append(self, write: Write) -> int:
        """Do it; returns the Position of the last entry of the workspace's log afterwards.

        WorkspaceNotFound if there is no such workspace; so do the other methods about the log.

        The entries of this Write are the last `len(write.events)` up to it. RunRecords in `runs` for which the Write
        holds a RunAccepted are stored with `position` set to that entry's Position."""
        ...

    async def read(self, workspace_id: str, after: int, limit: int) -> list[LogEntry]:
        """Up to `limit` entries with a higher Position, oldest first."""
        ...

    async def bounds(self, workspace_id: str) -> tuple[int, int]:
        """(floor, head): every entry in floor < Position <= head can be read. Equal when the log is empty."""
        ...

    async def trim(self, workspace_id: str, keep: int) -> None:
        """Forget the oldest entries but the last `keep`; the floor rises. Records are not touched."""

    async def verify(self, workspace_id: str) -> int:
        """Check the whole hash chain; the number of entries checked, or StoreDamaged that names the first bad one."""
        ...

    # Records

    async def workspace(self, path: str, new: WorkspaceRecord) -> WorkspaceRecord:
        """The workspace of this path, made from `new` if there is none."""
        ...

    async def workspaces(self) -> list[WorkspaceRecord]: ...

    async def sessions(self, workspace_id: str) -> list[SessionRecord]:
        """Last updated first."""
        ...

    async def session(self, workspace_id: str, session_id: str) -> SessionRecord | None: ...

    async def lane(self, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        """The Lane and its live Runs; a fresh LaneRecord when nothing was ever written."""
        ...

    async def run(self, workspace_id: str, run_id: str) -> RunRecord | None: ...

    async def runs(self, session_id: str, limit: int) -> list[RunRecord]:
        """The last `limit` Runs by seq, ascending."""
        ...

    async def live_runs(self, workspace_id: str) -> list[RunRecord]:
        """Its Runs that have not ended, by session and seq. One workspace at a time: damage in one hides no other."""
        ...

    async def messages(self, session_id: str, after: str | None, limit: int) -> list[Message]:
        """In the order they were first put, tails included; those behind message `after` if given, or MessageNotFound
        if the session does not hold that one."""
        ...

    async def last_messages(self, session_id: str, limit: int) -> list[Message]:
        """The last `limit` of them, in the same order."""
        ...

    async def message(self, workspace_id: str, message_id: str) -> Message | None: ...

    async def search(self, workspace_id: str, query: str, limit: int) -> list[SearchHit]:
        """Messages that hold, for each word of the query, a word that begins with it, ignoring case; newest first.

        Searched is what people and models say (Text parts), as it was last put whole; `store/words.py` has the limits.
        """
        ...

    # Approvals and undo

    async def asks(self, workspace_id: str) -> list[Ask]:
        """The pending ones, oldest first: by when they were asked, then in the order they were first put."""
        ...

    async def session_asks(self, session_id: str) -> list[Ask]:
        """Those of one session that are pending, in the same order."""
        ...

    async def ask(self, workspace_id: str, ask_id: str) -> Ask | None:
        """Settled or not."""
        ...

    async def grants(self, workspace_id: str) -> list[Grant]:
        """In the order they were first put."""
        ...

    async def file_versions(self, workspace_id: str, session_id: str, run_id: str | None) -> list[FileVersion]:
        """In the order they were first put, undone ones included; those of all Runs if `run_id` is None. They come with
        their content, all at once: whoever cannot hold what a whole session changed asks Run by Run."""
        ...

    async def runs_with_files(self, session_id: str) -> list[str]:
        """The run_ids of the session that have a version which is not undone; the one whose first such version was put
        first comes first."""
        ...
