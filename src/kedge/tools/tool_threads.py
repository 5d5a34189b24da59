"""A thread pool for the blocking work of tools.

A thread cannot be killed. Therefore tools do not share threads with the rest of the server, one Run holds only a few,
long work calls `checkpoint` between its steps, and a Run waits for its threads before it ends. If a thread is still
busy then, the Run's clean-up counts as failed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TypeVar, TypeVarTuple

from kedge.waiting import retrieve_exception

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

#: Threads for the tools of all Runs. They mostly wait for disks. Items.
THREADS_MAX = 16
#: Threads for one Run and its child agents, so that no Run takes them all. Items.
RUN_THREADS_MAX = 4
#: Concurrent searches of one Run and its child agents: each may hold 100 MB of paths. Items.
RUN_SEARCHES_MAX = 4
#: Concurrent fetches of one Run and its child agents: each may take `fetch_worker.FETCH_MEMORY_BYTES_MAX`. Items.
RUN_FETCHES_MAX = 4

_pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="kedge-tool")


class Abandoned(Exception):
    """The call was cancelled."""


class _WorkItem:
    """One unit of work. The lock decides between starting and abandoning it: abandoned work never starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_abandoned = False
        self.is_started = False

    def start(self) -> None:
        with self._lock:
            self.check()
            self.is_started = True

    def abandon(self) -> bool:
        """Return True if the work will never start. Otherwise it stops at its next checkpoint."""
        with self._lock:
            self._is_abandoned = True
            return not self.is_started

    def check(self) -> None:
        if self._is_abandoned:
            raise Abandoned


_current: ContextVar[_WorkItem | None] = ContextVar("work_item", default=None)


def checkpoint() -> None:
    """Raise Abandoned if the call was cancelled. Long work calls this between its steps."""
    work_item = _current.get()
    if work_item is not None:
        work_item.check()


class ToolThreads:
    """The thread work of one Run, within its limits."""

    def __init__(self, parent: ToolThreads | None = None) -> None:
        """`parent`: that of the parent Run. Child agents share its limits: one Step may start a hundred of them."""
        self._items: dict[asyncio.Future[None], _WorkItem] = {}
        self._slots: asyncio.Semaphore = parent._slots if parent else asyncio.Semaphore(RUN_THREADS_MAX)
        #: Held during a search, until its result is complete.
        self.searches: asyncio.Semaphore = parent.searches if parent else asyncio.Semaphore(RUN_SEARCHES_MAX)
        #: Held during a fetch.
        self.fetches: asyncio.Semaphore = parent.fetches if parent else asyncio.Semaphore(RUN_FETCHES_MAX)

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return `function(*args)`, computed in a thread. On cancellation the work stops at its next checkpoint."""
        await self._slots.acquire()
        work_item, context, results = _WorkItem(), copy_context(), list[T]()
        context.run(_current.set, work_item)

        def work() -> None:
            work_item.start()
            results.append(context.run(function, *args))

        try:
            done = asyncio.get_running_loop().run_in_executor(_pool, work)
        except BaseException:
            self._slots.release()
            raise
        self._items[done] = work_item
        done.add_done_callback(self._end)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            if work_item.abandon():
                done.cancel()  # at once: it must not hold a slot until the pool gets to it
            raise
        return results[0]

    def _end(self, done: asyncio.Future[None]) -> None:
        del self._items[done]
        self._slots.release()
        retrieve_exception(done)  # the caller may be gone

    @property
    def busy(self) -> int:
        """The number of running threads."""
        return sum(work_item.is_started for work_item in self._items.values())

    async def idle(self) -> None:
        """Wait until no thread is running. Work that has not started was abandoned and never starts."""
        while running := [done for done, work_item in self._items.items() if work_item.is_started]:
            await asyncio.wait(running)
