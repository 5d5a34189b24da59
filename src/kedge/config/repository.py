"""A workspace's repository: which directories belong to it, and reading its files without being led out of it.

What is read here tells agents what to do, so it must come from the user: a file counts only if it belongs to the
workspace's owner, to us or to root, and a directory above the workspace only if no other user can put files into it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: Directories from the workspace up in which a repository's root is looked for. Items.
PARENTS_MAX = 64

#: Files of root count everywhere: no other user can make one, and who is root needs none to command us.
ROOT = 0

_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A FIFO without a writer does not block.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def owners(workspace: Path) -> frozenset[int]:
    """The users whose files count in this workspace: its owner, and the one that this process runs as.

    The owner, since root may work in the directory of another user, whose instructions are the right ones there."""
    ours = os.geteuid()
    try:
        return frozenset({ours, workspace.stat().st_uid})
    except FileNotFoundError:
        return frozenset({ours})


def levels(workspace: Path) -> list[Path]:
    """The directories from the repository's root down to the workspace; the workspace alone if it is in none.

    A parent in which another user may create files ends the search: what others put into /tmp is not for us. So does a
    home: one that is a repository (of dotfiles) is not that of everything that lies in it."""
    home = Path(os.path.realpath(os.path.expanduser("~")))
    trusted = owners(workspace)
    found: list[Path] = []
    for place in [workspace, *workspace.parents][:PARENTS_MAX]:
        if found and (home.is_relative_to(place) or not _is_closed(place.stat(), trusted)):
            break
        found.insert(0, place)
        if _has_repository(place, trusted):
            return found
    return [workspace]


def _is_closed(about: os.stat_result, trusted: frozenset[int]) -> bool:
    """Whether only trusted users can create entries in this directory.

    The sticky bit does not help, it only protects what is there. Write permission for a group is accepted if it is our
    own group: with a umask of 002 each user has a private one, and every directory is like that. An access list
    shows in the bits of the group."""
    if about.st_uid not in trusted or about.st_mode & stat.S_IWOTH:
        return False
    return not about.st_mode & stat.S_IWGRP or about.st_gid == os.getegid()


def _has_repository(place: Path, trusted: frozenset[int]) -> bool:
    try:
        git = place / ".git"
        return git.lstat().st_uid in trusted and git.stat().st_uid in trusted
    except OSError:
        return False


class NotRead(Exception):
    """The file is there, and must not count: the message says why."""


def read_inside(path: Path, root: Path, trusted: frozenset[int], bytes_max: int) -> bytes | None:
    """The first bytes of a regular file; None if there is no such thing. OSError if it cannot be read.

    NotRead if it is a link out of `root`, or belongs to none of the `trusted` users. Links are followed within `root`.
    A FIFO or a device is not there: reading one could last for ever."""
    try:
        path.lstat()  # most are not there, and resolving looks at every directory on the way
        resolved = path.resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except RuntimeError:  # a loop of links
        return None
    if not resolved.is_relative_to(root.resolve()):
        raise NotRead("is a link out of the repository")
    try:
        handle = _open_plain(resolved)
    except (FileNotFoundError, NotADirectoryError):  # gone, or swapped for a link, since
        return None
    return _read(handle, bytes_max, trusted)


def read_regular(path: Path, bytes_max: int, trusted: frozenset[int] | None = None) -> bytes | None:
    """The first bytes of a regular file, links followed; None if there is no such thing.

    NotRead if `trusted` is given and the file belongs to another user."""
    try:
        handle = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _read(handle, bytes_max, trusted)


def _open_plain(path: Path) -> int:
    """Part by part, through no link: one that was swapped in since the path was resolved could lead anywhere."""
    here = os.open("/", _PASS)
    try:
        for part in path.parts[1:-1]:
            there = os.open(part, _PASS, dir_fd=here)
            os.close(here)
            here = there
        return os.open(path.name, _READ | os.O_NOFOLLOW, dir_fd=here)
    finally:
        os.close(here)


def _read(handle: int, bytes_max: int, trusted: frozenset[int] | None) -> bytes | None:
    """Judged by what was opened, not by its path, which may lead elsewhere by now. The handle is closed."""
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        return None
    with open(handle, "rb") as file:
        if trusted is not None and about.st_uid not in {*trusted, ROOT}:
            raise NotRead("belongs to another user")
        return file.read(bytes_max)
