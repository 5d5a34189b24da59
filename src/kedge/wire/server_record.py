"""The server's record of its own process, by which clients distinguish it from another listener on its socket.

The server writes it beside its default socket, to a directory that tools can neither see nor write to. It also
identifies a server whose data directory was removed, and the lock with it. The record names the data directory: it may
be in a copy of another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from kedge.process_identity import identity_of, living_pid, read_identity, read_identity_file, write_identity

#: The last word in the record of a server that has begun to stop.
_STOPPING = "stopping"


def write_record(path: Path, data_dir: Path) -> None:
    """Record the calling process as the server of this data directory."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_identity(handle, _short_hash(data_dir))
    finally:
        os.close(handle)


def recorded_pid(path: Path, data_dir: Path) -> int | None:
    """Return the pid of the server, if the process that wrote the record still runs."""
    words = read_identity_file(path)
    return living_pid(words) if words[2:3] == [_short_hash(data_dir)] else None


def record_stop(path: Path, data_dir: Path) -> None:
    """Add to the record of the calling process, if it is still there, that the server stops."""
    with contextlib.suppress(OSError):  # the directory was removed, or the server has another address
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if read_identity(handle)[:2] == identity_of(os.getpid()):
                write_identity(handle, _short_hash(data_dir), _STOPPING)
        finally:
            os.close(handle)


def is_stopping(path: Path) -> bool:
    """Return whether the recorded process has begun to stop."""
    return read_identity_file(path)[3:] == [_STOPPING]


def _short_hash(data_dir: Path) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(data_dir))).hexdigest()[:12]
