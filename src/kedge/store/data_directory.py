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
#: Bytes read from the lock file; a pid is shorter.
_PID_BYTES_MAX = 32
#: A server killed between fork and exec leaves its lock in the child until the exec, which takes longer on a busy
#: machine. The longest wait for that, and the pause between two attempts. Seconds.
_ORPHAN_S_MAX, _ORPHAN_PAUSE_S = 5.0, 0.01


class DataDirectory:
    """`claim` creates and locks the directory, `release` unlocks it. The kernel unlocks it if the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def claim(self) -> None:
        try:
            self._create()
            mode = self.path.stat().st_mode
            lock = os.open(self.path / _LOCK_NAME, _OPEN | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreUnavailable(
                f"cannot use the data directory {self.path} ({error.strerror}); make it writable or choose another"
            ) from error
        if stat.S_IMODE(mode) & 0o022:
            os.close(lock)
            raise StoreError(f"other users can write to the data directory {self.path}; run: chmod 700 '{self.path}'")
        try:
            self._take(lock)
        except StoreLocked:
            os.close(lock)
            raise
        except OSError as error:
            os.close(lock)
            raise StoreUnavailable(
                f"cannot lock the data directory {self.path} ({error.strerror}); choose one on another disk"
            ) from error
        self._lock = lock
        # The pid only serves error messages. It does not fit on a full disk, which can still be read.
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

    def _create(self) -> None:
        """Create the directory and its missing parents, and sync their names: all stored data depends on them.

        The parent is synced even if the directory exists: an earlier process may have died before its sync."""
        created = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in created or [self.path]:
            try:
                self.sync(path.parent)
            except OSError as error:
                # A parent may be writable but not readable, and that of an existing directory may be read-only.
                if created and not isinstance(error, PermissionError):
                    raise

    def release(self) -> None:
        if self._lock is None:
            return
        # The file stays: if it were removed, a third process could lock a new file while a second waits for the old.
        with contextlib.suppress(OSError):
            os.ftruncate(self._lock, 0)
        os.close(self._lock)
        self._lock = None

    def private_file(self, name: str, *, create: bool) -> Path:
        """Return the path of a file that only the owner can read, even before its first byte is written."""
        path = self.path / name
        try:
            opened = os.open(path, _OPEN | (os.O_CREAT if create else 0), 0o600)
        except FileNotFoundError:
            return path
        except OSError as error:
            raise StoreUnavailable(f"cannot open {path} ({error.strerror}); make it readable and writable") from error
        try:
            os.fchmod(opened, 0o600)
        finally:
            os.close(opened)
        return path

    def sync(self, directory: Path) -> None:
        """Sync the directory, so that the names of new files survive a power failure."""
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
