"""Keeps the server reachable: binds a Unix socket again whose file was removed or replaced.

Cleaners of temporary directories remove socket files, and so do users. The server still has its socket then, but no
client finds it. The kernel reports changes in the private runtime directory (inotify), so an idle server is not woken.
A check every minute covers other directories, and systems without inotify.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from kedge import paths
from kedge.errors import Invalid
from kedge.server.sockets import FileIdentity, bind_unix, file_identity

log = logging.getLogger("kedge.server")

#: The interval of the checks. A check costs some microseconds, but wakes an idle machine. Seconds.
CHECK_S = 60.0
#: A change is often followed by others, as in `rm -r`: one check for all of them. Seconds.
SETTLE_S = 0.05
#: How long a data directory may be away before a server that no client can reach exits. A script may move it away and
#: back. Seconds.
AWAY_S_MAX = 5.0

_IN_MOVED, _IN_CREATE, _IN_DELETE, _IN_DELETE_SELF, _IN_MOVE_SELF = 0xC0, 0x100, 0x200, 0x400, 0x800
_IN_SELF = _IN_DELETE_SELF | _IN_MOVE_SELF

#: Begins to listen on a socket that was bound again at this path.
Listen = Callable[[Path, socket.socket], Awaitable[None]]


class SocketWatch:
    def __init__(self, files: dict[Path, FileIdentity], is_only_unix: bool, on_lost: Callable[[], None]) -> None:
        """`on_lost` is called when the data directory is gone, and all sockets with it: no client can ever reach this
        server again, not even to stop it."""
        #: The socket files of this server, with their identity.
        self.files = files
        self._is_only_unix = is_only_unix
        self._on_lost = on_lost
        self._data = _inode(paths.data_dir())
        self._away_since: float | None = None
        self._reported: dict[Path, str] = {}

    async def run(self, listen: Listen) -> None:
        changes = _Changes()
        try:
            while True:
                changes.watch(paths.runtime_dir(), _IN_MOVED | _IN_CREATE | _IN_DELETE | _IN_SELF)
                # Its own removal is reported late, since the server has files in it open; that of its files at once.
                changes.watch(paths.data_dir(), _IN_DELETE | _IN_SELF)
                # Checked before each wait: a change before the directories were watched was not reported.
                await self._check(listen)
                await changes.wait(CHECK_S if self._away_since is None else AWAY_S_MAX / 5)
        finally:
            changes.close()

    async def _check(self, listen: Listen) -> None:
        missing = await asyncio.to_thread(self._missing)
        for path in missing:
            try:
                sock = await asyncio.to_thread(self._bind, path)
            except (Invalid, OSError) as error:
                self._report(path, f"{path} was removed or replaced, and cannot be bound again: {error}")
                continue
            await listen(path, sock)
            self._report(path, f"{path} was removed or replaced; listening on it again")
        is_lost = self._is_only_unix and bool(missing) and not (set(self.files) - set(missing)) and self._is_away()
        self._away_since = (self._away_since or time.monotonic()) if is_lost else None
        if self._away_since is not None and time.monotonic() - self._away_since >= AWAY_S_MAX:
            log.error("the data directory %s was removed or replaced, with the socket; exiting", paths.data_dir())
            self._on_lost()

    def _missing(self) -> list[Path]:
        return [path for path, identity in self.files.items() if _identity(path) != identity]

    def _bind(self, path: Path) -> socket.socket:
        if self._is_away() and paths.data_dir() in path.parents:
            # Never create the directory again: it would be taken for a new, empty one.
            raise Invalid(f"the data directory {paths.data_dir()} was removed or replaced.")
        # Only the runtime directory is ours to create again. Another one was removed by its owner.
        needed = path.parent.parent if path.parent == paths.runtime_dir() else path.parent
        if not needed.is_dir():
            raise Invalid(f"the directory {needed} is gone.")
        sock = bind_unix(path)
        self.files[path] = file_identity(path)
        return sock

    def _is_away(self) -> bool:
        return self._data is not None and _inode(paths.data_dir()) != self._data

    def _report(self, path: Path, text: str) -> None:
        if self._reported.get(path) != text:
            log.warning("%s", text)
        self._reported[path] = text


class _Changes:
    """Changes of directories, as the kernel reports them. Without inotify there are none to wait for."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = -1
        self._changed = asyncio.Event()
        if hasattr(self._libc, "inotify_init1"):
            self._handle = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._handle >= 0:
            asyncio.get_running_loop().add_reader(self._handle, self._read)

    def watch(self, directory: Path, events: int) -> None:
        """Watch the directory that is at this path now. Repeated for the same directory, this changes nothing."""
        if self._handle >= 0:
            self._libc.inotify_add_watch(self._handle, os.fsencode(directory), ctypes.c_uint32(events))

    async def wait(self, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
                await asyncio.sleep(SETTLE_S)
        self._changed.clear()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._handle, 65536)
        self._changed.set()

    def close(self) -> None:
        if self._handle >= 0:
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)


def _identity(path: Path) -> FileIdentity | None:
    try:
        return file_identity(path)
    except OSError:
        return None


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
