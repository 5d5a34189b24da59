"""The store on one machine: a SQLite database in a directory of its own. Nothing to install, nothing to run beside it.

- One process: the data directory is locked (`datadir`).
- Two threads (`sqlite_threads`): one connection writes, with group commit, and one reads. No other connection of ours
  writes or checkpoints.
- WAL, with `synchronous=FULL` where a Write is durable.
- Three seals against damage: each page of the database has a checksum, which SQLite's `cksumvfs` checks whenever it
  reads one (`sqlite_pages` sees to what it overlooks); the log is a hash chain, which also notices entries that are
  whole but wrong, missing or old; and a note beside the database (`witness`) tells when the end of it all is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import apsw
import apsw.sqlite_extra

from kedge.core.approvals import Ask, Grant
from kedge.core.records import FileVersion, LaneRecord, RunRecord, SessionRecord, WorkspaceRecord
from kedge.core.transcript import Message
from kedge.errors import StoreError, StoreUnavailable
from kedge.store import migrations, sqlite_pages, sqlite_read, sqlite_write
from kedge.store.base import LogEntry, SearchHit, Write
from kedge.store.datadir import DataDirectory
from kedge.store.sqlite_threads import Reader, Writer, fault
from kedge.store.witness import Witness

P = ParamSpec("P")
T = TypeVar("T")

_DATABASE, _WITNESS = "kedge.db", "kedge.head"
#: Entries checked in one go by `verify`: other readers get their turn in between.
_VERIFY_ENTRIES = 1_000
#: How long a person's `sqlite3` shell may keep us from writing before we say so. Milliseconds.
_BUSY_MS = 2_000
#: The WAL file is cut back to this after a checkpoint; a single large message may have blown it up. Bytes.
_WAL_BYTES_KEPT = 16 * 1024 * 1024
_CHECKSUM_VFS = "cksmvfs"


class SqliteStore:
    """`vfs` names a registered SQLite VFS to go through: where tests count, delay or break what the disk is asked."""

    def __init__(self, directory: Path, *, vfs: str | None = None) -> None:
        self._directory = DataDirectory(directory)
        self._vfs = vfs
        self._reader: Reader | None = None
        self._writer: Writer | None = None

    async def open(self) -> None:
        """Not in a thread, though it waits for the disk: nothing is served before the store is open, and a cancel
        in the middle cannot leave the directory locked."""
        if self._writer is not None:
            raise StoreError("this store is open already, or was closed; make another one")
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            self._directory.claim()
            undo.callback(self._directory.release)
            try:
                writing, reading, witness = self._connect(undo)
            except apsw.Error as error:
                raise fault(error, str(self._directory.path / _DATABASE)) from error
            except OSError as error:
                where = self._directory.path
                raise StoreUnavailable(f"{where} cannot be used ({error.strerror}); check it and its disk") from error
            undo.pop_all()
        self._reader = Reader(reading, loop, lambda: _close(reading))
        self._writer = Writer(writing, loop, self._finish, witness)

    def _connect(self, undo: contextlib.ExitStack) -> tuple[apsw.Connection, apsw.Connection, Witness]:
        path = self._directory.private_file(_DATABASE, create=True)
        # SQLite gives new ones the mode of the database; these may be left over from a crash.
        self._directory.private_file(f"{_DATABASE}-wal", create=False)
        self._directory.private_file(f"{_DATABASE}-shm", create=False)
        witness = Witness(self._directory.path / _WITNESS)
        undo.callback(witness.close)
        if path.stat().st_size == 0:
            # Before SQLite makes a new one, and removes the WAL of the old.
            witness.check(0, path)
        vfs = self._vfs or _vfs_for(path)
        writing = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
        undo.callback(_close, writing)
        writing.set_busy_timeout(_BUSY_MS)
        # Asked of SQLite: what a loss of power has left of a new database is gone once it has looked.
        if writing.pragma("page_count") == 0 and page_checksums():
            writing.reserve_bytes(reserve=sqlite_pages.CHECKSUM_BYTES)
        for pragma in ("journal_mode = WAL", f"journal_size_limit = {_WAL_BYTES_KEPT}"):
            writing.execute(f"PRAGMA {pragma}").fetchall()
        sqlite_pages.check_end(writing, path)
        migrations.migrate(writing, migrations.shipped())
        witness.check(sqlite_read.transactions(writing), path)
        reading = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
        undo.callback(_close, reading)
        for pragma in (f"busy_timeout = {_BUSY_MS}", "query_only = 1"):
            reading.execute(f"PRAGMA {pragma}").fetchall()
        self._directory.sync(self._directory.path)
        return writing, reading, witness

    async def close(self) -> None:
        if self._writer is None or self._reader is None:
            return
        self._reader.stop()
        self._writer.stop()
        await asyncio.to_thread(self._writer.join)

    def _finish(self) -> None:
        """In the writer's thread, when all is written."""
        writer, reader = self._open()
        # First the reader, which would keep the checkpoint from getting to the end.
        reader.join()
        # When this fails the disk is full or gone; all is in the WAL then, which the next open reads.
        with contextlib.suppress(apsw.Error):
            writer.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        _close(writer.db)
        writer.witness.close()
        self._directory.release()

    def _open(self) -> tuple[Writer, Reader]:
        if self._writer is None or self._reader is None:
            raise StoreUnavailable("the store is not open yet")
        return self._writer, self._reader

    async def _look(
        self, about: str, function: Callable[Concatenate[apsw.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What the reader finds; `about` is named if it is damaged."""
        _, reader = self._open()
        return await reader.ask(lambda db: function(db, *args, **kwargs), about)

    @property
    def commits(self) -> int:
        """Transactions so far: fewer than Writes, when these come together."""
        return self._open()[0].commits

    @property
    def durable_commits(self) -> int:
        """Those of them that waited for the disk."""
        return self._open()[0].durable_commits

    # The log

    async def append(self, write: Write) -> int:
        writer, _ = self._open()
        about = f"workspace {write.workspace_id}"
        return await writer.ask(lambda db: sqlite_write.append(db, write), about, durable=write.durable)

    async def read(self, workspace_id: str, after: int, limit: int) -> list[LogEntry]:
        return await self._look(f"workspace {workspace_id}", sqlite_read.entries, workspace_id, after, limit)

    async def bounds(self, workspace_id: str) -> tuple[int, int]:
        return await self._look(f"workspace {workspace_id}", sqlite_read.bounds, workspace_id)

    async def trim(self, workspace_id: str, keep: int) -> None:
        writer, _ = self._open()
        while await writer.ask(lambda db: sqlite_write.trim(db, workspace_id, keep), f"workspace {workspace_id}"):
            pass

    async def verify(self, workspace_id: str) -> int:
        position, head = await self.bounds(workspace_id)
        checked = 0
        while position < head:
            entries = await self.read(workspace_id, position, min(_VERIFY_ENTRIES, head - position))
            if not entries:
                break  # trimmed away meanwhile
            checked += len(entries)
            position = entries[-1].position
        return checked

    # Records

    async def workspace(self, path: str, new: WorkspaceRecord) -> WorkspaceRecord:
        writer, _ = self._open()
        about = f"the workspace of {path}"
        return await writer.ask(lambda db: sqlite_write.workspace(db, path, new), about, durable=True)

    async def workspaces(self) -> list[WorkspaceRecord]:
        return await self._look("the list of workspaces", sqlite_read.workspaces)

    async def sessions(self, workspace_id: str) -> list[SessionRecord]:
        return await self._look(f"workspace {workspace_id}", sqlite_read.sessions, workspace_id)

    async def session(self, workspace_id: str, session_id: str) -> SessionRecord | None:
        return await self._look(f"workspace {workspace_id}", sqlite_read.session, workspace_id, session_id)

    async def lane(self, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        return await self._look(f"session {session_id}", sqlite_read.lane, session_id)

    async def run(self, workspace_id: str, run_id: str) -> RunRecord | None:
        return await self._look(f"workspace {workspace_id}", sqlite_read.run, workspace_id, run_id)

    async def runs(self, session_id: str, limit: int) -> list[RunRecord]:
        return await self._look(f"session {session_id}", sqlite_read.runs, session_id, limit)

    async def live_runs(self, workspace_id: str) -> list[RunRecord]:
        return await self._look(f"workspace {workspace_id}", sqlite_read.live_runs, workspace_id)

    async def messages(self, session_id: str, after: str | None, limit: int) -> list[Message]:
        return await self._look(f"session {session_id}", sqlite_read.messages, session_id, after, limit)

    async def last_messages(self, session_id: str, limit: int) -> list[Message]:
        return await self._look(f"session {session_id}", sqlite_read.last_messages, session_id, limit)

    async def message(self, workspace_id: str, message_id: str) -> Message | None:
        return await self._look(f"workspace {workspace_id}", sqlite_read.message, workspace_id, message_id)

    async def search(self, workspace_id: str, query: str, limit: int) -> list[SearchHit]:
        return await self._look(f"workspace {workspace_id}", sqlite_read.search, workspace_id, query, limit)

    # Approvals and undo

    async def asks(self, workspace_id: str) -> list[Ask]:
        return await self._look(f"workspace {workspace_id}", sqlite_read.asks, workspace_id)

    async def session_asks(self, session_id: str) -> list[Ask]:
        return await self._look(f"session {session_id}", sqlite_read.session_asks, session_id)

    async def ask(self, workspace_id: str, ask_id: str) -> Ask | None:
        return await self._look(f"workspace {workspace_id}", sqlite_read.ask, workspace_id, ask_id)

    async def grants(self, workspace_id: str) -> list[Grant]:
        return await self._look(f"workspace {workspace_id}", sqlite_read.grants, workspace_id)

    async def file_versions(self, workspace_id: str, session_id: str, run_id: str | None) -> list[FileVersion]:
        return await self._look(
            f"workspace {workspace_id}", sqlite_read.file_versions, workspace_id, session_id, run_id
        )

    async def runs_with_files(self, session_id: str) -> list[str]:
        return await self._look(f"session {session_id}", sqlite_read.runs_with_files, session_id)


def _close(db: apsw.Connection) -> None:
    # A disk that fails now has failed before, and that was said.
    with contextlib.suppress(apsw.Error):
        db.close()


def page_checksums() -> bool:
    """Whether this installation can check pages: the extension comes with apsw's wheels. Loads it."""
    if _CHECKSUM_VFS in apsw.vfs_names():
        return True
    if apsw.sqlite_extra.has("cksumvfs") is None:
        return False
    default = apsw.vfs_names()[0]
    carrier = apsw.Connection(":memory:")
    apsw.sqlite_extra.load(carrier, "cksumvfs")
    carrier.close()
    apsw.set_default_vfs(default)  # it makes itself the default; other users of SQLite did not ask for that
    return True


def _vfs_for(path: Path) -> str | None:
    has_checksums = sqlite_pages.has_checksums(path)
    if has_checksums is False:
        return None  # made where the extension was not to be had
    if page_checksums():
        return _CHECKSUM_VFS
    if has_checksums:
        raise StoreError(
            f"the database {path} has page checksums, which this installation of apsw cannot keep up; "
            "install apsw as a wheel from PyPI (it brings `cksumvfs`)"
        )
    return None
