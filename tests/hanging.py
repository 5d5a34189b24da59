"""Print where a hanging test hangs, and end its process.

pytest-timeout would print to standard output, which is lost in an xdist worker, and would show only that the event loop
waits.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_timeout import is_debugging  # type: ignore[import-untyped]


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool:
    """Replace the timer of pytest-timeout, which still sets the limit and cancels the timer."""
    timer = threading.Timer(settings.timeout, _give_up, (item, settings.timeout))
    timer.daemon = True

    def cancel() -> None:
        timer.cancel()
        timer.join()

    item.cancel_timeout = cancel
    timer.start()
    return True


def _give_up(item: pytest.Item, timeout_s: float) -> None:
    if is_debugging():
        return  # in a debugger
    try:
        if (capture := item.config.pluginmanager.getplugin("capturemanager")) is not None:
            capture.suspend_global_capture(item)
        lines = [f"\n+++ {item.nodeid} timed out after {timeout_s:g} s +++", *_threads(), *_tasks()]
        os.write(2, ("\n".join(lines) + "\n").encode(errors="replace"))
    finally:
        os._exit(1)


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            yield f"--- thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"


def _tasks() -> Iterator[str]:
    """Show what each task waits for: the stack of its coroutines."""
    loops = [loop for loop in gc.get_objects() if isinstance(loop, asyncio.AbstractEventLoop)]
    for task in [task for loop in loops if loop.is_running() for task in asyncio.all_tasks(loop)]:
        yield f"--- task {task.get_name()}"
        yield from _awaited(task.get_coro())


def _awaited(work: Any) -> Iterator[str]:
    while work is not None:
        frame = getattr(work, "cr_frame", None) or getattr(work, "ag_frame", None) or getattr(work, "gi_frame", None)
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
        yield f"    {getattr(work, '__qualname__', repr(work))} {where}"
        work = getattr(work, "cr_await", None) or getattr(work, "ag_await", None) or getattr(work, "gi_yieldfrom", None)
