"""Opens the SQLite database: the connections of the store, page checksums, and the checks before the first use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import apsw
import apsw.sqlite_extra

from kedge.errors import StoreError
from kedge.store import migrations, sqlite_pages, sqlite_reclaim
from kedge.store.data_directory import DataDirectory
from kedge.store.head_file import HeadFile

DATABASE, HEAD_FILE = "kedge.db", "kedge.head"
#: How long a write waits for the lock of another program, such as the `sqlite3` shell. Milliseconds.
_BUSY_MS = 2_000
#: The WAL file is truncated to this size after a checkpoint; a single large message may have grown it. Bytes.
_WAL_BYTES_MAX = 16 * 1024 * 1024
_CHECKSUM_VFS = "cksmvfs"


def connect(
    directory: DataDirectory, vfs: str | None, undo: contextlib.ExitStack
) -> tuple[apsw.Connection, Callable[[], apsw.Connection], HeadFile]:
    """Return the writing connection, a function that opens reading ones, and the head file. `undo` closes them."""
    path = directory.private_file(DATABASE, create=True)
    # SQLite creates these with the mode of the database, but they may be left over from a crash.
    directory.private_file(f"{DATABASE}-wal", create=False)
    directory.private_file(f"{DATABASE}-shm", create=False)
    head_file = HeadFile(directory.path / HEAD_FILE)
    undo.callback(head_file.close)
    if path.stat().st_size == 0:
        # Before SQLite creates a new database and removes the WAL of the old one.
        head_file.check(0, path)
    vfs = vfs or _vfs_for(path)
    writing = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    undo.callback(close, writing)
    writing.set_busy_timeout(_BUSY_MS)
    # Ask SQLite, not the file: SQLite discards what a power failure left of a new database.
    if writing.pragma("page_count") == 0:
        if has_page_checksums():  # first: the pragma fixes the layout of the pages
            writing.reserve_bytes(reserve=sqlite_pages.CHECKSUM_BYTES)
        writing.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()
    for pragma in ("journal_mode = WAL", f"journal_size_limit = {_WAL_BYTES_MAX}"):
        writing.execute(f"PRAGMA {pragma}").fetchall()
    sqlite_pages.check_end(writing, path)
    migrations.migrate(writing, migrations.shipped())
    sqlite_reclaim.give_up_copies(writing)
    ((committed,),) = writing.execute("SELECT committed FROM transactions").fetchall()
    head_file.check(int(str(committed)), path)
    directory.sync(directory.path)
    return writing, partial(_reading, path, vfs), head_file


def _reading(path: Path, vfs: str | None) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
    for pragma in (f"busy_timeout = {_BUSY_MS}", "query_only = 1"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    return db


def close(db: apsw.Connection) -> None:
    # A disk that fails here has failed, and was reported, before.
    with contextlib.suppress(apsw.Error):
        db.close()


def has_page_checksums() -> bool:
    """Load the checksum extension; return False if this installation lacks it. The wheels of apsw include it."""
    if _CHECKSUM_VFS in apsw.vfs_names():
        return True
    if apsw.sqlite_extra.has("cksumvfs") is None:
        return False
    default = apsw.vfs_names()[0]
    carrier = apsw.Connection(":memory:")
    apsw.sqlite_extra.load(carrier, "cksumvfs")
    carrier.close()
    apsw.set_default_vfs(default)  # the extension makes itself the default for the whole process
    return True


def _vfs_for(path: Path) -> str | None:
    has_checksums = sqlite_pages.has_checksums(path)
    if has_checksums is False:
        return None  # created without the extension
    if has_page_checksums():
        return _CHECKSUM_VFS
    if has_checksums:
        raise StoreError(
            f"the database {path} has page checksums, which this installation of apsw cannot maintain; "
            "install the apsw wheel from PyPI, which includes `cksumvfs`"
        )
    return None
