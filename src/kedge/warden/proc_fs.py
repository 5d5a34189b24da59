"""Find, signal and kill processes by means of /proc. Loaded by the keeper: standard library only."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

#: Walks over a tree until no new process is found. Of a tree that forks faster, the known part is killed first.
WALKS_MAX = 20


def kill_all(find: Callable[[], Iterator[int]]) -> None:
    """Stop the processes that `find` yields until it yields no new one, then kill them.

    Each process is stopped as soon as it is found: one that only forks and exits must be caught while it runs. Stopped
    processes cannot fork, and none is reaped meanwhile, so no pid is reused before it is killed.
    """
    stopped: set[int] = set()
    for _ in range(WALKS_MAX):
        before = len(stopped)
        for pid in find():
            if pid not in stopped:
                send_signal(pid, signal.SIGSTOP)
                stopped.add(pid)
        if len(stopped) == before:
            break
    for pid in stopped:
        send_signal(pid, signal.SIGKILL)


def send_signal(pid: int, number: int) -> None:
    # Ended meanwhile, or of another user (a setuid program): the latter is reported as left over.
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def descendants(root: int) -> Iterator[int]:
    """Yield all descendants lazily, parents before their children."""
    below = children(root)
    while below:
        pid = below.pop()  # the latest first: the earlier ones may be zombies
        yield pid
        below.extend(children(pid))


def children(pid: int) -> list[int]:
    """Return the children, from the kernel's list per thread: much faster than a walk over all of /proc."""
    pids: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as listing:
                pids.extend(map(int, listing.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        if os.path.exists(f"/proc/{pid}/stat") and not os.path.exists("/proc/thread-self/children"):
            return [other for other in all_pids() if int(_stat(other)[1]) == pid]
    return pids


def all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def is_zombie(pid: int) -> bool:
    return _stat(pid)[0] in ("Z", "X")


def _stat(pid: int) -> list[str]:
    """Return the fields after the name, which may contain anything: state, parent, ... Missing processes are dead."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["X", "0"]
