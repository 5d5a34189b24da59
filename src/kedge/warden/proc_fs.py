"""Finding, signalling and killing processes by way of /proc. Loaded by the keeper: standard library only."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

#: Walks until nothing new is found. A tree that forks faster is killed as far as it was seen, and walked again.
WALKS_MAX = 20


def kill_all(find: Callable[[], Iterator[int]]) -> None:
    """Stops all that `find` finds until it finds nothing new, then kills it.

    Each is stopped as soon as it is found: one that only forks and exits has to be met while it lives. What is stopped
    cannot fork, and nobody is reaped meanwhile, so no child's pid is given to somebody else before it is killed.
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
    # Gone meanwhile, or of another user (a setuid program): the latter is reported as left over in the end.
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def descendants(root: int) -> Iterator[int]:
    """Parents before their children, found while they are asked for."""
    below = children(root)
    while below:
        pid = below.pop()  # the latest first: the earlier ones may be zombies
        yield pid
        below.extend(children(pid))


def children(pid: int) -> list[int]:
    """The kernel lists the children of each thread. Reading that is much faster than a walk over all of /proc."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as listed:
                found.extend(map(int, listed.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        if os.path.exists(f"/proc/{pid}/stat") and not os.path.exists("/proc/thread-self/children"):
            return [other for other in all_pids() if int(_stat(other)[1]) == pid]
    return found


def all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def is_zombie(pid: int) -> bool:
    return _stat(pid)[0] in ("Z", "X")


def _stat(pid: int) -> list[str]:
    """The fields after the name, which may contain anything: state, parent, ... What is gone reads as dead."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["X", "0"]
