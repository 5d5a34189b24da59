"""What a lost keeper leaves: this process adopts it, and ends it.

Without a namespace, a tool can kill its overseer and the keeper above it, being of the same user. The orphans then come
to the nearest subreaper, and that is the server: it sees them as its children, refuses to talk to them, and kills them.
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

#: Between two rounds of killing, and for how many rounds: 5 s in all. What is left then is in the kernel, or of another
#: user.
SWEEP_PAUSE_S = 0.01
SWEEPS_MAX = 500

#: Children from before this process began to adopt: of the shell that became this process, for example.
_inherited: frozenset[int] | None = None


def adopt() -> None:
    """From here on, orphans below this process become its children."""
    global _inherited
    with suppress(OSError):  # a kernel that does not know it (gVisor)
        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
        _inherited = frozenset(children_of(os.getpid()))


def is_adopting() -> bool:
    return _inherited is not None


async def sweep() -> tuple[int, ...]:
    """Kill all orphans, and all below them. Returns the pids that are left: ()."""
    left: list[int] | None = None
    for _ in range(SWEEPS_MAX):
        # A thread: many processes take long to walk over.
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
    # No child means no descendant: orphans come here.
    return _orphans()


def _strays() -> Iterator[int]:
    for pid in _orphans() or ():
        yield pid
        yield from descendants(pid)


def _orphans() -> list[int] | None:
    """Our children that we have not started. None while one is being started: it could be taken for an orphan."""
    own = children.own()  # before the list is read, too: one that ends meanwhile is in there
    listed = children_of(os.getpid())
    if children.is_starting():
        return None
    spared = own | children.own() | (_inherited or frozenset())
    return [pid for pid in listed if pid not in spared]
