"""The server's connection to one keeper: messages, descriptors, and the loss of the keeper."""

from __future__ import annotations

import array
import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from kedge import children
from kedge.waiting import is_done_within, retrieve_exception
from kedge.warden import orphans
from kedge.warden.base import MechanismChoice, WardenFailed
from kedge.warden.keeper import BOOTSTRAP
from kedge.warden.keeper_protocol import RECEIVE_BYTES, WIRE_VERSION, KeeperMessage, MessageReader, encode
from kedge.warden.warden_process import WardenProcess

log = logging.getLogger("kedge.warden")

#: A keeper starts in some 50 ms; a longer start means that it hangs. Seconds.
START_S_MAX = 10.0

#: Interval of the pings while there are processes. A ping also continues a keeper that was stopped. Seconds.
PING_S = 1.0

#: Consecutive pings without any message from the keeper, after which it is killed and replaced. It answers in a
#: millisecond; together this is less than the time that a cancelled Run has for its clean-up. Pings.
PINGS_MAX = 5

#: The keeper limits the time of its own exit and of each tree (OVERSEER_S, LEFT_S); one that takes longer is killed.
CLOSE_S_MAX = 15.0

#: A killed process ends at once, unless it is stuck in the kernel. Seconds.
KILL_S_MAX = 5.0


