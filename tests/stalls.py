"""The event loop of a server under test never stands still: its watchdog would have logged it."""

from __future__ import annotations

import re

#: Tests run side by side, with more processes than processors. The watchdog subtracts the time for which the thread of
#: the loop waited for a processor, but not the time for which a thread that held the interpreter's lock waited for one.
#: So only stalls that are longer than this count here. Milliseconds.
STALL_MS_MAX = 250

_STALL = re.compile(r"event loop stalled for (\d+) ms in:\n(?: +.*\n)*")


def assert_no_stall(log: str) -> None:
    """`log`: of a server. Its watchdog writes a line, and the stack, for each stall over 100 ms."""
    stalls = [stall[0] for stall in _STALL.finditer(log) if int(stall[1]) > STALL_MS_MAX]
    assert not stalls, stalls[0]
