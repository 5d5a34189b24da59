"""SimLoop: an event loop with simulated time, whose order is drawn from a seed.

The same seed gives the same run, byte for byte. Time stands still while any task is ready, and jumps to the next timer
when none is.

- The order within one task is kept, the order between tasks is chosen. A plain callback belongs to the task that
  scheduled it.
- There are three schedules. `fifo` is asyncio's own order. `random` picks any ready task. `priority` always runs the
  task of the highest priority, and sometimes moves it to the end: that finds races that need one very slow task.
- A process consists of the tasks started in its context. A killed process is frozen: its tasks are never called again.
  They are not cancelled, because a crash runs no `finally`. The calls of a paused process wait until it continues.
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

#: Calls in one simulation. The longest correct one needs a tenth; more calls mean an endless loop. Items.
CALLS_MAX = 400_000
#: In `random` and `priority`: the probability that a timer fires although tasks are ready, as on a busy machine.
EARLY_TIMER = 0.02
#: Only timers that are due within this time fire early: a machine is busy for moments, not for minutes. Seconds.
NEAR_S = 0.5
#: In `priority`: the probability that the chosen task moves to the end.
PUT_LAST = 0.05


class Stuck(Exception):
    """No task can continue, or the tasks never stop."""


class SimProcess:
    """A simulated process: all tasks started in it die with it, and stand still while it is paused."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = self.is_paused = self.was_paused = False
        #: The calls that became ready while it was paused, with the numbers of their tasks.
        self.held: list[tuple[asyncio.Handle, int]] = []
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)

    def pause(self) -> None:
        self.is_paused = self.was_paused = True

    def kill(self) -> None:
        self.is_dead = True
        self.held.clear()


_process: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("process", default=None)


def outside() -> contextvars.Context:
    """Return a context for calls that belong to no process: they run even if the caller's process is killed."""
    return contextvars.Context()


def current_process() -> SimProcess | None:
    """Return the process whose call this is."""
    return _process.get()


class _Call(asyncio.Handle):
    """A handle that does not check the loop's debug mode."""

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
        self._rng = random.Random(seed)
        self._schedule = schedule
        self._now = 0.0
        self._calls = 0
        #: The ready calls of each task, in order. By number, so that nothing depends on addresses.
        self._waiting: dict[int, deque[asyncio.Handle]] = {}
        self._order: deque[int] = deque()  # for fifo: one entry for each call
        self._numbers: dict[asyncio.Task[Any], int] = {}
        self._last_number = 0
        self._current = 0
        self._priority: dict[int, float] = {}
        self._timers: list[tuple[float, int, asyncio.TimerHandle, int]] = []
        self._timer_count = 0
        #: All tasks so far, with their process: a frozen task that is collected would run its `finally`.
        self.tasks: list[tuple[asyncio.Task[Any], SimProcess | None]] = []
        self._complaints: list[str] = []
        #: Functions to run before the call with this number: a crash between any two calls.
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

    def after_calls(self, count: int, function: Callable[[], None]) -> None:
        self._between[self._calls + count] = function

    def nothing_between(self) -> None:
        self._between.clear()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # dropped when it is due

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Call the function at once, without threads, and settle the future a little later."""
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.call_later(self._rng.random() * 0.001, _settle, future, None, error)
        else:
            self.call_later(self._rng.random() * 0.001, _settle, future, result, None)
        return future

    # --- whose call it is ----------------------------------------------------------------------------------------

    def spawn(self, process: SimProcess, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task in this process."""
        return self.create_task(work, name=name, context=process.context.copy())

    def resume(self, process: SimProcess) -> None:
        """Let a paused process continue with the calls that became ready meanwhile."""
        process.is_paused = False
        held, process.held = process.held, []
        for handle, number in held:
            self._put(handle, number)

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
        """Run all calls, not one pass as asyncio does: returning after each pass would dominate the cost."""
        waiting, timers, draw, between = self._waiting, self._timers, self._rng.random, self._between
        is_fifo, choose = self._schedule == "fifo", self._chooser()
        while not self._stopping:  # type: ignore[attr-defined]
            if not waiting:
                if not timers:
                    raise Stuck("no task can continue")
                self._fire()
            elif not is_fifo and timers and timers[0][0] - self._now < NEAR_S and draw() < EARLY_TIMER:
                self._fire()
            if not waiting:
                continue
            self._calls = calls = self._calls + 1
            if calls > CALLS_MAX:
                raise Stuck(f"not finished after {CALLS_MAX} calls")
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
                if process is not None and process.is_paused and not process.is_dead:
                    process.held.append((handle, number))
                elif process is None or not process.is_dead:
                    try:
                        context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        # As asyncio does: a failing callback is reported, and the loop continues.
                        self.call_exception_handler({"message": f"{handle._callback} failed", "exception": error})  # type: ignore[attr-defined]
            self._current = 0

    def _fire(self) -> None:
        """Fire the next timer, and all others due at the same time."""
        when = self._timers[0][0]
        self._now = max(self._now, when)
        while self._timers and self._timers[0][0] <= self._now:
            _, _, handle, number = heapq.heappop(self._timers)
            if not handle.cancelled():
                self._put(handle, number)

    def _chooser(self) -> Callable[[], int]:
        """Return the function that chooses the next task, for this schedule."""
        waiting, rng = self._waiting, self._rng

        def any_task() -> int:
            return rng.choice(list(waiting)) if len(waiting) > 1 else next(iter(waiting))

        def first_task() -> int:
            if len(waiting) == 1:
                return next(iter(waiting))
            chosen = min(waiting, key=self._priority_of)
            if rng.random() < PUT_LAST:
                self._priority[chosen] = 1.0 + self._calls
            return chosen

        return {"fifo": self._order.popleft, "random": any_task, "priority": first_task}[self._schedule]

    def _priority_of(self, number: int) -> float:
        priority = self._priority.get(number)
        if priority is None:
            priority = self._priority[number] = self._rng.random()
        return priority

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._complaints.append(f"{context['message']}: {context.get('exception')!r}")

    def complaints(self) -> list[str]:
        """Return the complaints of asyncio, and the errors of tasks that were never retrieved."""
        alive = [process for _, process in self.tasks if process is None or not process.is_dead]
        return self._complaints + [
            complaint for process in dict.fromkeys(alive) for complaint in self.complaints_of(process)
        ]

    def complaints_of(self, process: SimProcess | None) -> list[str]:
        # asyncio reports such a task when it is collected; here none is, since the loop references all tasks.
        lost = [task for task, owner in self.tasks if owner is process and task._log_traceback]
        return [f"the error of {task.get_name()} was never retrieved: {task.exception()!r}" for task in lost]

    # Methods that the base class leaves to a loop with a selector.

    def _process_events(self, event_list: object) -> None: ...

    def _write_to_self(self) -> None: ...

    def dispose(self) -> None:
        """Drop all tasks; none that is collected later may run or complain."""
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
