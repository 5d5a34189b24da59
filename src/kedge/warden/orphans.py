"""Orphans of a lost keeper: the server adopts and kills them.

Without a namespace, a tool can kill its overseer and the keeper, since they have the same user. The orphans are then
adopted by the nearest subreaper, which is the server. It refuses their requests and kills them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress

from kedge import children
from kedge.warden import libc
from kedge.warden.proc_fs import children as children_of
from kedge.warden.proc_fs import descendants, kill_all

#: Interval and number of sweeps: 5 s in all. Processes that remain are stuck in the kernel, or of another user.
SWEEP_PAUSE_S = 0.01
SWEEPS_MAX = 500

#: Children from before `adopt`, for example of the shell that exec'ed this process.
_inherited: frozenset[int] | None = None


def adopt() -> None:
    """Make this process adopt the orphans below it."""
    global _inherited
    with suppress(OSError):  # not supported by this kernel (gVisor)
        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
        _inherited = frozenset(children_of(os.getpid()))


def is_adopting() -> bool:
    return _inherited is not None


async def sweep() -> tuple[int, ...]:
    """Kill all orphans and their descendants. Returns the pids that remain, normally none."""
    left: list[int] | None = None
    for _ in range(SWEEPS_MAX):
        # In a thread: a walk over many processes takes long.
        left = await asyncio.to_thread(_sweep_once)
        if left == []:
            break
        await asyncio.sleep(SWEEP_PAUSE_S)
    return tuple(left or ())


def _sweep_once() -> list[int] | None:
    kill_all(_strays)
    for pid in _orphans() or ():
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    # Without children there are no descendants: orphans become our children.
    return _orphans()


def _strays() -> Iterator[int]:
    for pid in _orphans() or ():
        yield pid
        yield from descendants(pid)


def _orphans() -> list[int] | None:
    """Return our children that we did not start. None while one is started: it could be mistaken for an orphan."""
    own = children.own()  # also before the list is read: it may contain one that exits meanwhile
    listed = children_of(os.getpid())
    if children.is_starting():
        return None
    spared = own | children.own() | (_inherited or frozenset())
    return [pid for pid in listed if pid not in spared]
