"""Helpers for tasks that outlive their caller, and the delays of retries."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator
from typing import Any

#: The longest single wait of a limit that excludes pauses of this process. Seconds.
STEP_S = 0.5


async def wait_uncancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Wait until all tasks are done and ignore cancellation of the waiter.

    For clean-ups: the caller is about to raise anyway. Exceptions of the tasks are marked as retrieved."""
    waiting = set(tasks)
    while waiting:
        try:
            await asyncio.wait(waiting)
        except asyncio.CancelledError:
            continue
        for task in waiting:
            retrieve_exception(task)
        break


async def is_done_within(limit_s: float, task: asyncio.Future[Any]) -> bool:
    """Wait for the task, and return whether it is done in time. Its result or exception is not used.

    The time is counted in steps, so that a pause of this process (SIGSTOP, a suspended machine) counts as one step."""
    for _ in range(math.ceil(limit_s / STEP_S)):
        await asyncio.wait({task}, timeout=min(STEP_S, limit_s))
        if task.done():
            return True
    return False


def retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Mark the exception of a done task as retrieved, so that asyncio does not log it. A done callback."""
    if not task.cancelled():
        task.exception()


def backoff_s(first_s: float, longest_s: float) -> Iterator[float]:
    """Yield the delays between retries, in seconds: each twice the one before, up to the longest. Never ends."""
    delay_s = first_s
    while True:
        yield delay_s
        delay_s = min(delay_s * 2, longest_s)
