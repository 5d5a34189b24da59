"""The same look at the machine as `support.marked`, for loops of thousands: only at processes younger than the test.

Reading the environment of every process costs ten milliseconds, and most of them have been there all the time. And one
that does nothing but fork and exit is missed by every look at /proc, for it is another one each time; but it stays in
its process group, and whether anybody is in a group the kernel knows exactly.

Looked for in the loop's own thread: two threads that hand each look to one another without rest were seen to keep all
other processes, those that have to end the tree among them, from the processors for a minute (Linux 6.18).
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

#: How long something that was killed may be seen before it counts as a survivor: only a loaded machine needs a part.
GONE_S_MAX = 10.0


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
        """Also count the members of this process group."""
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
        began, seen = time.monotonic(), 0
        while seen < looks:
            seen = 0 if self.alive() else seen + 1
            took_s = time.monotonic() - began
            assert took_s < GONE_S_MAX, f"alive {took_s:.0f} s after they were killed: {self._told()}"
            await asyncio.sleep(0)
        return took_s

    def _told(self) -> list[str]:
        """Return a description of the processes and what they wait for, for debugging."""
        return [f"{pid}: {_about(pid)}" for pid in self.alive()]


def _about(pid: int) -> str:
    told = []
    for file in ("status", "wchan", "cmdline"):
        with suppress(OSError):
            told.append(Path(f"/proc/{abs(pid)}/{file}").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return " | ".join(told)
