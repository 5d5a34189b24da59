"""The watchdog of the event loop: it logs stalls of the loop, with the stack.

One loop serves all clients: while it stalls, nothing is streamed, cancelled or answered. A timer of the loop measures
how late it fires, and a thread takes the stack of a late loop. A stall is one callback that takes long: a loop that is
late outside of a callback had no processor, or hundreds of short callbacks. Timer and thread pause while no Run is
active and no request arrives, so that an idle server is not woken.
"""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

log = logging.getLogger("kedge.server")

#: The shortest stall that is logged: users notice a pause of this length. Seconds.
STALL_S = 0.1
#: The interval of the timer: a stall may be longer than the timer was late by this. Seconds.
BEAT_S = 0.05
#: A stall is logged before its end if it lasts this long: it may never end. Seconds.
LONG_STALL_S = 5.0
#: The time for which a request keeps the watchdog active. Seconds.
WATCH_S = 10.0
#: Innermost frames of the stack that are logged; the others are asyncio's own. Items.
FRAMES_MAX = 8
#: The source files of the loop's innermost frame between callbacks.
_LOOP_FILES = frozenset({asyncio.runners.__file__, asyncio.base_events.__file__, selectors.__file__})


@dataclass(slots=True)
class Stalls:
    """The stalls since the server started."""

    count: int = 0
    longest_s: float = 0.0


class Watchdog:
    """Call all methods in the thread of the loop."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self.stalls = Stalls()
        self._is_busy = is_busy
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Set while the timer is armed.
        self._awake = threading.Event()
        self._is_closed = False
        self._requested_at = 0.0
        #: When the timer is due, and the time that the loop's thread had waited for a processor when it was armed.
        self._due_at = 0.0
        self._delayed_s = 0.0
        #: The time for which the whole process was paused (SIGSTOP, a suspended machine), as the thread has measured
        #: it, and its value when the timer was armed.
        self._paused_s = 0.0
        self._paused_before_s = 0.0
        #: The due time of a late timer and the stack of the loop then; an empty stack: outside of a callback.
        self._late: tuple[float, str] = (0.0, "")
        self._schedstat = -1

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        with suppress(OSError):
            self._schedstat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self.notice()
        threading.Thread(target=self._watch, name="kedge-watchdog", daemon=True).start()

    def notice(self) -> None:
        """Activate the watchdog for WATCH_S, since a request has arrived."""
        self._requested_at = time.monotonic()
        if self._loop is not None and not self._awake.is_set():
            self._set_timer(self._loop)
            self._awake.set()

    def close(self) -> None:
        self._is_closed = True
        self._awake.set()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_at = time.monotonic() + BEAT_S
        self._delayed_s = self._delay_s()
        self._paused_before_s = self._paused_s
        loop.call_later(BEAT_S, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        if now - self._due_at >= STALL_S:
            # The time without a processor is not a stall of the loop.
            without_processor_s = max(self._delay_s() - self._delayed_s, self._paused_s - self._paused_before_s)
            stalled_s = now - self._due_at - without_processor_s
            late_for, stack = self._late
            if stalled_s >= STALL_S and late_for == self._due_at and stack:
                self._report(stalled_s, stack)
        if self._is_closed:
            return
        if self._is_busy() or now - self._requested_at < WATCH_S:
            self._set_timer(loop)
        else:
            self._awake.clear()

    def _report(self, stalled_s: float, stack: str) -> None:
        self.stalls.count += 1
        self.stalls.longest_s = max(self.stalls.longest_s, stalled_s)
        log.warning("the event loop stalled for %d ms in:\n%s", 1000 * stalled_s, stack)

    def _delay_s(self) -> float:
        """Return the time that the loop's thread waited for a processor; 0 if the kernel does not count it."""
        try:
            return int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    # --- the thread ---

    def _watch(self) -> None:
        was_long = False
        while self._awake.wait() and not self._is_closed:
            slept_at, used_s = time.monotonic(), time.process_time()
            time.sleep(BEAT_S)
            # A thread that wakes up late while the process used no processor time was paused with the process. A call
            # that holds the GIL delays this thread, too, but uses the processor.
            overslept_s = time.monotonic() - slept_at - BEAT_S - (time.process_time() - used_s)
            if overslept_s > BEAT_S:
                self._paused_s += overslept_s
            due_at = self._due_at
            late_s = time.monotonic() - due_at if self._awake.is_set() else 0.0
            if late_s > BEAT_S and self._late[0] != due_at:
                self._late = (due_at, self._current_stack())
            if late_s > LONG_STALL_S and not was_long:
                log.warning("the event loop has been stalled for %g s in:\n%s", LONG_STALL_S, self._late[1])
            was_long = late_s > LONG_STALL_S

    def _current_stack(self) -> str:
        frame = sys._current_frames().get(self._thread_id)
        if frame is None or frame.f_code.co_filename in _LOOP_FILES:
            return ""
        stack = traceback.extract_stack(frame)
        # The frames of the import system do not name the imported module; those around them do.
        shown = [one for one in stack if not one.filename.startswith("<frozen importlib")]
        return "".join(traceback.format_list(shown[-FRAMES_MAX:])).rstrip()
