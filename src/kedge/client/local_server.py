"""Find the user's server, or start it. Of several clients that do this at once, one starts it.

The client that holds the lock in the runtime directory starts the server and keeps the lock until it answers. The
others poll the socket. The kernel releases the lock when its holder exits, so a crash leaves nothing to clean up. A
stale socket file is replaced by the server, which holds the lock of the data directory.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from kedge import paths
from kedge.client.client import Client
from kedge.client.peer_credentials import WrongServer
from kedge.client.safe_text import one_line
from kedge.errors import ShuttingDown, Unreachable
from kedge.wire.models import WorkspaceBody

#: A start takes under a second; on a busy machine with a cold disk it takes longer. Seconds.
START_S_MAX = 15.0
#: Interval of polling the socket. Seconds.
POLL_S = 0.03
#: Enough for the last line of a traceback. Bytes.
LOG_TAIL_BYTES = 4096

#: Variables that hold paths. They are made absolute, since the server runs in another directory.
_PATHS = ("KEDGE_DATA_DIR", "KEDGE_CONFIG", "PYTHONPATH")


async def is_running() -> bool:
    """Return whether the user's server answers, without starting it."""
    async with Client(paths.default_host()) as client:
        return await _answers(client)


async def find_or_start(start_s_max: float = START_S_MAX) -> str:
    """Return the address of the user's running server. Raises Unreachable if it cannot be started."""
    async with Client(paths.default_host()) as client:
        if await _answers(client):
            return client.host
        paths.data_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
        _private_directory(paths.runtime_dir())
        deadline = time.monotonic() + start_s_max
        while time.monotonic() < deadline:
            with _start_lock() as is_ours:
                if await _answers(client):
                    return client.host
                if is_ours:
                    await _start(client, deadline)
                    return client.host
            await asyncio.sleep(POLL_S)
    raise Unreachable(f"Another process is starting the server and has not finished. See {paths.server_log()}")


async def open_workspace(client: Client, path: str, *, may_start: bool) -> WorkspaceBody:
    """Open a directory. With `may_start`, a server that is not running or is shutting down is started again."""
    deadline = time.monotonic() + START_S_MAX
    while True:
        if may_start:
            await find_or_start()
        try:
            return await client.create_workspace(path)
        except (Unreachable, ShuttingDown):
            # The server answered and then shut down, because it was idle.
            if not may_start or time.monotonic() > deadline:
                raise
        await asyncio.sleep(POLL_S)


async def _answers(client: Client) -> bool:
    try:
        await client.health()
    except WrongServer:
        raise  # a new server could not bind the socket either
    except Unreachable:
        return False
    return True


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
    handle = os.open(paths.runtime_dir() / "start.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


async def _start(client: Client, deadline: float) -> None:
    if find_spec("kedge.__main__") is None:  # only kedge-client is installed
        raise Unreachable("No server is running, and kedge-client cannot start one. Start it with: kedge serve")
    server = _start_process()
    while time.monotonic() < deadline:
        ended = server.poll()
        if await _answers(client):
            return
        if ended is not None:
            raise Unreachable(f"The server did not start (exit code {ended}): {_last_log_line()}")
        await asyncio.sleep(POLL_S)
    raise Unreachable(f"The server was started (pid {server.pid}) but does not answer. See {paths.server_log()}")


def _start_process() -> subprocess.Popen[bytes]:
    log = os.open(paths.server_log(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    environment = dict(os.environ)
    for name in _PATHS:
        if value := environment.get(name):
            entries = value.split(os.pathsep) if name == "PYTHONPATH" else [os.path.expanduser(value)]
            environment[name] = os.pathsep.join(os.path.abspath(entry) for entry in entries if entry)
    try:
        # -P: never import from the current directory, which may be an untrusted repository. -I if this process is
        # isolated, since PYTHONPATH may name such a directory.
        return _Detached(
            [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", "kedge", "serve", "--exit-when-idle"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=paths.data_dir(),
            env=environment,
            start_new_session=True,
        )
    finally:
        os.close(log)


class _Detached(subprocess.Popen[bytes]):
    """A process that outlives this one. Dropping it is not a leak, so `__del__` must not warn."""

    def __del__(self) -> None:
        if self.poll() is None:
            self.returncode = 0
        super().__del__()


def _last_log_line() -> str:
    try:
        with open(paths.server_log(), "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").split("\n")
    except OSError:
        lines = []
    last = next((line for line in reversed(lines) if line.strip()), "(no output)")
    return f"{one_line(last)} (log: {paths.server_log()})"
