"""The head file: a file beside the database with the number of its last transaction. It reveals a truncated database.

SQLite silently drops the transactions after a damaged place in the WAL; the rest is consistent, including the hash
chain of the log. Therefore each transaction counts itself in the database, and its number is written here before the
caller receives the result:

- `acknowledged`: the last transaction. Written without a sync, so that it survives the process but not a power failure.
  After a power failure it may be ahead of the database by Writes that were not durable; it is valid within one boot.
- `durable`: the last transaction that was synced. Always valid.

A database with a lower number has lost acknowledged transactions.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from kedge.disk_space import full_disk
from kedge.errors import StoreDamaged, StoreUnavailable

_LAYOUT = struct.Struct(">36sQQ")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HeadFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot = _boot_id()
        self._durable = 0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.fchmod(self._file, 0o600)
        except OSError as error:
            raise StoreUnavailable(
                full_disk(path, error) or f"cannot open {path} ({error.strerror}); make it writable"
            ) from error

    def check(self, committed: int, database: Path) -> None:
        """Raise StoreDamaged if the database, which counts `committed` transactions, has had more."""
        content = os.pread(self._file, _LAYOUT.size, 0)
        if len(content) == _LAYOUT.size:
            boot, acknowledged, self._durable = _LAYOUT.unpack(content)
            expected = acknowledged if boot == self._boot and boot.strip(b"\0") else self._durable
            if committed < expected:
                raise StoreDamaged(
                    f"the database {database} is damaged: acknowledged transactions are lost (the last is {committed}, "
                    f"expected {expected})",
                    f"restore the data directory from a backup, or remove {self._path} to continue without them",
                )
        self.write(committed, durable=False)

    def write(self, committed: int, *, durable: bool) -> None:
        if durable:
            self._durable = committed
        # One call, far smaller than a sector: written completely or not at all.
        os.pwrite(self._file, _LAYOUT.pack(self._boot, committed, self._durable), 0)

    def close(self) -> None:
        os.close(self._file)


def _boot_id() -> bytes:
    """Return the id of this boot; zeros where the system provides none, so that only `durable` is valid."""
    try:
        return _BOOT_ID.read_bytes().strip().ljust(36, b"\0")[:36]
    except OSError:
        return b"\0" * 36
