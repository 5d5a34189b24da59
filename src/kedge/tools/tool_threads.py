"""The blocking work of one Run's tools, in threads of its workspace.

A thread cannot be killed. Therefore one Run holds only a few, and waits for them before it ends. If a thread is still
busy then, the Run's clean-up counts as failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar, TypeVarTuple

from kedge.tools import file_threads
from kedge.tools.file_threads import FileCall, FileThreads

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

#: Threads for one Run and its child agents, so that no Run takes all that tools may hold. Items.
RUN_THREADS_MAX = 2
#: Concurrent searches of one Run and its child agents: each may hold 100 MB of paths. Items.
RUN_SEARCHES_MAX = 4
#: Concurrent fetches of one Run and its child agents: each may take `fetch_worker.FETCH_MEMORY_BYTES_MAX`. Items.
RUN_FETCHES_MAX = 4


class ToolThreads:
    """The thread work of one Run, within its limits."""

    def __init__(self, files: FileThreads, parent: ToolThreads | None = None) -> None:
        """`parent`: that of the parent Run. Child agents share its limits: one Step may start a hundred of them."""
        self._files = files
        self._calls: dict[asyncio.Future[Any], FileCall[Any]] = {}
        self._slots: asyncio.Semaphore = parent._slots if parent else asyncio.Semaphore(RUN_THREADS_MAX)
        #: Held during a search, until its result is complete.
        self.searches: asyncio.Semaphore = parent.searches if parent else asyncio.Semaphore(RUN_SEARCHES_MAX)
        #: Held during a fetch.
        self.fetches: asyncio.Semaphore = parent.fetches if parent else asyncio.Semaphore(RUN_FETCHES_MAX)

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return `function(*args)`, computed in a thread. On cancellation the work stops at its next checkpoint.

        DirectoryTimeout if it takes longer than WORK_S, which only happens if the directory does not answer."""
        return await self._run(file_threads.WORK_S, function, *args)

    async def look(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Like `run`, for a call that takes milliseconds: DirectoryTimeout after LOOK_S. Each call of a tool on files
        begins with one, so that it fails soon if the directory does not answer."""
        return await self._run(file_threads.LOOK_S, function, *args)

    async def _run(self, limit_s: float, function: Callable[[*Ts], T], *args: *Ts) -> T:
        with ExitStack() as held:
            for slots in (self._slots, self._files.tool_slots):
                await self._acquire(slots)
                held.callback(slots.release)
            call = self._files.begin(function, *args)
            # Held until the thread has returned, which may be after this call.
            release = held.pop_all()
        self._calls[call.done] = call
        call.done.add_done_callback(self._end)
        call.done.add_done_callback(lambda done: release.close())
        return await self._files.result(call, limit_s)

    async def _acquire(self, slots: asyncio.Semaphore) -> None:
        """Wait for a slot: for as long as other calls make progress, and until LOOK_S if a thread is stuck."""
        while slots.locked():
            try:
                async with asyncio.timeout(file_threads.LOOK_S):
                    await slots.acquire()
                return
            except TimeoutError:
                if self._files.stuck:
                    raise self._files.timeout() from None
        await slots.acquire()

    def _end(self, done: asyncio.Future[Any]) -> None:
        del self._calls[done]

    @property
    def busy(self) -> int:
        """The number of running threads."""
        return sum(call.is_started for call in self._calls.values())

    async def idle(self) -> None:
        """Wait until no thread is running. Work that has not started was abandoned and never starts."""
        while running := [done for done, call in self._calls.items() if call.is_started]:
            await asyncio.wait(running)
