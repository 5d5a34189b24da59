"""The server's record of its own process, by which clients distinguish it from another listener on its socket.

The server writes the record to the data directory, which sandboxed tools cannot write to. A pid alone is not enough: a
killed server leaves its record, and its pid is reused later. So the record also has the start time of the process.
"""

from __future__ import annotations

import os
from pathlib import Path

#: The record has a fixed size and is overwritten in place: that works on a full disk, and no reader sees half of it. A
#: pid and a start time have at most 30 digits. Bytes.
RECORD_BYTES = 64
#: The start time among the fields of /proc/PID/stat that follow the name: field 22, and the name is field 2.
_START_FIELD = 19


def write_record(path: Path) -> None:
    """Record the calling process as the server."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = f"{os.getpid()} {_start_time(os.getpid()) or ''}"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(handle, record.encode().ljust(RECORD_BYTES - 1) + b"\n", 0)
    finally:
        os.close(handle)


def is_recorded(path: Path, pid: int) -> bool:
    """Return True if this process wrote the record."""
    try:
        # O_NONBLOCK: a FIFO instead of the file must not block.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        words = os.read(handle, RECORD_BYTES).decode("ascii", "replace").split()
    except OSError:  # a directory
        return False
    finally:
        os.close(handle)
    if not words or words[0] != str(pid):
        return False
    started = _start_time(pid)
    if started is None:
        # The process has exited, or the mount option `hidepid` hides it.
        return _exists(pid)
    return words[1:] == [started]


def _start_time(pid: int) -> str | None:
    """Return the start time in ticks since boot, or None if /proc does not show it."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[_START_FIELD].decode("ascii")
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
