"""Find the user's server, or start it. Of several clients that do this at once, one starts it.

A server that exists is waited for: `server_process` finds it by the lock of the data directory. The client that holds
the lock in the runtime directory starts the server and keeps the lock until it answers. The others wait. The kernel
releases the lock when its holder exits, so a crash leaves nothing to clean up. A stale socket file is replaced by the
server.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from kedge import paths
from kedge.client.client import Client
from kedge.client.safe_text import one_line
from kedge.client.server_process import ServerProcess, find_process
from kedge.disk_space import full_disk
from kedge.errors import ShuttingDown, Starting, Unreachable
from kedge.waiting import backoff_s
from kedge.wire.models import WorkspaceBody

#: A start takes under a second. A large database after a crash, on a busy machine with a cold disk, takes longer; a
#: server whose socket file was removed may take a minute to notice it. Seconds.
START_S_MAX = 120.0
#: How long a server that accepts connections may take to answer. Seconds.
HANG_S_MAX = 15.0
#: After this long, the user is notified what the command waits for. Seconds.
NOTIFY_S = 1.0
#: First and longest pause between two checks of the server. Seconds.
POLL_S_MIN, POLL_S_MAX = 0.03, 0.1
#: Enough for the last line of a traceback. Bytes.
LOG_TAIL_BYTES = 4096

#: Variables that hold paths. They are made absolute, since the server runs in another directory.
_PATHS = ("KEDGE_DATA_DIR", "KEDGE_CONFIG", "PYTHONPATH")


#: Called with what a command waits for, once that takes longer than NOTIFY_S.
Notify = Callable[[str], None]


class _Wait:
    """Pauses between two checks, up to a limit."""

    def __init__(self, notify: Notify | None, limit_s: float) -> None:
        self._notify = notify
        self._limit_s = limit_s
        self._began = time.monotonic()
        self._hanging_since: float | None = None
        self._pauses = backoff_s(POLL_S_MIN, POLL_S_MAX)

    async def pause(self, progress: str, failure: str, *, hangs: bool = False) -> None:
        """Pause, or raise Unreachable with the failure if this has lasted too long."""
        now = time.monotonic()
        self._hanging_since = (self._hanging_since or now) if hangs else None
        if now - self._began >= self._limit_s or (hangs and now - (self._hanging_since or now) >= HANG_S_MAX):
            raise Unreachable(failure)
        if self._notify is not None and now - self._began >= NOTIFY_S:
            self._notify(progress)
            self._notify = None
        await asyncio.sleep(next(self._pauses))

    async def pause_for(self, server: ServerProcess) -> None:
        await self.pause(server.progress, f"{server.summary}. {server.advice}", hangs=server.state == "hanging")


async def find_running(notify: Notify | None = None, start_s_max: float = START_S_MAX) -> str | None:
    """Return the address of the user's server, or None if no server runs. A server that is starting is waited for."""
    wait = _Wait(notify, start_s_max)
    async with Client(paths.default_host()) as client:
        while (server := await find_process(client)).state not in ("none", "listening"):
            await wait.pause_for(server)
        return client.host if server.state == "listening" else None


async def find_or_start(notify: Notify | None = None, start_s_max: float = START_S_MAX) -> str:
    """Return the address of the user's server. Raises Unreachable if it cannot be started."""
    wait = _Wait(notify, start_s_max)
    async with Client(paths.default_host()) as client:
        while (server := await find_process(client)).state != "listening":
            if server.state != "none":
                await wait.pause_for(server)
                continue
            _create_directories()
            with _start_lock() as is_ours:
                # The server of another client may have been started, and even ended, since the check.
                if is_ours and (await find_process(client)).state == "none":
                    await _start(client, wait)
                    continue
            log = paths.server_log()
            await wait.pause(
                "waiting for another command, which is starting the server",
                f"Another process is starting the server and has not finished. See {log}",
            )
        return client.host


async def open_workspace(client: Client, path: str, *, may_start: bool, notify: Notify | None = None) -> WorkspaceBody:
    """Open a directory. With `may_start`, a server that is not running or is shutting down is started again."""
    deadline = time.monotonic() + START_S_MAX
    for pause_s in backoff_s(POLL_S_MIN, POLL_S_MAX):
        if may_start:
            await find_or_start(notify)
        try:
            return await client.create_workspace(path)
        except (Unreachable, Starting, ShuttingDown):
            # The server answered and then shut down, because it was idle or was stopped.
            if not may_start or time.monotonic() > deadline:
                raise
        await asyncio.sleep(pause_s)
    raise AssertionError("backoff_s never ends")


