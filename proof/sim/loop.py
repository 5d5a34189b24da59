"""SimLoop: an event loop whose time is made up and whose order is drawn from a seed.

The same seed gives the same run, byte for byte; another seed another order. What tasks do is real, when they do it is
not: time stands still while anybody can go on, and jumps to the next timer when nobody can.

- Order within one task is kept, order between tasks is chosen. A plain callback belongs to the task that asked for it.
- Three kinds of schedule. `fifo` is asyncio's own order; `random` picks anybody; `priority` lets one task run ahead of
  all others until it is put last, which finds what needs one task to be very slow (a few changes are enough to show
  most bugs of order).
- A process is whatever was started in its context. A killed one is frozen: its tasks are never called again. They are
  not cancelled, since a crash runs no `finally`.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Schedule = Literal["fifo", "random", "priority"]

#: Calls in one simulation. The longest good one needs a tenth: more means that something goes round in circles. Items.
CALLS_MAX = 400_000
#: In `random` and `priority`: how often a timer fires although others could go on, as on a machine that is busy.
EARLY_TIMER = 0.02
#: Such a timer is at most as far away: a machine is busy for a moment, not for minutes. Seconds.
NEAR_S = 0.5
#: In `priority`: how often the task that was called last is put behind all others.
PUT_LAST = 0.05


class Stuck(Exception):
    """Nobody can go on, or nobody ever stops."""


class SimProcess:
    """What is started in it dies with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)

    def kill(self) -> None:
        self.is_dead = True


_process: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("process", default=None)


