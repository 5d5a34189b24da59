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

from kedge.waiting import retrieve_exception

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

#: Threads for the tools of all Runs: they wait for disks, and one core is enough to keep them all waiting. Items.
THREADS_MAX = 16
#: Of these, for one Run and its child agents at a time, so that no Run takes them all. Items.
RUN_THREADS_MAX = 4
#: Searches of one Run and its child agents at a time: each may hold 100 MB of paths. Items.
RUN_SEARCHES_MAX = 4
#: Pages that one Run and its child agents fetch at a time: each may take `fetch_worker.MEMORY_BYTES_MAX`. Items.
RUN_FETCHES_MAX = 4

_pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="kedge-tool")


class Abandoned(Exception):
    """The call that this work was for has been cancelled."""


class _Piece:
    """One piece of work. The lock decides between starting and abandoning it: abandoned work never starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_abandoned = False
        self.is_started = False

    def start(self) -> None:
        with self._lock:
            self.check()
            self.is_started = True

    def abandon(self) -> bool:
        """Whether it will never start. Otherwise it stops at its next checkpoint."""
        with self._lock:
            self._is_abandoned = True
            return not self.is_started

    def check(self) -> None:
        if self._is_abandoned:
            raise Abandoned


_piece: ContextVar[_Piece | None] = ContextVar("piece", default=None)


def checkpoint() -> None:
    """Between the steps of long work: raise Abandoned when nothing waits for its result any more."""
    piece = _piece.get()
    if piece is not None:
        piece.check()


class ToolThreads:
    """The thread work of one Run, and the room it has."""

    def __init__(self, parent: ToolThreads | None = None) -> None:
        """`parent`: of the Run whose child agent this is. They share their room: one Step may start a hundred."""
        self._pieces: dict[asyncio.Future[None], _Piece] = {}
        self._room: asyncio.Semaphore = parent._room if parent else asyncio.Semaphore(RUN_THREADS_MAX)
        #: Held by who searches, until the result is made.
        self.searches: asyncio.Semaphore = parent.searches if parent else asyncio.Semaphore(RUN_SEARCHES_MAX)
        #: Held by who fetches.
        self.fetches: asyncio.Semaphore = parent.fetches if parent else asyncio.Semaphore(RUN_FETCHES_MAX)

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """The result of `function(*args)`, computed in a thread. Cancelled: the work stops at its next checkpoint."""
        await self._room.acquire()
        piece, context, results = _Piece(), copy_context(), list[T]()
        context.run(_piece.set, piece)

        def work() -> None:
            piece.start()
            results.append(context.run(function, *args))

        try:
            done = asyncio.get_running_loop().run_in_executor(_pool, work)
        except BaseException:
            self._room.release()
            raise
        self._pieces[done] = piece
        done.add_done_callback(self._end)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            if piece.abandon():
                done.cancel()  # at once: it must not keep the room of others until the pool comes to it
            raise
        return results[0]

    def _end(self, done: asyncio.Future[None]) -> None:
        del self._pieces[done]
        self._room.release()
        retrieve_exception(done)  # the caller may be gone

    @property
    def busy(self) -> int:
        """Threads that are running."""
        return sum(piece.is_started for piece in self._pieces.values())

    async def idle(self) -> None:
        """Wait until no thread is running. Work that has not started was abandoned, and never will."""
        while running := [done for done, piece in self._pieces.items() if piece.is_started]:
            await asyncio.wait(running)
