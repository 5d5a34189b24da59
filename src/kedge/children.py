"""The child processes that this process started itself.

A server adopts the orphans of a lost keeper and kills them (`kedge.warden.orphans`); processes started here are spared.
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
    """Call `asyncio.create_subprocess_exec` and record the child before an orphan sweep can see it."""
    with _start():
        process = await asyncio.create_subprocess_exec(*argv, **options)
        _add(process)
    return process


def start_blocking(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Call `subprocess.Popen` and record the child."""
    with _start():
        process: subprocess.Popen[bytes] = subprocess.Popen(argv, **options)
        _add(process)
    return process


def own() -> frozenset[int]:
    """Return the pids of children that have not exited. The pid of an exited child may be reused."""
    with _lock:
        return frozenset(process.pid for process in _started if process.returncode is None)


def is_starting() -> bool:
    """Return whether there may be a child that `own` does not include yet."""
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
