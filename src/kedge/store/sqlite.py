"""The store in a local SQLite database.

- One process: the data directory is locked (`data_directory`).
- One thread writes, with group commit, and up to three read (`sqlite_threads`), each with its own connection. No other
  connection of kedge writes or checkpoints.
- WAL mode, with `synchronous=FULL` for a durable Write.
- Three protections against damage. Each page has a checksum, which SQLite's `cksumvfs` verifies on every read
  (`sqlite_pages` covers its gaps). The log is a hash chain, which also detects entries that are valid but wrong,
  missing or outdated. The head file beside the database (`head_file`) detects a lost end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import apsw
from msgspec.structs import replace

from kedge.core.approvals import Ask, Grant
from kedge.core.audit import AuditEntry
from kedge.core.records import EVERY_RUN, FileVersion, LaneRecord, RunRecord, RunSpan, SessionRecord, WorkspaceRecord
from kedge.core.run_facts import RunFacts
from kedge.core.transcript import Message
from kedge.disk_space import full_disk
from kedge.errors import StoreError, StoreUnavailable
from kedge.store import codec, sqlite_reclaim, sqlite_removal, sqlite_write
from kedge.store.base import CopiedMessages, KnownWorkspace, LogEntry, SearchHit, Write
from kedge.store.data_directory import DataDirectory
from kedge.store.sqlite_connect import DATABASE, close, connect
from kedge.store.sqlite_reclaim import MESSAGE_VISIBLE, VISIBLE
from kedge.store.sqlite_reports import facts_page, search_hits
from kedge.store.sqlite_rows import MESSAGE, hash_at, known_of, message_of, ordinal_of, page_of_messages, runs_of
from kedge.store.sqlite_threads import SHORT_WRITE_BYTES_MAX, ReadThreads, WriteThread, store_error
from kedge.store.sqlite_users import SqliteUsers

P = ParamSpec("P")
T = TypeVar("T")

#: Entries that `verify` checks in one request: other reads are served in between.
_VERIFY_ENTRIES = 1_000

_RUN = "SELECT runs.record, prompts.prompt FROM runs LEFT JOIN prompts USING (workspace_id, run_id)"
# A seq is unique in a Lane; the other columns make the order deterministic in any case.
_BY_SEQ = "seq, runs.workspace_id, runs.run_id"
#: The largest integer of SQLite.
_UPDATED_AT_MAX = 2**63 - 1


def _read(
    subject: str, *, is_long: bool = False
) -> Callable[
    [Callable[Concatenate[SqliteStore, apsw.Connection, P], T]],
    Callable[Concatenate[SqliteStore, P], Coroutine[Any, Any, T]],
]:
    """Run a method in a read thread, inside one read transaction. An error about damage names the subject and the
    first argument, such as "workspace w1"."""

    def decorate(
        method: Callable[Concatenate[SqliteStore, apsw.Connection, P], T],
    ) -> Callable[Concatenate[SqliteStore, P], Coroutine[Any, Any, T]]:
        @wraps(method)
        async def read(store: SqliteStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
            _, reader = store.threads()
            named = " ".join([subject, *map(str, args[:1])])
            return await reader.ask(lambda db: method(store, db, *args, **kwargs), named, is_long=is_long)

        return read

    return decorate


class SqliteStore:
    """`vfs` names a registered SQLite VFS, with which tests count, delay or break file operations."""

    def __init__(self, directory: Path, *, vfs: str | None = None) -> None:
        self._directory = DataDirectory(directory)
        self._vfs = vfs
        self._reader: ReadThreads | None = None
        self._writer: WriteThread | None = None
        self.users = SqliteUsers(self.threads)

    async def open(self) -> None:
        """Open the store, blocking the event loop: nothing is served before it is open, and a cancellation in between
        cannot leave the directory locked."""
        if self._writer is not None:
            raise StoreError("this store is open or was closed; create another one")
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            self._directory.claim()
            undo.callback(self._directory.release)
            try:
                writing, connect_reader, head_file = connect(self._directory, self._vfs, undo)
                reading = connect_reader()
            except apsw.Error as error:
                raise store_error(error, str(self._directory.path / DATABASE)) from error
            except OSError as error:
                raise StoreUnavailable(
                    full_disk(self._directory.path, error)
                    or f"cannot use {self._directory.path} ({error.strerror}); check the directory and its disk"
                ) from error
            undo.pop_all()
        self._directory.watch(DATABASE, f"{DATABASE}-wal")

        def connect_checked() -> apsw.Connection:
            db = connect_reader()
            try:
                self._directory.check()  # by now the path may lead to the database of another server
            except StoreUnavailable:
                close(db)
                raise
            return db

        self._reader = ReadThreads(reading, loop, connect_checked, close)
        self._writer = WriteThread(writing, loop, self._finish, head_file, self._directory.check)

    async def close(self) -> None:
        if self._writer is None or self._reader is None:
            return
        self._reader.stop()
        self._writer.stop()
        await asyncio.to_thread(self._writer.join)

    def _finish(self) -> None:
        """Close everything; called in the write thread after the last Write."""
        writer, reader = self.threads()
        # The readers first: an open read transaction prevents a complete checkpoint.
        reader.join()
        try:
            self._directory.check()
        except StoreUnavailable:
            # SQLite removes the WAL by its path when it closes: that may be the WAL of another server by now.
            writer.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        else:
            # If this fails, the disk is full or gone; the next open reads everything from the WAL.
            with contextlib.suppress(apsw.Error):
                writer.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        close(writer.db)
        writer.head_file.close()
        self._directory.release()

    def threads(self) -> tuple[WriteThread, ReadThreads]:
        if self._writer is None or self._reader is None:
            raise StoreUnavailable("the store is not open yet")
        return self._writer, self._reader

    @property
    def commits(self) -> int:
        """Committed transactions: fewer than Writes if Writes share a transaction."""
        return self.threads()[0].commits

    @property
    def durable_commits(self) -> int:
        return self.threads()[0].durable_commits

    # --- The log ------------------------------------------------------------------------------------------------------

    async def append(self, write: Write) -> int:
        writer, _ = self.threads()
        subject = f"workspace {write.workspace_id}"
        size_bytes = codec.content_bytes(write)
        return await writer.ask(
            lambda db: sqlite_write.append(db, write),
            subject,
            durable=write.durable,
            is_long=size_bytes > SHORT_WRITE_BYTES_MAX,
            size_bytes=size_bytes,
        )

    async def trim(self, workspace_id: str, keep: int) -> None:
        writer, _ = self.threads()
        subject = f"workspace {workspace_id}"
        while await writer.ask(lambda db: sqlite_write.trim(db, workspace_id, keep), subject, is_long=True):
            pass

    async def verify(self, workspace_id: str) -> int:
        position, head = await self.bounds(workspace_id)
        checked = 0
        while position < head:
            entries = await self.read(workspace_id, position, min(_VERIFY_ENTRIES, head - position))
            if not entries:
                break  # trimmed meanwhile
            checked += len(entries)
            position = entries[-1].position
        return checked

    @_read("workspace")
    def bounds(self, db: apsw.Connection, workspace_id: str) -> tuple[int, int]:
        row = db.execute("SELECT floor, head FROM workspaces WHERE id = ?", (workspace_id,)).fetchone()
        if row is None:
            raise codec.unknown_workspace(workspace_id)
        return int(row[0]), int(row[1])

    @_read("workspace", is_long=True)
    def read(self, db: apsw.Connection, workspace_id: str, after: int, limit: int) -> list[LogEntry]:
        row = db.execute(
            "SELECT floor, floor_hash, head, head_hash FROM workspaces WHERE id = ?", (workspace_id,)
        ).fetchone()
        if row is None:
            raise codec.unknown_workspace(workspace_id)
        floor, floor_hash, head, head_hash = row
        start = max(after, floor)
        count = min(limit, head - start)
        if count <= 0:
            return []
        previous = floor_hash if start == floor else hash_at(db, workspace_id, start)
        rows = [
            codec.LogRow(*values)
            for values in db.execute(
                "SELECT position, session_id, kind, run_id, payload, hash FROM log"
                " WHERE workspace_id = ? AND position > ? ORDER BY position LIMIT ?",
                (workspace_id, start, count),
            )
        ]
        checked = codec.checked_entries(workspace_id, previous, start, rows)
        if len(checked) < count:
            raise codec.damaged(workspace_id, start + len(checked) + 1, "the entry is missing")
        if rows[-1].position == head and rows[-1].hash != head_hash:
            raise codec.damaged(workspace_id, head, "it is not the entry that was written last")
        return checked

    # --- Records ------------------------------------------------------------------------------------------------------

    async def workspace(self, path: str, new: WorkspaceRecord) -> WorkspaceRecord:
        if (known := await self.workspace_at(path)) is not None:
            return known  # without a write: a known workspace can be opened when the disk is full
        writer, _ = self.threads()
        subject = f"the workspace of {path}"
        return await writer.ask(lambda db: sqlite_write.workspace(db, path, new), subject, durable=True)

    @_read("the workspace of")
    def workspace_at(self, db: apsw.Connection, path: str) -> WorkspaceRecord | None:
        codec.check_texts((path,))
        row = db.execute("SELECT id, path, created_at, base FROM workspaces WHERE path = ?", (path,)).fetchone()
        return WorkspaceRecord(*row) if row else None

    @_read("the list of workspaces")
    def workspaces(self, db: apsw.Connection) -> list[WorkspaceRecord]:
        rows = db.execute("SELECT id, path, created_at, base FROM workspaces ORDER BY rowid")
        return [WorkspaceRecord(*row) for row in rows]

    @_read("the list of workspaces", is_long=True)
    def known_workspaces(self, db: apsw.Connection, after: str, limit: int) -> list[KnownWorkspace]:
        return known_of(db, "id > ? ORDER BY id LIMIT ?", (after, max(limit, 0)))

    @_read("workspace")
    def known_workspace(self, db: apsw.Connection, workspace_id: str) -> KnownWorkspace | None:
        known = known_of(db, "id = ?", (workspace_id,))
        return known[0] if known else None

    async def remove_workspace(self, workspace_id: str, audit: tuple[AuditEntry, ...] = ()) -> None:
        writer, _ = self.threads()
        subject = f"workspace {workspace_id}"
        await writer.ask(lambda db: sqlite_removal.remove(db, workspace_id, audit), subject, durable=True)

    async def purge(self) -> bool:
        writer, _ = self.threads()
        if not await self._has_removed():
            return False
        return await writer.ask(sqlite_removal.purge, "a removed workspace", is_long=True)

    @_read("removed workspaces")
    def _has_removed(self, db: apsw.Connection) -> bool:
        return db.execute("SELECT 1 FROM removed_workspaces LIMIT 1").fetchone() is not None

    @_read("the list of live runs")
    def live_workspaces(self, db: apsw.Connection) -> list[WorkspaceRecord]:
        live = "SELECT workspace_id FROM runs INDEXED BY runs_live WHERE state <> 'ended'"
        rows = db.execute(f"SELECT id, path, created_at, base FROM workspaces WHERE id IN ({live}) ORDER BY rowid")
        return [WorkspaceRecord(*row) for row in rows]

    @_read("workspace", is_long=True)
    def sessions(
        self,
        db: apsw.Connection,
        workspace_id: str,
        after: tuple[int, str] | None = None,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[SessionRecord]:
        rows = db.execute(
            "SELECT record FROM sessions WHERE workspace_id = ?1 AND updated_at <= ?2 AND (updated_at < ?2 OR id > ?3)"
            " ORDER BY updated_at DESC, id LIMIT ?4",
            (workspace_id, *(after or (_UPDATED_AT_MAX, "")), -1 if limit is None else limit),
        )
        return [codec.decode_session(record) for (record,) in codec.page(rows, lambda row: len(row[0]), bytes_max)]

    @_read("workspace")
    def session(self, db: apsw.Connection, workspace_id: str, session_id: str) -> SessionRecord | None:
        row = db.execute(
            "SELECT record FROM sessions WHERE id = ? AND workspace_id = ?", (session_id, workspace_id)
        ).fetchone()
        return codec.decode_session(row[0]) if row else None

    @_read("session")
    def lane(self, db: apsw.Connection, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        row = db.execute(
            "SELECT session_id, version, next_seq, mark FROM lanes WHERE session_id = ?", (session_id,)
        ).fetchone()
        live = db.execute(
            f"{_RUN} WHERE session_id = ? AND state <> 'ended' AND {VISIBLE} ORDER BY {_BY_SEQ}", (session_id,)
        )
        return LaneRecord(*row) if row else LaneRecord(session_id), runs_of(live)

    @_read("workspace")
    def run(self, db: apsw.Connection, workspace_id: str, run_id: str) -> RunRecord | None:
        runs = runs_of(
            db.execute(f"{_RUN} WHERE runs.workspace_id = ? AND runs.run_id = ? AND {VISIBLE}", (workspace_id, run_id))
        )
        return runs[0] if runs else None

    @_read("workspace", is_long=True)
    def attachment(self, db: apsw.Connection, workspace_id: str, digest: str) -> bytes:
        row = db.execute(
            "SELECT content FROM attachments JOIN attachment_contents USING (ordinal)"
            " WHERE workspace_id = ? AND digest = ?",
            (workspace_id, digest),
        ).fetchone()
        return codec.check_attachment(workspace_id, digest, row[0] if row else None)

    @_read("session", is_long=True)
    def runs(
        self,
        db: apsw.Connection,
        session_id: str,
        limit: int,
        bytes_max: int | None = None,
        within: RunSpan = EVERY_RUN,
    ) -> list[RunRecord]:
        latest = db.execute(
            f"{_RUN} WHERE session_id = ? AND {VISIBLE} AND seq < ? AND accepted_at <= ?"
            " AND (ended_at IS NULL OR ended_at >= ?)"
            " ORDER BY seq DESC, runs.workspace_id DESC, runs.run_id DESC LIMIT ?",
            (session_id, within.before_seq, within.until, within.since, max(limit, 0)),
        )
        return runs_of(codec.page(latest, lambda row: len(row[0]) + len(row[1] or b""), bytes_max))[::-1]

    @_read("the statistics", is_long=True)
    def run_facts(
        self, db: apsw.Connection, after: int, limit: int, since: int, until: int, workspace_id: str | None = None
    ) -> tuple[list[RunFacts], int]:
        return facts_page(db, after, limit, since, until, workspace_id)

    @_read("workspace", is_long=True)
    def live_runs(self, db: apsw.Connection, workspace_id: str) -> list[RunRecord]:
        live = f"{_RUN} WHERE runs.workspace_id = ? AND state <> 'ended' AND {VISIBLE} ORDER BY session_id, {_BY_SEQ}"
        return runs_of(db.execute(live, (workspace_id,)))

    @_read("session", is_long=True)
    def messages(
        self,
        db: apsw.Connection,
        session_id: str,
        after: str | None,
        limit: int,
        bytes_max: int | None = None,
        before: str | None = None,
        run_id: str | None = None,
    ) -> list[Message]:
        return page_of_messages(db, session_id, after, before, run_id, limit, bytes_max)

    @_read("session", is_long=True)
    def last_messages(self, db: apsw.Connection, session_id: str, limit: int, first: str = "") -> list[Message]:
        rows = db.execute(
            f"{MESSAGE} WHERE session_id = ?1 AND ordinal >="
            f" coalesce((SELECT ordinal FROM messages WHERE id = ?2 AND +session_id = ?1 AND {MESSAGE_VISIBLE}), 0)"
            f" AND {MESSAGE_VISIBLE} ORDER BY ordinal DESC LIMIT ?3",
            (session_id, first, max(limit, 0)),
        ).fetchall()
        return [message_of(db, row) for row in reversed(rows)]

    @_read("workspace")
    def message(self, db: apsw.Connection, workspace_id: str, message_id: str) -> Message | None:
        row = db.execute(
            f"{MESSAGE} WHERE workspace_id = ? AND id = ? AND {MESSAGE_VISIBLE}", (workspace_id, message_id)
        ).fetchone()
        return message_of(db, row) if row else None

    @_read("session", is_long=True)
    def message_runs(self, db: apsw.Connection, session_id: str, message_id: str) -> tuple[set[str], set[str]]:
        rows = db.execute(
            f"SELECT DISTINCT run_id, ordinal >= ? FROM messages WHERE session_id = ? AND {MESSAGE_VISIBLE}",
            (ordinal_of(db, session_id, message_id), session_id),
        ).fetchall()
        before, since = ({str(run_id) for run_id, is_since in rows if is_since == side} for side in (0, 1))
        return before, since

    async def copy_messages(
        self, workspace_id: str, source: str, target: str, after: str, until: str, new_ids: Sequence[str]
    ) -> CopiedMessages:
        writer, _ = self.threads()
        rows = await self._copies(source, target, after, until, new_ids)
        if not rows:
            return CopiedMessages(0)
        copies = [copy for _, copy in rows]
        await writer.ask(
            lambda db: sqlite_write.add_copies(db, workspace_id, target, copies), f"session {source}", is_long=True
        )
        return codec.copied_messages([(original, message) for original, (message, _, _) in rows])

    @_read("session", is_long=True)
    def _copies(
        self, db: apsw.Connection, source: str, target: str, after: str, until: str, new_ids: Sequence[str]
    ) -> list[tuple[str, tuple[Message, bytes, str]]]:
        """Return the originals of one slice by id, and their copies with encoded parts and tokens."""
        start, end = (ordinal_of(db, source, after) if after else -1), ordinal_of(db, source, until)
        rows = db.execute(
            f"{MESSAGE} WHERE session_id = ? AND ordinal > ? AND ordinal < ? AND {MESSAGE_VISIBLE}"
            " ORDER BY ordinal LIMIT ?",
            (source, start, end, len(new_ids)),
        )
        copies: list[tuple[str, tuple[Message, bytes, str]]] = []
        left_bytes = sqlite_write.COPY_BYTES_MAX
        for new_id, row in zip(new_ids, rows, strict=False):
            original = message_of(db, row)
            copy = replace(original, id=new_id, session_id=target)
            parts = codec.encode_parts(copy.parts)
            indexed = sqlite_write.search_text(copy)
            copies.append((original.id, (copy, parts, indexed)))
            left_bytes -= len(parts) + sqlite_write.INDEX_COST * len(indexed)
            if left_bytes <= 0:
                break
        return copies

    async def reclaim(self) -> bool:
        writer, _ = self.threads()
        return await writer.ask(sqlite_reclaim.remove_slice, "deleted sessions", is_long=True)

    @_read("workspace", is_long=True)
    def search(self, db: apsw.Connection, workspace_id: str, query: str, limit: int) -> list[SearchHit]:
        return search_hits(db, workspace_id, query, limit)

    # --- Approvals and undo -------------------------------------------------------------------------------------------

    @_read("workspace")
    def asks(self, db: apsw.Connection, workspace_id: str) -> list[Ask]:
        rows = db.execute(
            f"SELECT record FROM asks WHERE workspace_id = ? AND state = 'pending' AND {VISIBLE} ORDER BY ordinal",
            (workspace_id,),
        )
        return [codec.decode_ask(record) for (record,) in rows]

    @_read("session")
    def session_asks(self, db: apsw.Connection, session_id: str, *, settled: bool = False) -> list[Ask]:
        rows = db.execute(
            f"SELECT record FROM asks WHERE session_id = ? AND (? OR state = 'pending') AND {VISIBLE} ORDER BY ordinal",
            (session_id, settled),
        )
        return [codec.decode_ask(record) for (record,) in rows]

    @_read("workspace")
    def ask(self, db: apsw.Connection, workspace_id: str, ask_id: str) -> Ask | None:
        row = db.execute(
            f"SELECT record FROM asks WHERE id = ? AND workspace_id = ? AND {VISIBLE}", (ask_id, workspace_id)
        ).fetchone()
        return codec.decode_ask(row[0]) if row else None

    @_read("workspace")
    def grants(self, db: apsw.Connection, workspace_id: str) -> list[Grant]:
        rows = db.execute("SELECT record FROM grants WHERE workspace_id = ? ORDER BY ordinal", (workspace_id,))
        return [codec.decode_grant(record) for (record,) in rows]

    @_read("workspace")
    def file_versions(
        self, db: apsw.Connection, workspace_id: str, session_id: str, run_id: str | None
    ) -> list[FileVersion]:
        rows = db.execute(
            "SELECT record FROM file_versions"
            f" WHERE session_id = ?1 AND workspace_id = ?2 AND (?3 IS NULL OR run_id = ?3) AND {VISIBLE}"
            " ORDER BY ordinal",
            (session_id, workspace_id, run_id),
        )
        return [codec.decode_file(record) for (record,) in rows]

    @_read("workspace")
    def file_version(self, db: apsw.Connection, workspace_id: str, version_id: str) -> FileVersion | None:
        row = db.execute(
            f"SELECT record FROM file_versions WHERE id = ? AND workspace_id = ? AND {VISIBLE}",
            (version_id, workspace_id),
        ).fetchone()
        return codec.decode_file(row[0]) if row else None

    @_read("workspace", is_long=True)
    def original(self, db: apsw.Connection, workspace_id: str, version_id: str) -> bytes:
        row = db.execute(
            "SELECT content FROM file_versions JOIN file_contents ON version_ordinal = ordinal"
            f" WHERE id = ? AND workspace_id = ? AND {VISIBLE}",
            (version_id, workspace_id),
        ).fetchone()
        if row is None:
            raise codec.no_original(workspace_id, version_id)
        return bytes(row[0])
