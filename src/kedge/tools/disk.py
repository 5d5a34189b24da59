"""File access by real path that never follows a symlink: the file that was checked is the file that is opened.

Each component of a path is opened relative to the one before it, with O_NOFOLLOW. If a component was replaced by a
symlink after the path was resolved, opening fails. A file is written to a temporary name and renamed: it has its old or
its new content, and a hard link to the old file keeps the old content.

All functions block; call them in a thread. ToolFailed names the reason in one line.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from kedge.tools import own_writes
from kedge.tools.tool_failed import ToolFailed
from kedge.tools.workspace_paths import missing_root, printable

#: Limit of a file that is read whole. A larger text is not a source file, and its diff is of no use. Bytes.
READ_FILE_BYTES_MAX = 5_000_000
#: The part of a file that is in memory while its digest is computed: few reads. Bytes.
_PIECE_BYTES = 256 * 1024

#: Traversing a directory needs no permission to list it. (O_PATH exists only on Linux.)
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: A FIFO without a writer must not block, a terminal must not become our controlling terminal.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: A reference to a file: not readable, and closing it does not wait for its file system. (Linux only.)
HAS_REFERENCES = hasattr(os, "O_PATH")
_REFER = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC if HAS_REFERENCES else _READ
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_KINDS = {
    stat.S_IFDIR: "a directory; use ls",
    stat.S_IFIFO: "a pipe, not a file",
    stat.S_IFSOCK: "a socket, not a file",
    stat.S_IFCHR: "a device, not a file",
    stat.S_IFBLK: "a device, not a file",
    stat.S_IFLNK: "now a symlink; it was replaced during the call",
}
_REASONS = {
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ELOOP: "a path component is a symlink (swapped in, or a loop)",
    errno.ENOTDIR: "a path component is not a directory, or was replaced by a symlink",
    errno.ENAMETOOLONG: "the name is too long for this file system",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "disk quota exceeded",
    errno.EROFS: "the file system is read-only",
    errno.ENOENT: "it or its directory does not exist",
}


class FileContent(Struct, frozen=True):
    """The content of a file, and its metadata at that time."""

    data: bytes
    stat: os.stat_result


@contextlib.contextmanager
def _reporting(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0) or error.strerror or "unknown error"
        raise ToolFailed(f"{printable(str(path))}: {reason}") from None


@contextlib.contextmanager
def _directory(path: Path, *, make: bool = False, root: Path | None = None) -> Iterator[int]:
    """Open a directory component by component and yield its descriptor. `make`: create missing ones, but not `root`."""
    here = os.open("/", _PASS)
    try:
        for count, part in enumerate(path.parts[1:], 2):
            try:
                there = os.open(part, _PASS, dir_fd=here)
            except FileNotFoundError:
                if not make:
                    raise
                if root is not None and path.parts[:count] == root.parts[:count]:
                    raise missing_root(root) from None
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=here)
                there = os.open(part, _PASS, dir_fd=here)
            os.close(here)
            here = there
        yield here
    finally:
        os.close(here)


def identity(path: Path) -> tuple[int, int, int]:
    """Return device, inode and type of a path, without following symlinks. ToolFailed if it does not exist."""
    with _reporting(path):
        if path == Path("/"):
            status = os.stat("/")
        else:
            with _directory(path.parent) as parent:
                status = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    return status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO | None]:
    """Open a regular file for reading; None if it does not exist. ToolFailed for directories, devices and symlinks."""
    with _reporting(path):
        descriptor = _open(path)
    if descriptor is None:
        yield None
        return
    with open(descriptor, "rb") as file:
        yield file


@contextlib.contextmanager
def referenced(path: Path) -> Iterator[BinaryIO | None]:
    """Like `opened`, but yield a reference that a process opens as /proc/self/fd/N. It may be closed on the event loop:
    closing an open file waits for its file system, which may not answer."""
    with _reporting(path):
        descriptor = _open(path, _REFER)
    if descriptor is None:
        yield None
        return
    with open(descriptor, "rb", buffering=0) as file:
        yield file


@contextlib.contextmanager
def opened_directory(path: Path) -> Iterator[int]:
    """Yield a descriptor for listing a directory. ToolFailed if it does not exist."""
    with _reporting(path), _directory(path) as passed:
        listed = os.open(".", _LIST, dir_fd=passed)
        try:
            yield listed
        finally:
            os.close(listed)


def _open(path: Path, flags: int = _READ) -> int | None:
    try:
        with _directory(path.parent) as parent:
            # Checked before, since opening some devices has side effects, and again after opening.
            _must_be_regular(os.stat(path.name or "/", dir_fd=parent, follow_symlinks=False), path)
            descriptor = os.open(path.name, flags, dir_fd=parent)
    except FileNotFoundError:
        return None
    try:
        _must_be_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _must_be_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ToolFailed(f"{printable(str(path))} is {_KINDS.get(stat.S_IFMT(status.st_mode), 'not a file')}")


def read(path: Path, *, bytes_max: int = READ_FILE_BYTES_MAX) -> FileContent | None:
    """Return the whole file; None if it does not exist. ToolFailed if it is larger than `bytes_max`."""
    with opened(path) as file, _reporting(path):
        if file is None:
            return None
        data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise _too_large(path, bytes_max)
        return FileContent(data, os.fstat(file.fileno()))


def read_digest(path: Path) -> tuple[str, os.stat_result | None]:
    """Return the digest of a file and its metadata, without the whole file in memory; "", None if it does not exist.
    ToolFailed if `read` would refuse it."""
    with opened(path) as file, _reporting(path):
        if file is None:
            return "", None
        digest, left_bytes = hashlib.sha256(), READ_FILE_BYTES_MAX
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            left_bytes -= len(piece)
            if left_bytes < 0:
                raise _too_large(path, READ_FILE_BYTES_MAX)
        return digest.hexdigest(), os.fstat(file.fileno())


def _too_large(path: Path, bytes_max: int) -> ToolFailed:
    return ToolFailed(f"{printable(str(path))} is larger than {bytes_max // 1000} kB; use bash to change it")


def replace(path: Path, data: bytes, known: os.stat_result | None, root: Path | None = None) -> None:
    """Write a whole file atomically. `known` is the file to replace, as it was read (None: it did not exist).
    ToolFailed if there is another one. Its mode is kept, and its owner if permitted. Creates missing directories, but
    not `root`: a workspace that was moved away must not come back with this file alone."""
    with _reporting(path), _directory(path.parent, make=True, root=root) as parent:
        temporary = f".kedge-{secrets.token_hex(8)}.tmp"
        descriptor = os.open(temporary, _CREATE, 0o666 if known is None else 0o600, dir_fd=parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if known is not None:
                    _copy_owner_and_mode(file.fileno(), known)
                os.fsync(file.fileno())
            _must_be_known(parent, path, known)
            own_writes.record(path)
            os.rename(temporary, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=parent)
            raise
        _sync(parent)


def remove(path: Path, known: os.stat_result) -> None:
    """Delete a file. ToolFailed if it is not the one that was read."""
    with _reporting(path), _directory(path.parent) as parent:
        _must_be_known(parent, path, known)
        os.unlink(path.name, dir_fd=parent)
        _sync(parent)


def move_away(path: Path, target: Path, aside: str) -> Path:
    """Rename a file or directory to `target`; on another file system, to the name `aside` where it is. Return its new
    path."""
    with _reporting(path), _directory(path.parent) as parent:
        if stat.S_ISDIR(os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode):
            _make_accessible(path.name, parent)  # else its `..` cannot be changed
        try:
            os.rename(path.name, target, src_dir_fd=parent)
        except PermissionError:
            _make_accessible(".", parent)
            os.rename(path.name, target, src_dir_fd=parent)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            os.rename(path.name, aside, src_dir_fd=parent, dst_dir_fd=parent)
            return path.parent / aside
    return target


def make_link(path: Path, text: str) -> None:
    """Create a symlink."""
    with _reporting(path), _directory(path.parent) as parent:
        os.symlink(text, path.name, dir_fd=parent)


def make_accessible(path: Path) -> None:
    """Give the owner of a directory access to it."""
    with _reporting(path), _directory(path.parent) as parent:
        _make_accessible(path.name, parent)


def _make_accessible(name: str, parent: int) -> None:
    directory = os.open(name, _PASS, dir_fd=parent)
    try:
        mode = os.fstat(directory).st_mode
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{directory}", stat.S_IMODE(mode) | stat.S_IRWXU)
    finally:
        os.close(directory)


def _copy_owner_and_mode(descriptor: int, known: os.stat_result) -> None:
    mode = stat.S_IMODE(known.st_mode)
    mine = os.fstat(descriptor)
    if (mine.st_uid, mine.st_gid) != (known.st_uid, known.st_gid):
        try:
            os.fchown(descriptor, known.st_uid, known.st_gid)
        except PermissionError:
            mode &= 0o777  # the set-user-id bit was for the old owner
    os.fchmod(descriptor, mode)


def _must_be_known(parent: int, path: Path, known: os.stat_result | None) -> None:
    """The last check before the rename. Only a deliberate race fits in between."""
    try:
        there = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        there = None
    if _stamp(there) != _stamp(known):
        raise ToolFailed(f"{printable(str(path))} changed at this moment; nothing was written, view it again")


def _stamp(status: os.stat_result | None) -> tuple[int, ...] | None:
    if status is None:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _sync(parent: int) -> None:
    """Make a rename survive a power cut, where directories can be synced."""
    with contextlib.suppress(OSError):
        listed = os.open(".", _LIST, dir_fd=parent)
        try:
            os.fsync(listed)
        finally:
            os.close(listed)
