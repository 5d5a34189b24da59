"""Damage that SQLite does not detect, although each page of the database has a checksum.

- `cksumvfs` checks pages only if a byte of the first page enables it. Damage to that byte would disable all checks.
- While a WAL exists, SQLite reads a page beyond the end of the database file as zeros without an error, since the page
  may be in the WAL only. If the file was truncated, a long text would contain zeros.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import apsw

from kedge.store.codec import damaged_database

#: Bytes at the end of each page for its checksum, and the offset of their number in the database header.
CHECKSUM_BYTES, _CHECKSUM_BYTES_AT = 8, 20
_WAL_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
#: SQLite's default, which kedge does not change.
_PAGE_BYTES = 4096


def has_checksums(path: Path) -> bool | None:
    """Return True if this database was created with checksums, None if the file holds no database yet.

    A power failure during its creation may have left a part of the first page; SQLite then creates it again."""
    with path.open("rb") as file:
        page = os.pread(file.fileno(), _PAGE_BYTES, 0)
    if len(page) < _HEADER_BYTES or not page.startswith(_MAGIC):
        return None
    reserved = page[_CHECKSUM_BYTES_AT]
    if reserved == CHECKSUM_BYTES:
        return True
    with_checksums = page[:_CHECKSUM_BYTES_AT] + bytes([CHECKSUM_BYTES]) + page[_CHECKSUM_BYTES_AT + 1 :]
    if reserved != 0 or (len(page) == _PAGE_BYTES and _checksum_matches(with_checksums)):
        raise damaged_database(str(path), "its first page disables the checksums that its pages have")
    return False


def check_end(db: apsw.Connection, path: Path) -> None:
    """Raise StoreDamaged if the database file was truncated. Call it before a checkpoint copies pages from the WAL."""
    pages, page_bytes = _number(db, "page_count"), _number(db, "page_size")
    present = path.stat().st_size // page_bytes
    if present >= pages:
        return
    missing = set(range(present + 1, pages + 1)) - _pages_in_wal(path.with_name(f"{path.name}-wal"), page_bytes)
    if missing and _number(db, "freelist_count"):
        # A page that was freed in the transaction that added it may never have been written.
        missing &= {int(str(page)) for (page,) in db.execute("SELECT pageno FROM dbstat")}
    if missing:
        raise damaged_database(str(path), f"it is truncated: page {min(missing)} of {pages} is missing")


def _pages_in_wal(path: Path, page_bytes: int) -> set[int]:
    """Return the pages of its committed transactions."""
    committed: set[int] = set()
    pending: set[int] = set()
    if not path.exists():
        return committed
    with path.open("rb") as file:
        salt = file.read(_WAL_HEADER_BYTES)[16:24]
        while len(header := file.read(_FRAME_HEADER_BYTES)) == _FRAME_HEADER_BYTES and header[8:16] == salt:
            page, pages_after_commit = struct.unpack(">II", header[:8])
            pending.add(page)
            if pages_after_commit:
                committed |= pending
                pending.clear()
            file.seek(page_bytes, os.SEEK_CUR)
    return committed


def _number(db: apsw.Connection, pragma: str) -> int:
    value = db.pragma(pragma)
    assert isinstance(value, int)
    return value


def _checksum_matches(page: bytes) -> bool:
    """Verify the checksum of cksumvfs: two running sums over the words of the page."""
    words = struct.unpack(f"<{(len(page) - CHECKSUM_BYTES) // 4}I", page[:-CHECKSUM_BYTES])
    first = second = 0
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return page[-CHECKSUM_BYTES:] == struct.pack("<II", first, second)
