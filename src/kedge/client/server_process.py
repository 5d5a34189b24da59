"""The process of the user's server: whether there is one, its pid, and whether it listens.

The server keeps the lock of the data directory from its start to its end, and its pid is in the lock file. So the lock,
not the socket, decides whether there is a server: a server that is starting does not listen yet, and a socket file can
be removed. If the data directory itself was removed or replaced, the lock is gone with it; then the record that the
server wrote beside its socket identifies the process.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from kedge import paths
from kedge.client.client import Client
from kedge.client.http_transport import NotConnected
from kedge.client.peer_credentials import WrongServer
from kedge.errors import KedgeError, Unavailable, Unreachable
from kedge.process_identity import identity_of, living_pid, read_identity
from kedge.wire.server_record import is_stopping, recorded_pid

#: `unbound`: it has listened, but its socket file is gone. `hanging`: it has a socket, but does not answer.
#: `stopping`: it does not listen any more, and has not exited yet.
State = Literal["none", "starting", "listening", "unbound", "hanging", "stopping"]

#: Interval of checking whether a process has exited, where the kernel cannot report it. Seconds.
CHECK_S = 0.1


class ServerProcess(Struct, frozen=True):
    state: State
    #: None if there is no server, or if its process is not visible here, such as in another container.
    pid: int | None = None
    #: False if the data directory was removed or replaced while the server was running.
    has_data: bool = True

    @property
    def name(self) -> str:
        return f"The server (pid {self.pid})" if self.pid else "A server that is not visible here (another container?)"

    @property
    def summary(self) -> str:
        socket = paths.socket_file()
        match self.state:
            case "none":
                return "No server is running"
            case "starting":
                return (
                    f"{self.name} does not listen on {socket} yet: it is starting, or was started for another address"
                )
            case "unbound":
                return f"{self.name} is running, but its socket {socket} is gone"
            case "hanging":
                return f"{self.name} does not answer"
            case "stopping":
                return f"{self.name} is stopping"
            case "listening" if not self.has_data:
                return f"{self.name} is running, but its data directory {paths.data_dir()} was removed or replaced"
            case "listening":
                return f"{self.name} is listening on {socket}"

    @property
    def advice(self) -> str:
        match self.state:
            case "none":
                return "Start one with: kedge serve"
            case "starting":
                return f"See {paths.server_log()}, use --host, or stop it with: kedge stop"
            case "unbound":
                return "It creates the socket again within a minute; or stop it with: kedge stop"
            case "hanging":
                return f"See {paths.server_log()}, or stop it with: kedge stop --force"
            case "stopping":
                return "Kill it with: kedge stop --force"
            case "listening":
                return "" if self.has_data else "Stop it with: kedge stop"

    @property
    def progress(self) -> str:
        """The reason for which a command waits."""
        who = f"the server (pid {self.pid})" if self.pid else "the server"
        match self.state:
            case "unbound":
                return f"waiting for {who} to create its socket again"
            case "hanging":
                return f"waiting for {who}, which does not answer"
            case "stopping":
                return f"waiting for {who}, which is stopping"
            case _:
                return f"waiting for {who}, which is starting or stopping"


async def find_process(client: Client) -> ServerProcess:
    """Return the state of the user's server. `client` connects to its default address.

    Raises WrongServer if another process listens there."""
    try:
        await client.health()
        state: State = "listening"
    except WrongServer:
        raise  # a new server could not bind the socket either
    except NotConnected:
        state = "none"
    except Unreachable:
        state = "hanging"
    except Unavailable:
        state = "starting"
    except KedgeError:
        state = "listening"  # it answers, though not as expected
    is_held, owner = lock_owner()
    recorded = recorded_pid(paths.server_record(), paths.data_dir())
    if not is_held and recorded is None:
        return ServerProcess(state)
    if state == "none":
        # It records itself before it binds its socket.
        is_recorded = recorded is not None and recorded == (owner if is_held else recorded)
        state = "starting" if not is_recorded else "stopping" if is_stopping(paths.server_record()) else "unbound"
    return ServerProcess(state, owner if is_held else recorded, has_data=is_held)


def is_server(pid: int) -> bool:
    """Return whether this process is still the user's server."""
    is_held, owner = lock_owner()
    return pid == (owner if is_held else recorded_pid(paths.server_record(), paths.data_dir()))


def lock_owner() -> tuple[bool, int | None]:
    """Return whether a process holds the lock of the data directory, and its pid if it is visible here."""
    try:
        handle = os.open(paths.lock_file(), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False, None
    try:
        # Shared: two clients that check at once do not take each other for the server.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True, living_pid(read_identity(handle))
    except OSError:  # a file system without locks, on which no server could have started
        return False, None
    finally:
        os.close(handle)
    return False, None


class OpenProcess:
    """One process, never another one that gets its pid later: open it, then verify that the pid is the right one."""

    def __init__(self, pid: int) -> None:
        self._pid, self._identity = pid, identity_of(pid)
        self._handle: int | None = None
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # it has ended, or the kernel is too old
                self._handle = os.pidfd_open(pid)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
            elif living_pid(self._identity):
                os.kill(self._pid, number)

    async def wait_ended(self, wait_s: float) -> bool:
        """Wait for the end of the process; return False if it has not ended after `wait_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                if self._handle is not None:
                    await self._readable(self._handle)
                while living_pid(self._identity):  # noqa: ASYNC110
                    await asyncio.sleep(CHECK_S)
        return living_pid(self._identity) is None

    async def _readable(self, handle: int) -> None:
        """Wait until the handle is readable, which it is as soon as the process has ended."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(handle, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(handle)
