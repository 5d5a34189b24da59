"""The repository of a workspace: its directories, and safe reading of its files.

These files instruct agents, so they must come from the user. A file is read only if it belongs to the workspace's
owner, to the user of this process or to root; a directory above the workspace is used only if no other user can create
files in it. Links out of the repository are not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

#: Directories from the workspace up that are searched for the repository's root. Items.
PARENTS_MAX = 64

#: Files of root are always trusted: no other user can create one, and root controls this process anyway.
ROOT = 0

_TRAVERSE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: O_NONBLOCK: opening a FIFO without a writer does not block.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def trusted_owners(workspace: Path) -> frozenset[int]:
    """Return the users whose files are trusted in this workspace: its owner, and the user of this process.

    The owner, since root may work in the directory of another user, whose instructions apply there."""
    own = os.geteuid()
    try:
        return frozenset({own, workspace.stat().st_uid})
    except FileNotFoundError:
        return frozenset({own})


def repository_directories(workspace: Path) -> list[Path]:
    """Return the directories from the repository's root down to the workspace; without a repository only the workspace.

    The search ends at a parent in which another user can create files, such as /tmp, and at a home directory: a
    repository of dotfiles there is not the repository of everything in it."""
    home = Path(os.path.realpath(os.path.expanduser("~")))
    owners = trusted_owners(workspace)
    directories: list[Path] = []
    for directory in [workspace, *workspace.parents][:PARENTS_MAX]:
        if directories and (home.is_relative_to(directory) or not _is_closed(directory.stat(), owners)):
            break
        directories.insert(0, directory)
        if _has_repository(directory, owners):
            return directories
    return [workspace]


def _is_closed(status: os.stat_result, owners: frozenset[int]) -> bool:
    """Return True if only trusted users can create entries in this directory.

    The sticky bit only protects existing entries. Write permission for our own group is accepted: with a umask of 002
    each user has a private group, and all directories are group-writable. Access lists show in the group bits."""
    if status.st_uid not in owners or status.st_mode & stat.S_IWOTH:
        return False
    return not status.st_mode & stat.S_IWGRP or status.st_gid == os.getegid()


def _has_repository(directory: Path, owners: frozenset[int]) -> bool:
    try:
        git = directory / ".git"
        return git.lstat().st_uid in owners and git.stat().st_uid in owners
    except OSError:
        return False


class UntrustedFile(Exception):
    """The file exists and must not be read. The message gives the reason."""


class RepositoryFile(Struct, frozen=True):
    path: Path
    #: None: not read, for the reason in `why`.
    content: bytes | None
    why: str = ""
    #: Reading failed, as opposed to: the file must not be read.
    is_error: bool = False


def read_configuration(workspace: Path, names: Sequence[str], bytes_max: int) -> list[RepositoryFile]:
    """Read the files with these names from the repository's root down to the workspace, with a limit for all of them.

    Raises OSError if the workspace cannot be read. Blocking."""
    directories, owners = repository_directories(workspace), trusted_owners(workspace)
    files = []
    left = bytes_max
    for path in (directory / name for directory in directories for name in names):
        try:
            content = read_inside(path, directories[0], owners, left + 1)
        except UntrustedFile as error:
            files.append(RepositoryFile(path, None, f"{path} {error} and is not read."))
        except OSError as error:
            files.append(RepositoryFile(path, None, f"{path} cannot be read: {error.strerror}.", True))
        else:
            if content is not None and len(content) > left:
                why = f"{path} is not read: the repository's configuration has more than {bytes_max} bytes."
                files.append(RepositoryFile(path, None, why, True))
            elif content is not None:
                left -= len(content)
                files.append(RepositoryFile(path, content))
    return files


def read_inside(path: Path, root: Path, owners: frozenset[int], bytes_max: int) -> bytes | None:
    """Return the first bytes of a regular file, or None if it does not exist. Raises OSError if it cannot be read.

    Raises UntrustedFile for a link out of `root`, and for a file of another owner. Links within `root` are followed.
    A FIFO or a device counts as missing: reading one could block forever."""
    try:
        path.lstat()  # most files do not exist, and `resolve` stats every directory of the path
        resolved = path.resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except RuntimeError:  # a symlink loop
        return None
    if not resolved.is_relative_to(root.resolve()):
        raise UntrustedFile("is a link out of the repository")
    try:
        handle = _open_plain(resolved)
    except (FileNotFoundError, NotADirectoryError):  # removed, or replaced by a link, in the meantime
        return None
    return _read(handle, bytes_max, owners)


def read_regular(path: Path, bytes_max: int, owners: frozenset[int] | None = None) -> bytes | None:
    """Return the first bytes of a regular file, or None if it does not exist. Links are followed.

    Raises UntrustedFile if the file belongs to none of the owners."""
    try:
        handle = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _read(handle, bytes_max, owners)


def _open_plain(path: Path) -> int:
    """Open a resolved path component by component without following links: one may have been swapped in since."""
    directory = os.open("/", _TRAVERSE)
    try:
        for part in path.parts[1:-1]:
            child = os.open(part, _TRAVERSE, dir_fd=directory)
            os.close(directory)
            directory = child
        return os.open(path.name, _READ | os.O_NOFOLLOW, dir_fd=directory)
    finally:
        os.close(directory)


def _read(handle: int, bytes_max: int, owners: frozenset[int] | None) -> bytes | None:
    """Check and read the opened file, since its path may lead elsewhere by now. Closes the handle."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        return None
    with open(handle, "rb") as file:
        if owners is not None and status.st_uid not in {*owners, ROOT}:
            raise UntrustedFile("belongs to another user")
        return file.read(bytes_max)
