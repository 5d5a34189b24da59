"""The same look at the machine as `support.marked`, for loops of thousands: only at processes younger than the test.

Reading the environment of every process costs ten milliseconds, and most of them have been there all the time.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

#: How long something that was killed may be seen before it counts as a survivor: only a loaded machine needs a part.
GONE_S_MAX = 10.0


def _pids() -> set[str]:
    return set(filter(str.isdigit, os.listdir("/proc")))


class Newcomers:
    """Everybody with this mark who was born after this was made. (Zombies have no environment and no command line.)"""

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._older = _pids()

    def alive(self) -> list[int]:
        return [int(pid) for pid in _pids() - self._older if self._has_mark(pid)]

    def _has_mark(self, pid: str) -> bool:
        for file in ("environ", "cmdline"):
            try:
                if self._mark in Path(f"/proc/{pid}/{file}").read_bytes():
                    return True
            except OSError:
                continue
        return False

    async def until_gone(self, looks: int = 1) -> float:
        """Wait until none of them is seen, so many times in a row; how long that took. Seconds."""
        began, seen = time.monotonic(), 0
        while seen < looks:
            seen = 0 if await asyncio.to_thread(self.alive) else seen + 1
            took_s = time.monotonic() - began
            assert took_s < GONE_S_MAX, f"alive {took_s:.0f} s after they were killed: {self.alive()}"
        return took_s
