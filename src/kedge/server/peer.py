"""The process at the other end of a Unix socket: the user's own, or a tool that an agent has started."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Any


def is_allowed(connection: Any) -> bool:
    """Return True for a process of this user, or of root, that no tool has started.

    A tool must not answer the approvals of its own agent."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the mode of the socket file excludes other users
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    return user in (os.getuid(), 0) and not is_descendant(pid)


def is_descendant(pid: int) -> bool:
    """Return True if this process started that one, or may have: a process that has exited may have been a tool."""
    while pid != os.getpid():
        if pid <= 1:
            return False
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()  # bytes: the kernel cuts the name after 15, within a letter
        except OSError:
            return not is_of_another_user(pid)
        pid = int(stat.rpartition(b")")[2].split()[1])
    return True


def is_of_another_user(pid: int) -> bool:
    """Return True for a process that /proc hides because it belongs to another user. Tools run as this user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        pass
    return False
