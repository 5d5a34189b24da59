"""Threads for calls that touch one directory, which may stop answering: a dead NFS, sshfs or FUSE mount.

A thread that waits for such a mount cannot be stopped. Therefore no call on a workspace's files runs on the event loop,
and each workspace has a few threads of its own, so that a dead mount affects no other workspace. Each call has a time
limit. At the limit the caller gets DirectoryTimeout, and the thread is left waiting. Long work calls `checkpoint`
between its steps, and stops there if no caller waits for it any more.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Generic, TypeVar, TypeVarTuple

from kedge.errors import DirectoryTimeout
from kedge.waiting import retrieve_exception

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

#: Threads of one directory. They mostly wait for a disk. Items.
THREADS_MAX = 4
#: Those that tools may hold, so that requests (a submit, for example) never wait for tools. Items.
TOOL_THREADS_MAX = 3
#: Calls that wait for a thread: more than the clients of one workspace make in a second. Items.
WAITING_MAX = 100
#: Limit of a call that reads some directories or small files, with its wait for a thread. It takes milliseconds; a disk
#: that has to spin up, or a server that fails over, takes some seconds. Seconds.
LOOK_S = 10.0
#: Limit of a call that reads many files, or megabytes. Seconds.
READ_S = 30.0
#: Limit of the work of a tool, and of undo: longer than a scan of 500 MB on a slow disk. Tools have limits of their own
#: for everything else. Seconds.
WORK_S = 120.0
#: An idle thread ends after this time, so that an idle server has none. Seconds.
IDLE_S = 10.0


class Abandoned(Exception):
    """The call was cancelled, or took too long."""


class FileCall(Generic[T]):
    """One call. The lock decides between starting and abandoning it: an abandoned call never starts."""

    def __init__(self) -> None:
        self.done: asyncio.Future[T]
        self.is_started = False
        self._lock = threading.Lock()
        self._is_abandoned = False

    def start(self) -> None:
        with self._lock:
            self.check()
            self.is_started = True

    def abandon(self) -> bool:
        """Return True if the call will never start. Otherwise it stops at its next checkpoint."""
        with self._lock:
            self._is_abandoned = True
            if not self.is_started:
                self.done.cancel()
            return not self.is_started

    def check(self) -> None:
        if self._is_abandoned:
            raise Abandoned


_current: ContextVar[FileCall[Any] | None] = ContextVar("file_call", default=None)


def checkpoint() -> None:
    """Raise Abandoned if no caller waits for the current call. Long work calls this between its steps."""
    if (call := _current.get()) is not None:
        call.check()


class FileThreads:
    """The threads of one directory, with limits."""

    def __init__(self, name: str, threads_max: int = THREADS_MAX) -> None:
        """`name` is the subject of errors: "The directory of workspace /src/x"."""
        self._name = name
        self._threads = _DaemonThreads(threads_max)
        #: Held during a call of a tool.
        self.tool_slots = asyncio.Semaphore(TOOL_THREADS_MAX)
        #: Threads that are busy with a call whose caller is gone: normally for a moment, until its next checkpoint.
        self.stuck = 0

    async def run(self, function: Callable[[*Ts], T], *args: *Ts, limit_s: float | None = None) -> T:
        """Return `function(*args)`, called in a thread. DirectoryTimeout if it takes longer than `limit_s` (LOOK_S),
        with the wait for a thread."""
        return await self.result(self.begin(function, *args), LOOK_S if limit_s is None else limit_s)

    def begin(self, function: Callable[[*Ts], T], *args: *Ts) -> FileCall[T]:
        """Start a call. Await `result` for it."""
        if self._threads.waiting >= WAITING_MAX:
            raise self.timeout()
        call, context = FileCall[T](), copy_context()
        context.run(_current.set, call)

        def work() -> T:
            call.start()
            return context.run(function, *args)

        # Through the loop: in simulations it has no threads.
        call.done = asyncio.get_running_loop().run_in_executor(self._threads, work)
        call.done.add_done_callback(retrieve_exception)  # the caller may be gone
        return call

    async def result(self, call: FileCall[T], limit_s: float) -> T:
        """Return the result of a call. If the caller is cancelled, the call stops at its next checkpoint."""
        try:
            # Not asyncio.timeout: the function itself may raise TimeoutError, which is an OSError.
            await asyncio.wait({call.done}, timeout=limit_s)
        except asyncio.CancelledError:
            self._leave(call)
            raise
        if not call.done.done():
            self._leave(call)
            raise self.timeout()
        return call.done.result()

    def _leave(self, call: FileCall[T]) -> None:
        if not call.done.done() and not call.abandon():
            self.stuck += 1
            call.done.add_done_callback(self._returned)

    def _returned(self, done: asyncio.Future[T]) -> None:
        self.stuck -= 1

    def timeout(self) -> DirectoryTimeout:
        return DirectoryTimeout(f"{self._name} does not answer; check the mount.")


class _DaemonThreads(Executor):
    """A few daemon threads, started when they are needed, ended when they are idle.

    Those of ThreadPoolExecutor delay the exit of the process, for ever if a mount never answers."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._count = 0
        self._idle = 0

    @property
    def waiting(self) -> int:
        """The number of calls that no thread has taken."""
        return len(self._calls)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if len(self._calls) >= self._idle and self._count < self._threads_max:
                # Not Thread.start: it waits until the thread runs, which took 280 ms of the loop on a busy machine.
                _thread.start_new_thread(self._run, ())
                self._count += 1
            self._calls.append((future, partial(fn, *args, **kwargs)))
            self._changed.notify()
        return future

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                has_call = self._changed.wait_for(lambda: self._calls, IDLE_S)
                self._idle -= 1
                if not has_call:
                    self._count -= 1
                    return
                future, call = self._calls.popleft()
            _settle(future, call)
            del future, call  # an idle thread must not keep a result in memory


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
