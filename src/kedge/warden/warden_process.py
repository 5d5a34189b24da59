"""A process that the warden started, and the tree below it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any, TypeVar

from kedge.waiting import is_done_within, retrieve_exception
from kedge.warden.base import ExitStatus, ProcessFailed, WardenFailed
from kedge.warden.keeper_protocol import KeeperMessage
from kedge.warden.proc_fs import is_zombie
from kedge.warden.stdio import Stdio

#: Interval and number of checks whether the overseer of a lost keeper has killed its tree: 5 s in all.
OVERSEER_POLL_S = 0.01
OVERSEER_POLLS_MAX = 500

T = TypeVar("T")

LOST = "The process keeper was lost, and its processes were killed. Try again: a new keeper is started."


class WardenProcess:
    """Always call `end`: background processes of the tree live until then, or until the warden closes."""

    def __init__(self, key: int, send: Callable[[KeeperMessage], None], streams: Stdio) -> None:
        #: Pid of the first process in the server's pid namespace; 0 until it is started.
        self.pid = 0
        self.key = key
        self._send = send
        self._output = streams.output
        self._stdin = streams.stdin
        self._stderr = streams.stderr
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = loop.create_future()
        self._exit: asyncio.Future[ExitStatus] = loop.create_future()
        self._gone: asyncio.Future[tuple[int, ...]] = loop.create_future()
        self._counts: dict[int, asyncio.Future[int]] = {}
        self._tags = 0
        self._overseer = 0
        #: True from the time at which the program may have begun.
        self.is_accepted = False
        self._is_lost = False
        self._ending: asyncio.Task[None] | None = None

    # --- for callers

    async def read(self) -> bytes:
        """Return the next bytes of the output; b"" at the end. Nothing is read ahead."""
        return await self._output.read()

    async def read_stderr(self) -> bytes:
        """Return the next bytes of standard error; b"" at the end, and if it is merged into the output."""
        return b"" if self._stderr is None else await self._stderr.read()

    async def write(self, data: bytes) -> None:
        """Write to standard input. Raises ProcessFailed if it is not a pipe, or has no reader any more."""
        if self._stdin is None:
            raise ProcessFailed("The input of the process is not a pipe.")
        await self._stdin.write(data)

    def close_stdin(self) -> None:
        if self._stdin is not None:
            self._stdin.close()

    async def wait(self) -> ExitStatus:
        """Wait for the exit of the first process. Background processes may still run and hold the streams open."""
        return await asyncio.shield(self._exit)

    async def alive(self) -> int:
        """Return the number of live processes of the tree, including the first."""
        if self._gone.done():
            return 0
        if self._is_lost:
            raise WardenFailed(LOST)
        self._tags = tag = self._tags + 1
        count: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._counts[tag] = count
        self._send({"count": self.key, "tag": tag})
        try:
            return await count
        finally:
            del self._counts[tag]

    async def end(self, grace_s: float) -> tuple[int, ...]:
        """End the whole tree: SIGTERM, after at most `grace_s` SIGKILL. Returns the pids that remain, normally none.

        It starts before the first await, and continues if the caller is cancelled. May be called again, also with less
        grace.
        """
        if not self._gone.done():
            self._send({"end": self.key, "grace_s": max(grace_s, 0.0)})
        return await asyncio.shield(self._gone)

    # --- for the keeper's client

    async def started(self, limit_s: float) -> None:
        """Wait until the program is executing. After `limit_s` it is ended: ProcessFailed."""
        if not await is_done_within(limit_s, self._started):
            left = await self.end(0.0)
            raise ProcessFailed(
                f"The program did not start within {limit_s:g} s; its directory may not answer."
                + (f" Process {', '.join(map(str, left))} could not be ended." if left else "")
            )
        self._started.result()

    def on_message(self, line: KeeperMessage) -> None:
        match line:
            case {"accepted": _}:
                self.is_accepted = True
            case {"started": _, "pid": int(pid), "overseer": int(overseer)}:
                self.pid, self._overseer = pid, overseer
                _settle(self._started, None)
            case {"failed": _, "error": str(error)}:
                _fail(self._started, ProcessFailed(error))
            case {"exited": _, "code": code, "signal": number}:
                _settle(self._exit, ExitStatus(code, number))
            case {"counted": _, "tag": int(tag), "alive": int(alive)} if tag in self._counts:
                _settle(self._counts[tag], alive)
            case {"gone": _, "left": list(left)}:
                self._end_here(tuple(left))
            case _:
                pass

    def on_lost(self, left: asyncio.Future[tuple[int, ...]] | None) -> None:
        """Handle the loss of the keeper. `left`: the pids that remain after a sweep.

        None if this process does not adopt orphans (a server does): then only the overseer can be watched, which kills
        its tree when the keeper is gone, unless it was killed as well."""
        self._is_lost = True
        _fail(self._started, WardenFailed(LOST))
        _fail(self._exit, WardenFailed(LOST))
        for count in self._counts.values():
            _fail(count, WardenFailed(LOST))
        if not self._gone.done():
            self._ending = asyncio.get_running_loop().create_task(self._wait_for_overseer(left))

    async def settled(self) -> None:
        """After `on_lost`: wait until the tree is gone or the checks gave up."""
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _wait_for_overseer(self, left: asyncio.Future[tuple[int, ...]] | None) -> None:
        if left is not None:
            self._end_here(await asyncio.shield(left))
            return
        for _ in range(OVERSEER_POLLS_MAX):
            if is_zombie(self._overseer):
                break
            await asyncio.sleep(OVERSEER_POLL_S)
        self._end_here(() if is_zombie(self._overseer) else (self._overseer,))

    def _end_here(self, left: tuple[int, ...]) -> None:
        _fail(self._started, ProcessFailed("killed before it began"))
        # The overseer does not report the exit of a process that it kills.
        _settle(self._exit, ExitStatus(None, signal.SIGKILL))
        for count in self._counts.values():
            _settle(count, len(left))
        self._output.finish()
        if self._stderr is not None:
            self._stderr.finish()
        self.close_stdin()
        _settle(self._gone, left)


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        retrieve_exception(future)  # there may be no waiter
