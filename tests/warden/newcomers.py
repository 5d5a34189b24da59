"""The same look at the machine as `support.marked`, for loops of thousands: only at processes younger than the test.

Reading the environment of every process costs ten milliseconds, and most of them have been there all the time. And one
that does nothing but fork and exit is missed by every look at /proc, for it is another one each time; but it stays in
its process group, and whether anybody is in a group the kernel knows exactly.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

#: How long something that was killed may be seen before it counts as a survivor: only a loaded machine needs a part.
GONE_S_MAX = 10.0
#: And so often: a machine that stood still for as long (a paused virtual one) has killed nobody meanwhile. Items.
LOOKS_MIN = 100


def _pids() -> set[str]:
    return set(filter(str.isdigit, os.listdir("/proc")))


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class Newcomers:
    """Everybody with this mark who was born after this was made. (Zombies have no environment and no command line.)"""

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._older = _pids()
        self._groups: set[int] = set()

    def watch(self, group: int) -> None:
        """Whoever is in this process group counts, too."""
        self._groups.add(group)

    def alive(self) -> list[int]:
        """Their pids; or, negative as in `kill`, the groups in which somebody is whom no look has found."""
        found = [int(pid) for pid in _pids() - self._older if self._has_mark(pid)]
        for pid in found:
            with suppress(ProcessLookupError):
                self._groups.add(os.getpgid(pid))
        self._groups = {group for group in self._groups - {os.getpgrp()} if _exists(group)}
        return found or [-group for group in self._groups]

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
        began, seen, looked = time.monotonic(), 0, 0
        while seen < looks:
            seen = 0 if await asyncio.to_thread(self.alive) else seen + 1
            looked += 1
            took_s = time.monotonic() - began
            if took_s >= GONE_S_MAX and looked >= LOOKS_MIN:
                assert self._all_are_killed(), f"alive {took_s:.0f} s after they were killed: {self._told()}"
        return took_s

    def _all_are_killed(self) -> bool:
        """SIGKILL is pending for each: the kernel has killed them, and none does anything any more. One that was never
        given a processor since was seen, on a machine whose own were taken away from it; it is waited for."""
        return all(_is_killed(pid) for pid in self.alive())

    def _told(self) -> list[str]:
        """Who they are and what they wait for, for whoever has to find out why."""
        return [f"{pid}: {_about(pid)}" for pid in self.alive()]


def _is_killed(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return pid > 0  # it is gone by now; of a group nobody knows
    pending = re.findall(r"^(?:SigPnd|ShdPnd):\t(\w+)$", status, re.MULTILINE)
    return any(int(mask, 16) & 1 << (signal.SIGKILL - 1) for mask in pending)


def _about(pid: int) -> str:
    told = []
    for file in ("status", "wchan", "cmdline"):
        with suppress(OSError):
            told.append(Path(f"/proc/{abs(pid)}/{file}").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return " | ".join(told)