class KeeperClient:
    """Created by `open`. The keeper detects `mechanism` and `landlock` on this machine."""

    def __init__(self, connection: socket.socket, keeper: asyncio.subprocess.Process) -> None:
        self.mechanism = ""
        self.landlock = 0
        self.processes: dict[int, WardenProcess] = {}
        self.is_lost = False
        self.keeper_pid = keeper.pid
        self._connection = connection
        self._keeper = keeper
        self._lines = MessageReader()
        #: Bytes, and the descriptors that are sent with their first byte.
        self._queue: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._error = ""
        #: Trees that the keeper has to end, with the seconds that it has left for it.
        self._ending: dict[int, float] = {}
        #: Pings since its last message, and the timer of the next one; after its kill, the timer that gives it up.
        self._pings = 0
        self._timer: asyncio.TimerHandle | None = None
        #: After the keeper was lost: the sweep for its processes.
        self._left: asyncio.Task[tuple[int, ...]] | None = None
        self._loop.add_reader(connection, self._receive)

    @classmethod
    async def open(cls, mechanism: MechanismChoice) -> KeeperClient:
        ours, its = socket.socketpair()
        ours.setblocking(False)
        try:
            with its:
                # No environment: processes below the keeper can read it.
                keeper = await children.start(
                    sys.executable,
                    "-I",
                    "-S",
                    "-X",
                    "utf8",
                    "-c",
                    BOOTSTRAP,
                    str(Path(__file__).parents[2]),
                    str(its.fileno()),
                    mechanism,
                    pass_fds=(its.fileno(),),
                    env={},
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    stderr=DEVNULL,
                    start_new_session=True,
                )
        except BaseException as error:
            ours.close()
            if isinstance(error, OSError):
                raise WardenFailed(f"The process keeper cannot be started: {error.strerror}.") from None
            raise
        client = cls(ours, keeper)
        try:
            if not await is_done_within(START_S_MAX, client._hello):
                client._kill("did not start")
                raise WardenFailed(f"The process keeper did not start within {START_S_MAX:g} s. Try again.")
            client._hello.result()
        except BaseException:
            await client.close()
            raise
        return client

    def send(self, line: KeeperMessage, descriptors: Iterable[int] = ()) -> None:
        """Send a message. Closes the descriptors when they are sent, or cannot be."""
        if self.is_lost:
            _close(descriptors)
            return
        self._signal(signal.SIGCONT)  # without a namespace a tool can stop the keeper
        if "end" in line and line["end"] in self.processes:
            self._ending[line["end"]] = line["grace_s"] + CLOSE_S_MAX
        if self._timer is None and self.processes:
            self._timer = self._loop.call_later(PING_S, self._ping)
        self._queue.append((memoryview(encode(line)), tuple(descriptors)))
        if len(self._queue) == 1:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._queue:
                data, descriptors = self._queue[0]
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
                sent = self._connection.sendmsg([data], rights)
                _close(descriptors)
                self._queue[0] = (data[sent:], ())
                if sent == len(data):
                    self._queue.popleft()
            self._loop.remove_writer(self._connection)
        except BlockingIOError:
            self._loop.add_writer(self._connection, self._flush)
        except (BrokenPipeError, ConnectionResetError):
            # The keeper is dead. `_receive` reads its last messages and then the end.
            self._loop.remove_writer(self._connection)
        except OSError as error:
            # The kernel refused (too many descriptors in flight). After a partial message the keeper must be replaced.
            self._error = str(error.strerror)
            self._on_lost()

    def _receive(self) -> None:
        try:
            data = self._connection.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._pings = 0
        for line in self._lines.feed(data):
            self._on_message(line)
        if not data:
            self._on_lost()

    def _on_message(self, line: KeeperMessage) -> None:
        match line:
            case {"hello": int(version), "mechanism": str(mechanism), "landlock": int(landlock)}:
                self.mechanism, self.landlock = mechanism, landlock
                if version == WIRE_VERSION and not self._hello.done():
                    self._hello.set_result(None)
            case {"broken": str(error)}:
                self._error = error
            case {"pong": _}:
                pass
            case _:
                key = next(iter(line.values()))
                process = self.processes.get(key)
                if process is not None:
                    process.on_message(line)
                if "gone" in line:
                    self.processes.pop(key, None)
                    self._ending.pop(key, None)

    def _ping(self) -> None:
        """Check that the keeper answers, and kill it if it does not.

        Each timer is set by the one before it, so a pause of this process counts as one ping. The keeper was probably
        paused as well, and answers before the next."""
        self._timer = None
        self._ending = {key: seconds - PING_S for key, seconds in self._ending.items()}
        if self._pings >= PINGS_MAX:
            self._kill("does not answer")
        elif any(seconds <= 0 for seconds in self._ending.values()):
            self._kill("did not end a command in time")
        elif self.processes:
            self._pings += 1
            self.send({"ping": self._pings})

    def _kill(self, reason: str) -> None:
        """Kill the keeper. Its last messages follow, and then the end of its socket."""
        log.warning(
            "the process keeper %s; it is killed and replaced (pid %d, commands lost: %d)",
            reason,
            self.keeper_pid,
            len(self.processes),
        )
        self._signal(signal.SIGKILL)
        self._timer = self._loop.call_later(KILL_S_MAX, self._on_lost)

    def _on_lost(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._loop.remove_reader(self._connection)
        self._loop.remove_writer(self._connection)
        self._connection.close()
        for _, descriptors in self._queue:
            _close(descriptors)
        self._queue.clear()
        self._ending.clear()
        self._stop_timer()
        self._signal(signal.SIGKILL)  # it may have closed the connection and still run
        if orphans.is_adopting():
            self._left = self._loop.create_task(self._sweep())
        for process in self.processes.values():
            process.on_lost(self._left)
        if not self._hello.done():
            reason = self._error or "it ended at once"
            self._hello.set_exception(WardenFailed(f"The process keeper cannot be started: {reason}."))
            retrieve_exception(self._hello)
        self._ended.set_result(None)

    async def _sweep(self) -> tuple[int, ...]:
        """Wait for the keeper's exit, when its processes become our children, and kill them."""
        try:
            async with asyncio.timeout(KILL_S_MAX):
                await self._keeper.wait()
        except TimeoutError:
            return (self.keeper_pid,)
        return await orphans.sweep()

    def _signal(self, number: int) -> None:
        if self._keeper.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.keeper_pid, number)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """Close the connection. All processes are dead on return: the keeper exits after them."""
        if not self.is_lost:
            self._stop_timer()
            self._signal(signal.SIGCONT)
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
        if not await is_done_within(CLOSE_S_MAX if self.processes else KILL_S_MAX, self._ended):
            self._on_lost()
        with suppress(TimeoutError):  # stuck in the kernel: it must not keep its successor from starting
            async with asyncio.timeout(KILL_S_MAX):
                await self._keeper.wait()
        if self._left is not None:
            await asyncio.shield(self._left)
        for process in list(self.processes.values()):
            await process.settled()
        self.processes.clear()


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
