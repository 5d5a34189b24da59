"""Find the user's server, or start it. However many clients do this at once, one server is started.

The one who holds the lock in the runtime directory starts it and keeps the lock until the server answers; the others
look at the socket meanwhile. The lock is the kernel's: it ends with its holder, so a crash leaves nothing to clean up.
A stale socket file is replaced by the server itself, which alone can know that nobody listens there.
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
from pathlib import Path

from kedge import paths
from kedge.client.client import Client
from kedge.client.peer_credentials import WrongServer
from kedge.client.safe_text import one_line
from kedge.errors import ShuttingDown, Unreachable
from kedge.wire.models import WorkspaceBody

#: A cold start takes under a second; a busy machine with a cold disk some more. Seconds.
START_S_MAX = 15.0
#: Between two looks at the socket. Seconds.
LOOK_S = 0.03
#: The log is for the last few starts; beyond this it is begun anew. Bytes.
LOG_BYTES_MAX = 5 * 1024 * 1024
#: Enough for the last line of a traceback. Bytes.
LOG_TAIL_BYTES = 4096

#: Variables that hold paths: the server runs elsewhere, where a relative one would mean another place.
_PATHS = ("KEDGE_DATA_DIR", "KEDGE_CONFIG", "PYTHONPATH")


async def is_running() -> bool:
    """Whether the user's server answers. Starts nothing."""
    async with Client(paths.default_host()) as client:
        return await _answers(client)


async def find_or_start(start_s_max: float = START_S_MAX) -> str:
    """The host of the user's server, which answers; Unreachable if it cannot be started."""
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
            await asyncio.sleep(LOOK_S)
    raise Unreachable(f"another kedge is starting the server and has not finished: see {paths.server_log()}")


async def open_workspace(client: Client, path: str, *, may_start: bool) -> WorkspaceBody:
    """Open a directory on the user's server, or on a new one when that is just leaving."""
    deadline = time.monotonic() + START_S_MAX
    while True:
        if may_start:
            await find_or_start()
        try:
            return await client.create_workspace(path)
        except (Unreachable, ShuttingDown):
            # It answered, and then was gone or going: it had been idle for long enough.
            if not may_start or time.monotonic() > deadline:
                raise
        await asyncio.sleep(LOOK_S)


async def _answers(client: Client) -> bool:
    try:
        await client.health()
    except WrongServer:
        raise  # another server could not listen there
    except Unreachable:
        return False
    return True


def _private_directory(directory: Path) -> None:
    """A directory of ours that nobody else can look into. It may lie in a place where everybody can make one."""
    if len(os.fsencode(paths.socket_file())) > paths.SOCKET_PATH_BYTES_MAX:
        raise Unreachable(f"{paths.socket_file()} is too long for a socket: set KEDGE_DATA_DIR to a shorter path")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Unreachable(f"{directory} is not a directory of yours: remove it, or set XDG_RUNTIME_DIR to one that is")
    if found.st_mode & 0o077:
        directory.chmod(0o700)


@contextmanager
def _start_lock() -> Iterator[bool]:
    """Whether this process may start the server. Never waits."""
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
    server = _start_process()
    while time.monotonic() < deadline:
        ended = server.poll()
        if await _answers(client):
            return
        if ended is not None:
            raise Unreachable(f"the server did not start (exit {ended}): {_last_log_line()}")
        await asyncio.sleep(LOOK_S)
    raise Unreachable(f"the server was started (pid {server.pid}) and does not answer: see {paths.server_log()}")


def _start_process() -> subprocess.Popen[bytes]:
    log = _open_log()
    environment = dict(os.environ)
    for name in _PATHS:
        if given := environment.get(name):
            entries = given.split(os.pathsep) if name == "PYTHONPATH" else [os.path.expanduser(given)]
            environment[name] = os.pathsep.join(os.path.abspath(entry) for entry in entries if entry)
    try:
        # Never import from the current directory, which may be an untrusted repository: -P. Isolated like this
        # process, if it is, since PYTHONPATH may name such a directory.
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
    """A process that is meant to outlive us: forgetting it is no leak, so there is nothing to warn about."""

    def __del__(self) -> None:
        if self.poll() is None:
            self.returncode = 0
        super().__del__()


def _open_log() -> int:
    log = os.open(paths.server_log(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if os.fstat(log).st_size > LOG_BYTES_MAX:
        os.ftruncate(log, 0)
    return log


def _last_log_line() -> str:
    try:
        with open(paths.server_log(), "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").split("\n")
    except OSError:
        lines = []
    found = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    return f"{one_line(found)} (log: {paths.server_log()})"
