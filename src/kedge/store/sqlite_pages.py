"""Damage that SQLite does not see by itself, though each page of the database has a checksum.

- `cksumvfs` checks the pages that it reads, but only if the first one says that there are checksums at all. If just
  that byte is damaged, nothing would be checked any more.
- While there is a WAL, a page behind the end of the database file is read as zeros and nothing is said, since it might
  be in the WAL alone. If the file has lost its end, a long text would be served with zeros in it.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import apsw

from kedge.errors import RESTORE_BACKUP, StoreDamaged

#: Bytes at the end of each page for its checksum, and where in the file SQLite notes their number.
CHECKSUM_BYTES, _CHECKSUM_BYTES_AT = 8, 20
_WAL_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
#: What SQLite makes, and what kedge has always left it at.
_PAGE_BYTES = 4096


def has_checksums(path: Path) -> bool | None:
    """Whether this database was made with checksums; None if there is none in the file yet.

    A loss of power while it was made may have left a part of the first page; SQLite begins anew with such a file."""
    with path.open("rb") as file:
        page = os.pread(file.fileno(), _PAGE_BYTES, 0)
    if len(page) < _HEADER_BYTES or not page.startswith(_MAGIC):
        return None
    noted = page[_CHECKSUM_BYTES_AT]
    if noted == CHECKSUM_BYTES:
        return True
    with_checksums = page[:_CHECKSUM_BYTES_AT] + bytes([CHECKSUM_BYTES]) + page[_CHECKSUM_BYTES_AT + 1 :]
    if noted != 0 or (len(page) == _PAGE_BYTES and _fits(with_checksums)):
        raise _damaged(path, "its first page denies the checksums that its pages have")
    return False


def check_end(db: apsw.Connection, path: Path) -> None:
    """Refuses a database file that has lost its end. Asked before anything is copied from the WAL into it."""
    pages, page_bytes = _number(db, "page_count"), _number(db, "page_size")
    there = path.stat().st_size // page_bytes
    if there >= pages:
        return
    missing = set(range(there + 1, pages + 1)) - _pages_in_wal(path.with_name(f"{path.name}-wal"), page_bytes)
    if missing and _number(db, "freelist_count"):
        # A page that was freed as soon as it was made may never have been written.
        missing &= {int(str(page)) for (page,) in db.execute("SELECT pageno FROM dbstat")}
    if missing:
        raise _damaged(path, f"it has lost its end: page {min(missing)} of {pages} is missing")


def _pages_in_wal(path: Path, page_bytes: int) -> set[int]:
    """Those of its finished transactions."""
    found: set[int] = set()
    begun: set[int] = set()
    if not path.exists():
        return found
    with path.open("rb") as file:
        salt = file.read(_WAL_HEADER_BYTES)[16:24]
        while len(header := file.read(_FRAME_HEADER_BYTES)) == _FRAME_HEADER_BYTES and header[8:16] == salt:
            page, ends_with = struct.unpack(">II", header[:8])
            begun.add(page)
            if ends_with:
                found |= begun
                begun.clear()
            file.seek(page_bytes, os.SEEK_CUR)
    return found


def _number(db: apsw.Connection, pragma: str) -> int:
    found = db.pragma(pragma)
    assert isinstance(found, int)
    return found


def _damaged(path: Path, how: str) -> StoreDamaged:
    return StoreDamaged(f"the database {path} is damaged ({how})", RESTORE_BACKUP)


def _fits(page: bytes) -> bool:
    """The checksum of cksumvfs: two running sums over the words of the page."""
    words = struct.unpack(f"<{(len(page) - CHECKSUM_BYTES) // 4}I", page[:-CHECKSUM_BYTES])
    first = second = 0
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return page[-CHECKSUM_BYTES:] == struct.pack("<II", first, second)
