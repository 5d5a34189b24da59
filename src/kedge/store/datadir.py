"""The data directory: readable by its owner only, and used by one process at a time."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from kedge.errors import StoreError, StoreLocked, StoreUnavailable

_LOCK_NAME = "kedge.lock"
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
#: Bytes of the lock file that are looked at; a pid is shorter.
_PID_BYTES_MAX = 32


class DataDirectory:
    """`claim` makes and locks the directory; `release` gives it up. The kernel releases it if the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def claim(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = self.path.stat().st_mode
            lock = os.open(self.path / _LOCK_NAME, _OPEN | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreUnavailable(
                f"the data directory {self.path} cannot be used ({error.strerror}); make it writable or choose another"
            ) from error
        if stat.S_IMODE(mode) & 0o022:
            os.close(lock)
            raise StoreError(f"others may write to the data directory {self.path}; run: chmod 700 '{self.path}'")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_pid(lock)
            os.close(lock)
            raise StoreLocked(
                f"the data directory {self.path} is in use by {holder}; "
                "connect to that server, stop it, or choose another data directory"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def release(self) -> None:
        if self._lock is None:
            return
        # The file stays: if it were removed, a third process could lock a new file while a second waits on the old.
        os.ftruncate(self._lock, 0)
        os.close(self._lock)
        self._lock = None

    def private_file(self, name: str, *, create: bool) -> Path:
        """The path of a file in here, which only the owner may read, from before anything is written to it."""
        path = self.path / name
        try:
            opened = os.open(path, _OPEN | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            return path
        except OSError as error:
            raise StoreUnavailable(
                f"{path} cannot be opened ({error.strerror}); make it readable and writable"
            ) from error
        try:
            os.fchmod(opened, 0o600)
        finally:
            os.close(opened)
        return path

    def sync(self) -> None:
        """The names of new files survive a loss of power from here on."""
        opened = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _read_pid(lock: int) -> str:
    text = os.pread(lock, _PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
    return f"process {text}" if text.isdigit() else "another process"
