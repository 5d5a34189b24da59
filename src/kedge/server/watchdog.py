"""The watchdog of the event loop: it reports when the loop stood still, and where.

One loop serves all clients: while it stands still, nothing is streamed, cancelled or answered. A thread pings the loop
and times the reply. It does so only while Runs are active or requests arrive: an idle server is not woken.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger("kedge.server")

#: A stall that is reported: people notice a pause of this length. Seconds.
STALL_S = 0.1
#: Between two pings. Half of a stall, so that none is missed for long. Seconds.
PING_S = 0.05
#: A stall is reported before its end if it lasts this long: it may never end. Seconds.
LONG_STALL_S = 5.0
#: How long the loop is watched after a request. Seconds.
WATCH_S = 10.0
#: Innermost frames of the stack in a report: more are asyncio's own. Items.
FRAMES_MAX = 8


@dataclass(slots=True)
class Stalls:
    """What the watchdog has seen since the server started."""

    count: int = 0
    longest_s: float = 0.0


@dataclass(slots=True)
class _Ping:
    sent_at: float
    #: The loop's thread had waited this long for a processor when the ping was sent.
    delayed_s: float
    answered_at: float = 0.0
    answered: threading.Event = field(default_factory=threading.Event)

    def answer(self) -> None:
        self.answered_at = time.monotonic()
        self.answered.set()


class Watchdog:
    """`start` it in the loop's own thread. `is_busy` is called from another thread."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self.stalls = Stalls()
        self._is_busy = is_busy
        self._awake = threading.Event()
        self._is_closed = False
        #: When the last request arrived, in the loop's time.
        self._requested_at = 0.0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self.notice()
        threading.Thread(target=self._watch, name="kedge-watchdog", daemon=True).start()

    def notice(self) -> None:
        """A request has arrived: the loop is watched for a while."""
        self._requested_at = time.monotonic()
        self._awake.set()

    def close(self) -> None:
        self._is_closed = True
        self._awake.set()

    def _watch(self) -> None:
        while True:
            self._awake.wait()
            if self._is_closed:
                return
            if not self._is_busy() and time.monotonic() - self._requested_at > WATCH_S:
                self._awake.clear()
                if time.monotonic() - self._requested_at <= WATCH_S:  # a request came in between
                    self._awake.set()
                continue
            try:
                self._ping()
            except RuntimeError:  # the loop is closed
                return
            time.sleep(PING_S)

    def _ping(self) -> None:
        ping = _Ping(time.monotonic(), self._delayed_s())
        self._loop.call_soon_threadsafe(ping.answer)
        if ping.answered.wait(STALL_S):
            return
        stack = self._stack()
        if not ping.answered.wait(LONG_STALL_S):
            log.warning("the event loop has not answered for %g s; it is in:\n%s", LONG_STALL_S, stack)
            while not self._is_closed and not ping.answered.wait(LONG_STALL_S):
                pass
        # A machine that had no processor for the loop is not a fault of the loop.
        stalled_s = ping.answered_at - ping.sent_at - (self._delayed_s() - ping.delayed_s)
        if stalled_s >= STALL_S:
            self.stalls.count += 1
            self.stalls.longest_s = max(self.stalls.longest_s, stalled_s)
            log.warning("the event loop stalled for %d ms; it was in:\n%s", 1000 * stalled_s, stack)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread_id)
        stack = traceback.extract_stack(frame) if frame is not None else []
        # The frames of the import system do not say which module is imported; those around them do.
        shown = [one for one in stack if not one.filename.startswith("<frozen importlib")]
        return "".join(traceback.format_list(shown[-FRAMES_MAX:])).rstrip()

    def _delayed_s(self) -> float:
        """How long the loop's thread has been ready to run without a processor, where the kernel counts it."""
        try:
            return int(self._schedstat.read_bytes().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0
