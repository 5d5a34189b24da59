"""Sandbox paths: opening without following links, and devices. Loaded by the keeper: standard library only."""

from __future__ import annotations

import os
import stat

#: Devices that programs expect to be writable. No terminals, since the user's own is one. Not /dev/tty: a command that
#: opens a terminal without a session makes it its controlling terminal and could write to it.
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def open_path(path: str) -> int:
    """Return an O_PATH descriptor of an absolute path. Raises OSError if a component is a link: a command may have put
    it there."""
    current = os.open("/", os.O_PATH | os.O_CLOEXEC)
    for part in filter(None, path.split("/")):
        try:
            child = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
        finally:
            os.close(current)
        current = child
    if stat.S_ISLNK(os.fstat(current).st_mode):
        os.close(current)
        raise OSError(f"{path} is a link")
    return current


def is_below(path: str, directory: str) -> bool:
    """Return whether `path` is the directory or inside it. Both are absolute and normalised."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")
