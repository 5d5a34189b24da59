"""The child processes that this process has started itself.

A server adopts orphans (`kedge.warden.orphans`), and ends those of a lost keeper: what is started here is spared.
"""

from __future__ import annotations

import asyncio
from typing import Any

_started: list[asyncio.subprocess.Process] = []
_starting = 0


async def start(*argv: str, **options: Any) -> asyncio.subprocess.Process:
    """`asyncio.create_subprocess_exec`, for a child that is known to be ours from its first moment."""
    global _starting
    _starting += 1
    try:
        process = await asyncio.create_subprocess_exec(*argv, **options)
        _started[:] = [*(other for other in _started if other.returncode is None), process]
        return process
    finally:
        _starting -= 1


def own() -> frozenset[int]:
    """The pids of those that have not ended. The pid of one that has may be given to another process.

    May be called in any thread; processes are started in that of the event loop."""
    return frozenset(process.pid for process in _started if process.returncode is None)


def is_starting() -> bool:
    """Whether there may be a child that `own` does not name yet."""
    return _starting > 0
