"""Files that name a process: the lock of the data directory, and the server's record of itself.

A pid alone is not enough: a killed process leaves its pid in the file, the pid is reused later, and in another
container it names another process. So the start time of the process is stored with it. Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

#: The text has a fixed size and is overwritten in place: that works on a full disk, and no reader sees half of it. A
#: pid, a start time, a short hash and a word have at most 52 characters. Bytes.
IDENTITY_BYTES = 64
#: The state and the start time among the fields of /proc/PID/stat that follow the name: fields 3 and 22.
_STATE_FIELD, _START_FIELD = 0, 19


def identity_of(pid: int) -> list[str]:
    """Return the identity of a process: its pid and its start time."""
    return [str(pid), _stat(pid, _START_FIELD) or "-"]


def write_identity(handle: int, *more: str) -> None:
    """Write the identity of the calling process to an open file, followed by `more` words."""
    text = " ".join((*identity_of(os.getpid()), *more))
    os.pwrite(handle, text.encode().ljust(IDENTITY_BYTES - 1) + b"\n", 0)


def clear_identity(handle: int) -> None:
    """Remove the identity. The file keeps its size, so that the next one fits on a full disk."""
    os.pwrite(handle, b" " * (IDENTITY_BYTES - 1) + b"\n", 0)


def read_identity(handle: int) -> list[str]:
    """Return the words of the file: pid, start time, and more."""
    return os.pread(handle, IDENTITY_BYTES, 0).decode("ascii", "replace").split()


def read_identity_file(path: Path) -> list[str]:
    """Return the words of the file; none if there is no such regular file."""
    try:
        # O_NONBLOCK: a FIFO instead of the file must not block.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        return read_identity(handle)
    except OSError:  # a directory or a FIFO
        return []
    finally:
        os.close(handle)


def living_pid(words: list[str]) -> int | None:
    """Return the pid of the process with this identity, or None if it has ended."""
    if len(words) < 2 or not words[0].isdigit():
        return None
    pid = int(words[0])
    start = _stat(pid, _START_FIELD)
    if start is None:
        # The process has ended, or the system has no /proc, or the mount option `hidepid` hides the process.
        return pid if _exists(pid) else None
    return pid if start == words[1] and _stat(pid, _STATE_FIELD) not in ("Z", "X", None) else None


def _stat(pid: int, field: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[field].decode("ascii")
    except (OSError, IndexError):
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
