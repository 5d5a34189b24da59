"""The child processes that this process has started itself.

A server adopts orphans (`kedge.warden.orphans`), and ends those of a lost keeper: what is started here is spared.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_started: list[asyncio.subprocess.Process | subprocess.Popen[bytes]] = []
_starting = 0


async def start(*argv: str, **options: Any) -> asyncio.subprocess.Process:
    """`asyncio.create_subprocess_exec`, for a child that is known to be ours from its first moment."""
    with _start():
        process = await asyncio.create_subprocess_exec(*argv, **options)
        _add(process)
    return process


def start_blocking(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """`subprocess.Popen`, likewise."""
    with _start():
        process: subprocess.Popen[bytes] = subprocess.Popen(argv, **options)
        _add(process)
    return process


def own() -> frozenset[int]:
    """The pids of those that have not ended. The pid of one that has may be given to another process."""
    with _lock:
        return frozenset(process.pid for process in _started if process.returncode is None)


def is_starting() -> bool:
    """Whether there may be a child that `own` does not name yet."""
    return _starting > 0


@contextmanager
def _start() -> Iterator[None]:
    global _starting
    with _lock:
        _starting += 1
    try:
        yield
    finally:
        with _lock:
            _starting -= 1


def _add(process: asyncio.subprocess.Process | subprocess.Popen[bytes]) -> None:
    with _lock:
        _started[:] = [*(other for other in _started if other.returncode is None), process]
