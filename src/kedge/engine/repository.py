"""A workspace's repository: which directories belong to it, and reading its files without being led out of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: Directories from the workspace up in which a repository's root is looked for. Items.
PARENTS_MAX = 64


def levels(workspace: Path) -> list[Path]:
    """The directories from the repository's root down to the workspace; the workspace alone if it is in none.

    A parent that belongs to somebody else ends the search: what another user puts into /tmp is not for us. So does a
    home: one that is a repository (of dotfiles) is not that of everything that lies in it."""
    home = Path(os.path.realpath(os.path.expanduser("~")))
    owner = workspace.stat().st_uid if workspace.exists() else None
    found: list[Path] = []
    for place in [workspace, *workspace.parents][:PARENTS_MAX]:
        if found and (place.stat().st_uid != owner or home.is_relative_to(place)):
            break
        found.insert(0, place)
        if (place / ".git").exists():
            return found
    return [workspace]


class LeadsOut(Exception):
    """The path is a link that leaves the repository."""


def read_inside(path: Path, root: Path, bytes_max: int) -> bytes | None:
    """The first bytes of a regular file; None if there is no such thing. OSError if it cannot be read.

    Links are followed within `root`. A FIFO or a device is not there: reading one could last for ever."""
    try:
        resolved = path.resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except RuntimeError:  # a loop of links
        return None
    if not resolved.is_relative_to(root.resolve()):
        raise LeadsOut(str(path))
    return read_regular(resolved, bytes_max)


def read_regular(path: Path, bytes_max: int) -> bytes | None:
    """The first bytes of a regular file, links followed; None if there is no such thing."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return None
    with open(handle, "rb") as file:
        return file.read(bytes_max)
