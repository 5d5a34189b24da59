"""The data directory: readable by its owner only, and used by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from pathlib import Path

from kedge.errors import StoreError, StoreLocked, StoreUnavailable

_LOCK_NAME = "kedge.lock"
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
#: Bytes of the lock file that are looked at; a pid is shorter.
_PID_BYTES_MAX = 32
#: A server that is killed while it starts a process leaves it with a copy of its lock, until that process has become
#: what it is to be: a moment, on a busy machine a longer one. Waited for in all, and between two looks. Seconds.
_ORPHAN_S_MAX, _ORPHAN_PAUSE_S = 5.0, 0.01


class DataDirectory:
    """`claim` makes and locks the directory; `release` gives it up. The kernel releases it if the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def claim(self) -> None:
        try:
            self._make()
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
            self._take(lock)
        except StoreLocked:
            os.close(lock)
            raise
        except OSError as error:
            os.close(lock)
            raise StoreUnavailable(
                f"the data directory {self.path} cannot be locked ({error.strerror}); choose one on another disk"
            ) from error
        self._lock = lock
        # The pid is for people. A full disk has no room for it, and all the same may be read from.
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def _take(self, lock: int) -> None:
        until = time.monotonic() + _ORPHAN_S_MAX
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = os.pread(lock, _PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
                if not text.isdigit() or not _is_gone(int(text)) or time.monotonic() > until:
                    holder = f"process {text}" if text.isdigit() else "another process"
                    raise StoreLocked(
                        f"the data directory {self.path} is in use by {holder}; "
                        "connect to that server, stop it, or choose another data directory"
                    ) from None
            time.sleep(_ORPHAN_PAUSE_S)

    def _make(self) -> None:
        """Its name, and those of the directories above that were missing too, survive a loss of power: all that will
        ever be promised lies behind them. The nearest one is synced in any case: we may have died here last time."""
        made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in made or [self.path]:
            try:
                self.sync(path.parent)
            except OSError as error:
                # One may make something in a directory that one may not open; and one that was there already may be
                # mounted into something read-only.
                if made and not isinstance(error, PermissionError):
                    raise

    def release(self) -> None:
        if self._lock is None:
            return
        # The file stays: if it were removed, a third process could lock a new file while a second waits on the old.
        with contextlib.suppress(OSError):
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

    def sync(self, directory: Path) -> None:
        """The names of new files in it survive a loss of power from here on."""
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False
