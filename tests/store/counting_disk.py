"""A SQLite VFS that counts syncs and written bytes, and fails on demand."""

from __future__ import annotations

import itertools
from collections import Counter

import apsw

from kedge.store.sqlite_connect import has_page_checksums

_numbers = itertools.count()


class CountingDisk(apsw.VFS):
    """A disk whose `name` is passed as the store's vfs. Counts are per file: "db", "wal"."""

    def __init__(self) -> None:
        self.name = f"disk-{next(_numbers)}"
        self.syncs: Counter[str] = Counter()
        self.bytes_written: Counter[str] = Counter()
        self.failing: type[apsw.Error] | None = None
        assert has_page_checksums()
        super().__init__(self.name, "cksmvfs")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self, name, flags)

    def check(self) -> None:
        if self.failing is not None:
            raise self.failing("injected disk fault")


class _File(apsw.VFSFile):
    def __init__(self, disk: CountingDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        self._kind = path.rpartition("-")[2] if path.endswith(("-wal", "-journal")) else "db"
        super().__init__("cksmvfs", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.check()
        self._disk.syncs[self._kind] += 1
        super().xSync(flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.check()
        self._disk.bytes_written[self._kind] += len(data)
        super().xWrite(data, offset)
