"""The mount sandbox: in the tree's own mount namespace everything is read-only except for the writable paths.

A read-only mount also protects what Landlock does not: modes, owners, times, extended attributes and inode flags. And
it can subtract: inside a writable path some paths stay read-only (`protected`) or appear empty (`hidden`). The Unix
sockets of running programs are covered, since such a program acts outside of the sandbox. A process with CAP_SYS_ADMIN
could undo all this, so the child drops it (`capabilities`). Loaded by the keeper: standard library only.

mount_setattr needs Linux 5.12. Older kernels have no Landlock either, and get bubblewrap.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice

from kedge.warden import libc
from kedge.warden.sandbox_paths import DEVICES, is_below, open_path

#: Sockets that are covered individually for one tree, at some 50 us each, without those in hidden directories. Items.
SOCKETS_MAX = 500

#: Maximum size of /proc/net/unix: some 50,000 sockets. Bytes.
LISTING_BYTES_MAX = 8 * 1024 * 1024

#: Sockets that programs need: they only answer look-ups (users, hosts) or receive log lines. Covered for a process
#: without a network: the name of a host carries any text to the server of its domain.
HARMLESS = (
    "/run/nscd",
    "/var/run/nscd",
    "/var/lib/sss/pipes/nss",
    "/var/lib/sss/pipes/pam",
    "/run/systemd/userdb",
    "/run/systemd/resolve",
    "/run/systemd/journal",
)

#: Size of the files in a scratch directory: they are in memory. Bytes.
SCRATCH_BYTES_MAX = 256 * 1024 * 1024

#: Entries of a directory that are checked for a socket whose name has changed, at some 2 us each. Items.
ENTRIES_MAX = 1000

_LISTENS = 0x10000  # __SO_ACCEPTCON in the flags of /proc/net/unix
_DATAGRAM = "0002"


def isolate(
    writable: Sequence[str],
    protected: Sequence[str],
    hidden: Sequence[str],
    reachable: Sequence[str],
    scratch: str = "",
    *,
    network: bool = True,
) -> None:
    """Make this mount namespace read-only except for `writable`. Paths that do not exist, or are links, are ignored.

    `protected` stays read-only and `hidden` empty, also inside `writable`. Sockets below `reachable` are not covered.
    `scratch` is empty and writable. Without `network`, sockets that resolve names are covered as well.
    Devices work on read-only mounts, so only DEVICES and those below `writable` can be opened. The user's terminals are
    devices, too: a process that opens one for reading receives its input and can insert input by ioctl.
    """
    # Private: a file system that is mounted outside later would appear here, and be writable.
    libc.mount_setattr(libc.AT_FDCWD, "/", propagation=libc.MS_PRIVATE)
    clones = _clones((*writable, *DEVICES))
    if "/" not in clones:
        libc.mount_setattr(libc.AT_FDCWD, "/", set_attributes=libc.MOUNT_ATTR_RDONLY | libc.MOUNT_ATTR_NODEV)
    for device in clones.keys() & set(DEVICES):
        libc.mount_setattr(clones[device], "", set_attributes=libc.MOUNT_ATTR_RDONLY)
    listening = sockets((*(HARMLESS if network else ()), *reachable, *hidden))
    steps: list[tuple[int, int, str, Callable[[str], None]]] = []
    steps += [(depth(path), 0, path, lambda path: _put_back(path, clones[path])) for path in clones if path != "/"]
    steps += [(depth(path), 1, path, _pin) for path in ancestors((*protected, *hidden, *listening), clones)]
    steps += [(depth(path), 2, path, _protect) for path in protected]
    empty = _Empty()
    steps += [(depth(path), 3, path, empty.cover) for path in hidden]
    # From the root downwards: a later mount must be inside an earlier one, not be covered by it.
    for _, _, path, step in sorted(steps, key=lambda step: step[:3]):
        step(path)
    for path in listening:
        empty.cover(path)
    empty.close()
    if scratch:
        _mount_scratch(scratch)
    for clone in clones.values():
        os.close(clone)


def hide(hidden: Iterable[str]) -> None:
    """Cover each path with an empty directory or /dev/null."""
    empty = _Empty()
    for path in hidden:
        empty.cover(path)
    empty.close()


def sockets(exempt: Sequence[str] = ()) -> list[str]:
    """Return the Unix sockets in the file system that accept connections or messages, except for those below `exempt`.

    Sockets with a relative name, or renamed into another directory, are not detected.
    """
    paths: set[str] = set()
    with open("/proc/net/unix", "rb") as listing:
        text = os.fsdecode(listing.read(LISTING_BYTES_MAX + 1))
    for line in text.splitlines()[1:]:
        fields = line.split(maxsplit=7)
        # Relative names cannot be resolved; "@" marks abstract sockets, which Landlock scopes restrict.
        if len(fields) == 8 and fields[7].startswith("/") and (int(fields[3], 16) & _LISTENS or fields[4] == _DATAGRAM):
            # Some are bound through a link, such as /var/run.
            path = os.path.realpath(fields[7])
            # Some are renamed when they listen (the ssh master): search the same directory.
            # Another kind of file may have the name of a removed socket: it is not covered.
            paths |= {path} if _is_socket(path) else _sockets_in(os.path.dirname(path))
    left = sorted(path for path in paths if not any(is_below(path, directory) for directory in exempt))
    if len(text) > LISTING_BYTES_MAX or len(left) > SOCKETS_MAX:
        raise OSError(f"more than {SOCKETS_MAX} Unix sockets would have to be covered")
    return left


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _sockets_in(directory: str) -> set[str]:
    with suppress(OSError), os.scandir(directory) as entries:
        return {entry.path for entry in islice(entries, ENTRIES_MAX) if stat.S_ISSOCK(entry.stat().st_mode)}
    return set()


def _clones(writable: Sequence[str]) -> dict[str, int]:
    """Return a detached mount of each outermost writable path, taken before anything is changed."""
    clones: dict[str, int] = {}
    for path in sorted(map(os.path.normpath, writable), key=depth):
        if any(is_below(path, other) for other in clones):
            continue
        with suppress(OSError):
            path_fd = open_path(path)
            clones[path] = libc.open_tree(path_fd)
            os.close(path_fd)
    return clones


def _put_back(path: str, clone: int) -> None:
    try:
        path_fd = open_path(path)
    except FileNotFoundError:
        # Its directory is hidden and empty now; that is the only directory in which files can be created here.
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if stat.S_ISDIR(os.fstat(clone).st_mode):
            os.mkdir(path)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        path_fd = open_path(path)
    libc.move_mount(clone, path_fd)
    os.close(path_fd)


def _pin(path: str) -> None:
    """Make a directory a mount point, so that it cannot be renamed: a command could otherwise move it away with the
    protected path inside and replace it, or move a covered socket, which the next command finds under a new name."""
    with suppress(OSError):
        path_fd = open_path(path)
        clone = libc.open_tree(path_fd)
        libc.move_mount(clone, path_fd)
        os.close(clone)
        os.close(path_fd)


def _protect(path: str) -> None:
    try:
        path_fd = open_path(path)
    except OSError:
        return
    clone = libc.open_tree(path_fd)
    libc.mount_setattr(clone, "", set_attributes=libc.MOUNT_ATTR_RDONLY)
    libc.move_mount(clone, path_fd)
    os.close(clone)
    os.close(path_fd)


def _mount_scratch(path: str) -> None:
    with suppress(OSError):  # the path does not exist
        path_fd = open_path(path)
        flags = libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC
        libc.mount("kedge", f"/proc/self/fd/{path_fd}", "tmpfs", flags, f"size={SCRATCH_BYTES_MAX},mode=1777")
        os.close(path_fd)


class _Empty:
    """Covers directories with an empty one and everything else with /dev/null, which accepts no connections."""

    def __init__(self) -> None:
        self._made: list[int] = []

    def cover(self, path: str) -> None:
        try:
            path_fd = open_path(path)
        except OSError:
            return
        if stat.S_ISDIR(os.fstat(path_fd).st_mode):
            flags = libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC
            libc.mount("kedge", f"/proc/self/fd/{path_fd}", "tmpfs", flags)
            self._made.append(open_path(path))
        else:
            null = open_path("/dev/null")
            clone = libc.open_tree(null)
            libc.move_mount(clone, path_fd)
            os.close(clone)
            os.close(null)
        os.close(path_fd)

    def close(self) -> None:
        """Make the empty directories read-only, once nothing is put back into them."""
        for directory in self._made:
            libc.mount_setattr(directory, "", set_attributes=libc.MOUNT_ATTR_RDONLY, recursive=False)
            os.close(directory)


def ancestors(paths: Iterable[str], roots: Iterable[str]) -> set[str]:
    """Return the directories between each root and each path inside of it."""
    directories = set()
    for path in paths:
        for root in roots:
            above = os.path.dirname(path)
            while above != root and is_below(above, root):
                directories.add(above)
                above = os.path.dirname(above)
    return directories


def depth(path: str) -> int:
    return len(list(filter(None, path.split("/"))))