class _Call(asyncio.Handle):
    """A handle that does not ask its loop each time whether it is debugged."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: SimLoop, context: contextvars.Context | None
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, seed: int, schedule: Schedule = "fifo") -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self._schedule = schedule
        self._now = 0.0
        self._calls = 0
        #: Who can go on, each with its calls in order. By number, so that nothing depends on addresses.
        self._waiting: dict[int, deque[asyncio.Handle]] = {}
        self._order: deque[int] = deque()  # for fifo: one entry for each call
        self._numbers: dict[asyncio.Task[Any], int] = {}
        self._last_number = 0
        self._current = 0
        self._priority: dict[int, float] = {}
        self._timers: list[tuple[float, int, asyncio.TimerHandle, int]] = []
        self._timer_count = 0
        #: All tasks there were, with their process: a frozen one that is collected would run its `finally`.
        self.tasks: list[tuple[asyncio.Task[Any], SimProcess | None]] = []
        self._complaints: list[str] = []
        #: What happens between two calls, when so many more were made: a crash in the midst of things.
        self._between: dict[int, Callable[[], None]] = {}
        self.set_exception_handler(self._complain)
        self.set_task_factory(self._new_task)  # type: ignore[arg-type]

    # --- time and calls ------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Call(callback, args, self, context)
        self._put(handle, self._number_of(callback))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle, self._number_of(callback)))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(delay, 0.0), callback, *args, context=context)

    def after_calls(self, count: int, happens: Callable[[], None]) -> None:
        self._between[self._calls + count] = happens

    def nothing_between(self) -> None:
        self._between.clear()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it is dropped when its time comes

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """No threads: it is done at once, and whoever waits for it learns so a moment later."""
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.call_later(self._chance.random() * 0.001, _settle, future, None, error)
        else:
            self.call_later(self._chance.random() * 0.001, _settle, future, result, None)
        return future

    # --- whose call it is ----------------------------------------------------------------------------------------

    def spawn(self, process: SimProcess, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task in this process."""
        return self.create_task(work, name=name, context=process.context.copy())

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.Task(work, loop=loop, context=context)
        self.tasks.append((task, _process.get() if context is None else context.get(_process)))
        return task

    def _number_of(self, callback: Callable[..., object]) -> int:
        task = getattr(callback, "__self__", None)
        if not isinstance(task, asyncio.Task):
            return self._current
        number = self._numbers.get(task)
        if number is None:
            self._last_number += 1
            number = self._numbers[task] = self._last_number
        return number

    def _put(self, handle: asyncio.Handle, number: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is None:
            self._waiting[number] = deque((handle,))
        else:
            waiting.append(handle)
        if self._schedule == "fifo":
            self._order.append(number)

    # --- running -------------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Not one pass, as in asyncio, but all there are: most of what a call costs would be coming here."""
        waiting, timers, draw, between = self._waiting, self._timers, self._chance.random, self._between
        is_fifo, choose = self._schedule == "fifo", self._chooser()
        while not self._stopping:  # type: ignore[attr-defined]
            if not waiting:
                if not timers:
                    raise Stuck("nobody can go on")
                self._fire()
            elif not is_fifo and timers and timers[0][0] - self._now < NEAR_S and draw() < EARLY_TIMER:
                self._fire()
            if not waiting:
                continue
            self._calls = calls = self._calls + 1
            if calls > CALLS_MAX:
                raise Stuck(f"not over after {CALLS_MAX} calls")
            if calls in between:
                contextvars.Context().run(between.pop(calls))
                continue
            self._current = number = choose()
            own = waiting[number]
            handle = own.popleft()
            if not own:
                del waiting[number]
            if not handle._cancelled:
                context = handle._context  # type: ignore[attr-defined]
                process = context.get(_process)
                if process is None or not process.is_dead:
                    try:
                        context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        # As asyncio does: a plain call that fails is told, and ends nobody else.
                        self.call_exception_handler({"message": f"{handle._callback} failed", "exception": error})  # type: ignore[attr-defined]
            self._current = 0

    def _fire(self) -> None:
        """The next timer, and all others of the same moment."""
        when = self._timers[0][0]
        self._now = max(self._now, when)
        while self._timers and self._timers[0][0] <= self._now:
            _, _, handle, number = heapq.heappop(self._timers)
            if not handle.cancelled():
                self._put(handle, number)

    def _chooser(self) -> Callable[[], int]:
        """Whose call is the next, as this schedule has it."""
        waiting, chance = self._waiting, self._chance

        def anybody() -> int:
            return chance.choice(list(waiting)) if len(waiting) > 1 else next(iter(waiting))

        def the_first() -> int:
            if len(waiting) == 1:
                return next(iter(waiting))
            chosen = min(waiting, key=self._priority_of)
            if chance.random() < PUT_LAST:
                self._priority[chosen] = 1.0 + self._calls
            return chosen

        return {"fifo": self._order.popleft, "random": anybody, "priority": the_first}[self._schedule]

    def _priority_of(self, number: int) -> float:
        priority = self._priority.get(number)
        if priority is None:
            priority = self._priority[number] = self._chance.random()
        return priority

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._complaints.append(f"{context['message']}: {context.get('exception')!r}")

    def complaints(self) -> list[str]:
        """What asyncio had to complain about, and errors of tasks that nobody has looked at."""
        alive = [process for _, process in self.tasks if process is None or not process.is_dead]
        return self._complaints + [
            complaint for process in dict.fromkeys(alive) for complaint in self.complaints_of(process)
        ]

    def complaints_of(self, process: SimProcess | None) -> list[str]:
        # asyncio would complain when such a task is collected; here none is, since the loop knows them all.
        lost = [task for task, owner in self.tasks if owner is process and task._log_traceback]
        return [f"nobody looked at the error of {task.get_name()}: {task.exception()!r}" for task in lost]

    # What the base class leaves to a loop with a selector.

    def _process_events(self, event_list: object) -> None: ...

    def _write_to_self(self) -> None: ...

    def dispose(self) -> None:
        """Let go of everything; nothing that is collected now may run or complain."""
        self.set_exception_handler(lambda loop, context: None)
        for task, _ in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._waiting.clear()
        self._timers.clear()
        self.close()


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
