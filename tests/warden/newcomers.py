"""A scan of /proc like `support.marked`, for thousands of repetitions: it reads only processes newer than the test.

Reading the environment of every process takes ten milliseconds, and most processes are older than the test. A scan
misses a process that only forks and exits, because its pid keeps changing. But it stays in its process group, and the
kernel reports exactly whether a group has members.

The scan runs in the event loop's thread. Two threads that alternated without a pause have kept all other processes off
the CPUs for a minute, including those that had to end the tree (Linux 6.18).
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

from tests.polling import PAUSE_S

#: A killed process that exists for longer counts as a survivor. Only a loaded machine needs a part of this. Seconds.
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
    """The processes with this mark that started after this object was created. (Zombies have no mark.)"""

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._older = _pids()
        self._groups: set[int] = set()

    def watch(self, group: int) -> None:
        """Also count the members of this process group."""
        self._groups.add(group)

    def alive(self) -> list[int]:
        """Return their pids. If the scan finds none, return groups with members, as negative numbers like `kill`."""
        pids = [int(pid) for pid in _pids() - self._older if self._has_mark(pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                self._groups.add(os.getpgid(pid))
        self._groups = {group for group in self._groups - {os.getpgrp()} if _exists(group)}
        return pids or [-group for group in self._groups]

    def _has_mark(self, pid: str) -> bool:
        for file in ("environ", "cmdline"):
            try:
                if self._mark in Path(f"/proc/{pid}/{file}").read_bytes():
                    return True
            except OSError:
                continue
        return False

    async def until_gone(self, scans: int = 1) -> float:
        """Wait until this number of scans in a row find none. Return the seconds that it took."""
        began, empty = time.monotonic(), 0
        while empty < scans:
            empty = 0 if self.alive() else empty + 1
            took_s = time.monotonic() - began
            assert took_s < GONE_S_MAX, f"alive {took_s:.0f} s after they were killed: {self._descriptions()}"
            await asyncio.sleep(PAUSE_S)
        return took_s

    def _descriptions(self) -> list[str]:
        """Return a description of the processes and what they wait for, for debugging."""
        return [f"{pid}: {_description(pid)}" for pid in self.alive()]


def _description(pid: int) -> str:
    texts = []
    for file in ("status", "wchan", "cmdline"):
        with suppress(OSError):
            texts.append(Path(f"/proc/{abs(pid)}/{file}").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return " | ".join(texts)
