"""Files by their real path, without following a link: what is opened is what was judged.

Each part of a path is opened from the one before it with O_NOFOLLOW. If one has been swapped for a link since the path
was resolved, opening fails instead of leading elsewhere. A file is written beside its place and renamed into it: it is
there as it was or as it will be, and another name of the old file (a hard link) keeps the old content.

Everything here blocks; call it in a thread. ToolFailed says in one line what did not work.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from kedge.tools.paths import printable
from kedge.tools.tool_failed import ToolFailed

#: Of a file that is read whole, in bytes: above it a text is no source file, and a diff of it helps nobody.
FILE_BYTES_MAX = 5_000_000

#: To pass through a directory needs no right to list it. (O_PATH is Linux's.)
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: A FIFO without a writer does not block, a terminal does not become ours.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_KINDS = {
    stat.S_IFDIR: "a directory; use ls",
    stat.S_IFIFO: "a pipe, not a file",
    stat.S_IFSOCK: "a socket, not a file",
    stat.S_IFCHR: "a device, not a file",
    stat.S_IFBLK: "a device, not a file",
    stat.S_IFLNK: "a link now; it was swapped while in use",
}
_REASONS = {
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ELOOP: "a part of the path is a link that was swapped in or leads in a circle",
    errno.ENOTDIR: "a part of the path is not a directory, or was swapped for a link",
    errno.ENAMETOOLONG: "the name is too long for this file system",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.ENOENT: "it or its directory does not exist",
}


class Content(Struct, frozen=True):
    """A file as it was read."""

    data: bytes
    stat: os.stat_result


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0) or error.strerror or "the system refused"
        raise ToolFailed(f"{printable(str(path))}: {reason}") from None


@contextlib.contextmanager
def _directory(path: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor of a directory, reached part by part."""
    here = os.open("/", _PASS)
    try:
        for part in path.parts[1:]:
            try:
                there = os.open(part, _PASS, dir_fd=here)
            except FileNotFoundError:
                if not make:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=here)
                there = os.open(part, _PASS, dir_fd=here)
            os.close(here)
            here = there
        yield here
    finally:
        os.close(here)


def identity(path: Path) -> tuple[int, int, int]:
    """Which file or directory this is, and its kind, no link followed. ToolFailed if there is none."""
    with _telling(path):
        if path == Path("/"):
            found = os.stat("/")
        else:
            with _directory(path.parent) as parent:
                found = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    return found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO | None]:
    """A regular file, to be read; None if it is not there. ToolFailed for directories, devices, pipes and links."""
    with _telling(path):
        descriptor = _open(path)
    if descriptor is None:
        yield None
        return
    with open(descriptor, "rb") as file:
        yield file


@contextlib.contextmanager
def opened_directory(path: Path) -> Iterator[int]:
    """A descriptor of a directory, to list it. ToolFailed if there is none."""
    with _telling(path), _directory(path) as passed:
        listed = os.open(".", _LIST, dir_fd=passed)
        try:
            yield listed
        finally:
            os.close(listed)


def _open(path: Path) -> int | None:
    try:
        with _directory(path.parent) as parent:
            # Asked first, since the mere opening of some devices does something; and again of what was opened.
            _must_be_regular(os.stat(path.name or "/", dir_fd=parent, follow_symlinks=False), path)
            descriptor = os.open(path.name, _READ, dir_fd=parent)
    except FileNotFoundError:
        return None
    try:
        _must_be_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _must_be_regular(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ToolFailed(f"{printable(str(path))} is {_KINDS.get(stat.S_IFMT(found.st_mode), 'not a file')}")


def read(path: Path, *, bytes_max: int = FILE_BYTES_MAX) -> Content | None:
    """The whole file; None if it is not there. ToolFailed if it is larger than that."""
    with opened(path) as file, _telling(path):
        if file is None:
            return None
        data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise ToolFailed(f"{printable(str(path))} is larger than {bytes_max // 1000} kB; use bash to change it")
        return Content(data, os.fstat(file.fileno()))


def replace(path: Path, data: bytes, known: os.stat_result | None) -> None:
    """Write the whole file at once. `known`: the file to be replaced, as it was read (None: there was none); ToolFailed
    if another is there. Its mode stays, and its owner where this user may set it. Directories are made as needed."""
    with _telling(path), _directory(path.parent, make=True) as parent:
        beside = f".kedge-{secrets.token_hex(8)}.tmp"
        descriptor = os.open(beside, _CREATE, 0o666 if known is None else 0o600, dir_fd=parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if known is not None:
                    _take_over(file.fileno(), known)
                os.fsync(file.fileno())
            _must_be_known(parent, path, known)
            os.rename(beside, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=parent)
            raise
        _settle(parent)


def remove(path: Path, known: os.stat_result) -> None:
    """ToolFailed if another file is there than the one that was read."""
    with _telling(path), _directory(path.parent) as parent:
        _must_be_known(parent, path, known)
        os.unlink(path.name, dir_fd=parent)
        _settle(parent)


def _take_over(descriptor: int, known: os.stat_result) -> None:
    mode = stat.S_IMODE(known.st_mode)
    mine = os.fstat(descriptor)
    if (mine.st_uid, mine.st_gid) != (known.st_uid, known.st_gid):
        try:
            os.fchown(descriptor, known.st_uid, known.st_gid)
        except PermissionError:
            mode &= 0o777  # set-user-id was given to its old owner, not to us
    os.fchmod(descriptor, mode)


def _must_be_known(parent: int, path: Path, known: os.stat_result | None) -> None:
    """The last look before the rename: what lies between is too short for anything but a race made on purpose."""
    try:
        there = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        there = None
    if _stamp(there) != _stamp(known):
        raise ToolFailed(f"{printable(str(path))} changed in this moment; nothing was written, view it again")


def _stamp(found: os.stat_result | None) -> tuple[int, ...] | None:
    return None if found is None else (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _settle(parent: int) -> None:
    """The new name survives a power cut too, where directories can be synced."""
    with contextlib.suppress(OSError):
        listed = os.open(".", _LIST, dir_fd=parent)
        try:
            os.fsync(listed)
        finally:
            os.close(listed)
