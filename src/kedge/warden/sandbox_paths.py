"""Opening a path without following links; what a sandbox has of /dev. Loaded by the keeper: standard library only."""

from __future__ import annotations

import os
import stat

#: Devices that programs expect to be able to write. Terminals are not among them: the user's own is one. Nor is
#: /dev/tty: by opening a terminal that no session has, a command could make that its own and write to it.
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def open_path(path: str) -> int:
    """An O_PATH descriptor of an absolute path. OSError if any part of it is a link: one that a command has put there
    would lead elsewhere."""
    here = os.open("/", os.O_PATH | os.O_CLOEXEC)
    for part in filter(None, path.split("/")):
        try:
            there = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        finally:
            os.close(here)
        here = there
    if stat.S_ISLNK(os.fstat(here).st_mode):
        os.close(here)
        raise OSError(f"{path} is a link")
    return here


def is_below(path: str, place: str) -> bool:
    """Whether `path` is `place` or lies in it. Both are absolute and normalised."""
    return path == place or path.startswith(place.rstrip("/") + "/")