def _create_directories() -> None:
    try:
        paths.data_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
        _private_directory(paths.runtime_dir())
    except OSError as error:
        if full := full_disk(paths.data_dir(), error):
            raise Unreachable(f"The server cannot be started: {full}") from error
        raise


def _private_directory(directory: Path) -> None:
    """Create a directory that only the user can access. Its parent may be writable by other users."""
    if len(os.fsencode(paths.socket_file())) > paths.SOCKET_PATH_BYTES_MAX:
        raise Unreachable(f"{paths.socket_file()} is too long for a socket path. Set KEDGE_DATA_DIR to a shorter path.")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise Unreachable(f"{directory} is not a directory that you own. Remove it, or set XDG_RUNTIME_DIR to another.")
    if status.st_mode & 0o077:
        directory.chmod(0o700)


@contextmanager
def _start_lock() -> Iterator[bool]:
    """Try to take the start lock, without waiting. Yield whether this process holds it."""
    handle = os.open(paths.start_lock(), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


async def _start(client: Client, wait: _Wait) -> None:
    """Start a server, and return when it answers or when there is another one."""
    if find_spec("kedge.__main__") is None:  # only kedge-client is installed
        raise Unreachable("No server is running, and kedge-client cannot start one. Start it with: kedge serve")
    process, log_bytes = _start_process()
    while True:
        ended = process.poll()
        server = await find_process(client)
        if server.state == "listening":
            return
        if ended is not None:
            failure = f"The server did not start (exit code {ended}): {_last_log_line(log_bytes)}"
            if server.state == "none" and ended not in (0, -signal.SIGTERM):
                raise Unreachable(failure)
            # Another server holds the data directory, or this one was stopped by another client: start again.
            await wait.pause("starting the server again", failure)
            return
        if server.state == "none":
            who = f"the server (pid {process.pid})"
            failure = f"The server was started (pid {process.pid}) but does not answer. See {paths.server_log()}"
            await wait.pause(f"waiting for {who}, which is starting", failure)
        else:
            await wait.pause_for(server)


def _start_process() -> tuple[subprocess.Popen[bytes], int]:
    """Start a server; return its process and the size of its log before the start."""
    try:
        log = os.open(paths.server_log(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        if full := full_disk(paths.data_dir(), error):
            raise Unreachable(f"The server cannot be started: {full}") from error
        raise
    log_bytes = os.fstat(log).st_size
    environment = dict(os.environ)
    for name in _PATHS:
        if value := environment.get(name):
            entries = value.split(os.pathsep) if name == "PYTHONPATH" else [os.path.expanduser(value)]
            environment[name] = os.pathsep.join(os.path.abspath(entry) for entry in entries if entry)
    try:
        # -P: never import from the current directory, which may be an untrusted repository. -I if this process is
        # isolated, since PYTHONPATH may name such a directory.
        process = _Detached(
            [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", "kedge", "serve", "--exit-when-idle"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=paths.data_dir(),
            env=environment,
            start_new_session=True,
        )
        return process, log_bytes
    finally:
        os.close(log)


class _Detached(subprocess.Popen[bytes]):
    """A process that outlives this one. Dropping it is not a leak, so `__del__` must not warn."""

    def __del__(self) -> None:
        if self.poll() is None:
            self.returncode = 0
        super().__del__()


def _last_log_line(start: int) -> str:
    """Return the last line that the server logged, after this offset of its log."""
    try:
        with open(paths.server_log(), "rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(start if start <= end else 0, end - LOG_TAIL_BYTES))  # the server may have trimmed it
            lines = log.read().decode("utf-8", "replace").split("\n")
    except OSError:
        lines = []
    last = next((line for line in reversed(lines) if line.strip()), None)
    if last is None:  # the reason does not fit on a full disk
        return full_disk(paths.data_dir()) or f"no output (log: {paths.server_log()})"
    return f"{one_line(last)} (log: {paths.server_log()})"
