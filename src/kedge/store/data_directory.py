"""The data directory: readable by its owner only, and used by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from pathlib import Path

from kedge.disk_space import full_disk
from kedge.errors import StoreError, StoreLocked, StoreUnavailable
from kedge.process_identity import clear_identity, living_pid, read_identity, write_identity

LOCK_FILE = "kedge.lock"
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
#: A server killed between fork and exec leaves its lock in the child until the exec, which takes longer on a busy
#: machine. The longest wait for that. Seconds.
_ORPHAN_S_MAX = 5.0
#: A client takes a shared lock for an instant, to find out whether a server holds the lock. The longest wait for that,
#: and the pause between two attempts. Seconds.
_PROBE_S_MAX, _PAUSE_S = 0.5, 0.01


class DataDirectory:
    """`claim` creates and locks the directory, `release` unlocks it. The kernel unlocks it if the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        #: Files that must not change while the directory is claimed: path -> device and inode.
        self._opened: dict[str, tuple[int, int]] = {}

    def claim(self) -> None:
        try:
            self._create()
            mode = self.path.stat().st_mode
            lock = os.open(self.path / LOCK_FILE, _OPEN | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreUnavailable(
                full_disk(self.path, error)
                or f"cannot use the data directory {self.path} ({error.strerror}); make it writable or choose another"
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
        # By this, clients find a server that does not listen. It does not fit if the file is new and the disk is full.
        with contextlib.suppress(OSError):
            write_identity(lock)

    def _take(self, lock: int) -> None:
        started = time.monotonic()
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = living_pid(read_identity(lock))
                if time.monotonic() - started > (_PROBE_S_MAX if pid else _ORPHAN_S_MAX):
                    raise StoreLocked(
                        f"the data directory {self.path} is in use by {f'process {pid}' if pid else 'another process'}"
                        "; connect to that server, stop it, or choose another data directory"
                    ) from None
            time.sleep(_PAUSE_S)

    def watch(self, *names: str) -> None:
        """Require that these files of the directory, and the lock, remain the files that were opened."""
        for name in (LOCK_FILE, *names):
            path = str(self.path / name)
            with contextlib.suppress(FileNotFoundError):
                self._opened[path] = _inode(path)

    def check(self) -> None:
        """Raise StoreUnavailable if the directory, or a watched file, was removed, moved or replaced.

        A write to a file that has no name any more would succeed, and be lost when the file is closed."""
        for path, inode in self._opened.items():
            try:
                is_same = _inode(path) == inode
            except (FileNotFoundError, NotADirectoryError):
                is_same = False
            except OSError as error:
                raise StoreUnavailable(f"cannot use {path} ({error.strerror}); check the directory") from error
            if not is_same:
                subject = f"the data directory {self.path}" if not self._is_here() else path
                raise StoreUnavailable(
                    f"{subject} was removed or replaced while the server was running; stop the server (kedge stop), "
                    "then restore the directory or start with a new one"
                )

    def _is_here(self) -> bool:
        lock = str(self.path / LOCK_FILE)
        with contextlib.suppress(OSError):
            return _inode(lock) == self._opened.get(lock)
        return False

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
            clear_identity(self._lock)
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
            raise StoreUnavailable(
                full_disk(path, error) or f"cannot open {path} ({error.strerror}); make it readable and writable"
            ) from error
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


def _inode(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
