"""A note beside the database of how far it had got: what tells a database that has lost its end from one that has not.

A damaged WAL makes SQLite drop the transactions from the damage on, silently; the rest is consistent, the log's hash
chain included. So each transaction counts itself in the database, and once it is acknowledged its number is noted here:

- `acknowledged`: the last one. Written without waiting for the disk, so it outlives the process but not a loss of
  power; after one it may be ahead of the database by Writes that were not durable. It counts within one boot.
- `durable`: the last one that waited for the disk. It always counts.

A database that is behind the note has lost something that was acknowledged.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from kedge.errors import StoreDamaged, StoreUnavailable

_LAYOUT = struct.Struct(">36sQQ")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Witness:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot = _boot_id()
        self._durable = 0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.fchmod(self._file, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be opened ({error.strerror}); make it writable") from error

    def check(self, reached: int, database: Path) -> None:
        """Refuses a database that has counted to `reached` only, if it had got further."""
        noted = os.pread(self._file, _LAYOUT.size, 0)
        if len(noted) == _LAYOUT.size:
            boot, acknowledged, self._durable = _LAYOUT.unpack(noted)
            known = acknowledged if boot == self._boot and boot.strip(b"\0") else self._durable
            if reached < known:
                raise StoreDamaged(
                    f"the database {database} is damaged: it has lost what was acknowledged (it ends with transaction "
                    f"{reached}, and {known} was the last)",
                    f"restore the data directory from a backup, or remove {self._path} to continue with what is left",
                )
        self.note(reached, durable=False)

    def note(self, reached: int, *, durable: bool) -> None:
        if durable:
            self._durable = reached
        # In one call, and far smaller than a sector: it is there as a whole or not at all.
        os.pwrite(self._file, _LAYOUT.pack(self._boot, reached, self._durable), 0)

    def close(self) -> None:
        os.close(self._file)


def _boot_id() -> bytes:
    """Empty where the system does not tell; then only `durable` counts."""
    try:
        return _BOOT_ID.read_bytes().strip().ljust(36, b"\0")[:36]
    except OSError:
        return b"\0" * 36
