"""Blocking work of tools, in threads of their own.

A thread cannot be killed. So tools do not share the threads of the store, the prompts and the reads; one Run holds only
a few; long work calls `checkpoint` between its steps; and a Run waits for its threads before it ends. A thread that is
still busy by then makes the Run's clean-up a failed one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

#: Threads for the tools of all Runs: they wait for disks, and one core is enough to keep them all waiting. Items.
THREADS_MAX = 16
#: Of these, for one Run at a time, so that no Run takes them all. Items.
RUN_THREADS_MAX = 4

_pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="kedge-tool")


class Abandoned(Exception):
    """The call that this work was for has been cancelled."""


class _Job:
    """One piece of work. The lock decides between starting and abandoning it: abandoned work never starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_abandoned = False
        self.is_started = False

    def start(self) -> None:
        with self._lock:
            self.check()
            self.is_started = True

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = True

    def check(self) -> None:
        if self._is_abandoned:
            raise Abandoned


_job: ContextVar[_Job | None] = ContextVar("job", default=None)


def checkpoint() -> None:
    """Between the steps of long work: raise Abandoned when nothing waits for its result any more."""
    job = _job.get()
    if job is not None:
        job.check()


class Threads:
    """The thread work of one Run."""

    def __init__(self) -> None:
        self._jobs: dict[asyncio.Future[None], _Job] = {}
        self._room = asyncio.Semaphore(RUN_THREADS_MAX)

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """The result of `function(*args)`, computed in a thread. Cancelled: the work stops at its next checkpoint."""
        await self._room.acquire()
        job, context, results = _Job(), copy_context(), list[T]()
        context.run(_job.set, job)

        def work() -> None:
            job.start()
            results.append(context.run(function, *args))

        try:
            done = asyncio.get_running_loop().run_in_executor(_pool, work)
        except BaseException:
            self._room.release()
            raise
        self._jobs[done] = job
        done.add_done_callback(self._end)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            job.abandon()
            raise
        return results[0]

    def _end(self, done: asyncio.Future[None]) -> None:
        del self._jobs[done]
        self._room.release()
        if not done.cancelled():
            done.exception()  # retrieved here, since the caller may be gone

    @property
    def busy(self) -> int:
        """Threads that are running."""
        return sum(job.is_started for job in self._jobs.values())

    async def idle(self) -> None:
        """Wait until no thread is running. Work that has not started was abandoned, and never will."""
        while running := [done for done, job in self._jobs.items() if job.is_started]:
            await asyncio.wait(running)
