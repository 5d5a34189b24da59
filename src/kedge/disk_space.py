"""The free space of a disk, for error messages. Standard library only."""

from __future__ import annotations

import errno
import os
from pathlib import Path

#: With less free space, SQLite cannot extend its files: the shared-memory file alone grows by 32 kB. Bytes.
FULL_BYTES = 128 * 1024

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def free_bytes(path: Path) -> int | None:
    """Return the space that this user can write on the disk of `path`, which need not exist; None if unknown."""
    for existing in (path, *path.parents):
        try:
            status = os.statvfs(existing)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        return status.f_bavail * status.f_frsize
    return None


def full_disk(path: Path, error: OSError | None = None) -> str | None:
    """Return what to tell the user if the disk of `path` is full, else None. With `error`, its code decides."""
    free = free_bytes(path) or 0
    if error is not None and error.errno not in _NO_SPACE:
        return None
    if free < FULL_BYTES:
        return f"the disk of {path} is full ({free // 1024} kB free); free some space"
    return f"the disk quota of {path} is used up; free some space" if error is not None else None
