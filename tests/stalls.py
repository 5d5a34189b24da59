"""Assert that the event loop of a server never stalled: its watchdog logs stalls."""

from __future__ import annotations

import re

#: Tests run in parallel, with more processes than processors. The watchdog subtracts the time for which the loop's
#: thread waited for a processor, but not the time for which a thread that held the GIL waited. So only longer
#: stalls count. Milliseconds.
STALL_MS_MAX = 250

_STALL = re.compile(r"event loop stalled for (\d+) ms in:\n(?: +.*\n)*")


def assert_no_stall(log: str) -> None:
    """Check the log of a server. Its watchdog writes a line and the stack for each stall over 100 ms."""
    stalls = [stall[0] for stall in _STALL.finditer(log) if int(stall[1]) > STALL_MS_MAX]
    assert not stalls, stalls[0]
