"""The sandbox by mounts: in the tree's own mount namespace everything is read-only but the writable places.

A read-only mount also refuses what Landlock does not see: modes, owners, times, extended attributes and inode flags.
And it can subtract: inside a writable place some paths stay read-only (`protected`) or are empty (`hidden`). The Unix
sockets of running programs are covered, since such a program would act outside of the sandbox. A process that keeps
CAP_SYS_ADMIN could undo all this, so the child drops it (`capabilities`). Loaded by the keeper: standard library only.

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

#: Sockets that are covered one by one for one tree, at some 50 us each. Those in hidden directories do not count.
SOCKETS_MAX = 500

#: What is read of /proc/net/unix: some 50,000 sockets. Bytes.
LISTING_BYTES_MAX = 8 * 1024 * 1024

#: Sockets that only answer look-ups (names of users and hosts) or take lines for the log: programs need them.
HARMLESS = (
    *("/run/nscd", "/var/run/nscd", "/var/lib/sss/pipes/nss", "/var/lib/sss/pipes/pam", "/run/systemd/userdb"),
    *("/run/systemd/resolve", "/run/systemd/journal"),
)

#: Entries of a directory that are looked at for a socket whose name has changed: some 2 us each.
ENTRIES_MAX = 1000

_LISTENS = 0x10000  # __SO_ACCEPTCON in the flags of /proc/net/unix
_DATAGRAM = "0002"


def isolate(
    writable: Sequence[str],
    protected: Sequence[str],
    hidden: Sequence[str],
    reachable: Sequence[str],
) -> None:
    """Make this mount namespace read-only but for `writable`. A path that does not exist, or is a link, is ignored.

    `protected` stays read-only and `hidden` empty inside of `writable`, too. Sockets below `reachable` are not covered.
    A read-only mount does not keep a device from being used: no device opens but DEVICES and those below `writable`.
    The user's terminals are devices, too: who can open one for reading gets the input and, by ioctl, can insert some.
    """
    # Private: a file system that is mounted outside later would appear here, and writable.
    libc.mount_setattr(libc.AT_FDCWD, "/", propagation=libc.MS_PRIVATE)
    clones = _clones((*writable, *DEVICES))
    if "/" not in clones:
        libc.mount_setattr(libc.AT_FDCWD, "/", set_attributes=libc.MOUNT_ATTR_RDONLY | libc.MOUNT_ATTR_NODEV)
    for device in clones.keys() & set(DEVICES):
        libc.mount_setattr(clones[device], "", set_attributes=libc.MOUNT_ATTR_RDONLY)
    listening = sockets((*HARMLESS, *reachable, *hidden))
    steps: list[tuple[int, int, str, Callable[[str], None]]] = []
    steps += [(depth(path), 0, path, lambda path: _put_back(path, clones[path])) for path in clones if path != "/"]
    steps += [(depth(path), 1, path, _pin) for path in ancestors((*protected, *hidden, *listening), clones)]
    steps += [(depth(path), 2, path, _protect) for path in protected]
    empty = _Empty()
    steps += [(depth(path), 3, path, empty.cover) for path in hidden]
    # From the root downwards: what is mounted later must lie in what was mounted before, not be covered by it.
    for _, _, path, step in sorted(steps, key=lambda step: step[:3]):
        step(path)
    for path in listening:
        empty.cover(path)
    empty.close()
    for clone in clones.values():
        os.close(clone)


def hide(hidden: Iterable[str]) -> None:
    """Put something empty in the place of each path, and leave everything else as it is."""
    empty = _Empty()
    for path in hidden:
        empty.cover(path)
    empty.close()


def sockets(exempt: Sequence[str] = ()) -> list[str]:
    """The Unix sockets in the file system that a program may connect or send to now, but for those below `exempt`.

    Not seen are those with a relative name, and those that were renamed into another directory.
    """
    found: set[str] = set()
    with open("/proc/net/unix", "rb") as listing:
        text = os.fsdecode(listing.read(LISTING_BYTES_MAX + 1))
    for line in text.splitlines()[1:]:
        fields = line.split(maxsplit=7)
        # Relative names cannot be resolved, and "@" stands for abstract ones, which Landlock scopes hold.
        if len(fields) == 8 and fields[7].startswith("/") and (int(fields[3], 16) & _LISTENS or fields[4] == _DATAGRAM):
            # Some are bound through a link, like /var/run.
            path = os.path.realpath(fields[7])
            # Some get their name only when they listen (the master of ssh): they are in the same directory.
            # Another kind of file may have the name of a socket that was removed: it is not covered.
            found |= {path} if _is_socket(path) else _sockets_in(os.path.dirname(path))
    left = sorted(path for path in found if not any(is_below(path, place) for place in exempt))
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
    """A detached mount of each outermost writable place, taken while everything is still as outside."""
    clones: dict[str, int] = {}
    for path in sorted(map(os.path.normpath, writable), key=depth):
        if any(is_below(path, place) for place in clones):
            continue
        with suppress(OSError):
            place = open_path(path)
            clones[path] = libc.open_tree(place)
            os.close(place)
    return clones


def _put_back(path: str, clone: int) -> None:
    try:
        place = open_path(path)
    except FileNotFoundError:
        # It lay in a directory that is empty now: the only place here where something can be made.
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if stat.S_ISDIR(os.fstat(clone).st_mode):
            os.mkdir(path)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        place = open_path(path)
    libc.move_mount(clone, place)
    os.close(place)


def _pin(path: str) -> None:
    """Make a directory a mount of itself. Without this a command could rename it, with the protected path inside, and
    put another one in its place; or with a socket inside, which the next command would find under a new name."""
    with suppress(OSError):
        place = open_path(path)
        clone = libc.open_tree(place)
        libc.move_mount(clone, place)
        os.close(clone)
        os.close(place)


def _protect(path: str) -> None:
    try:
        place = open_path(path)
    except OSError:
        return
    clone = libc.open_tree(place)
    libc.mount_setattr(clone, "", set_attributes=libc.MOUNT_ATTR_RDONLY)
    libc.move_mount(clone, place)
    os.close(clone)
    os.close(place)


class _Empty:
    """Covers directories with an empty one and everything else with /dev/null, to which nothing can be connected."""

    def __init__(self) -> None:
        self._made: list[int] = []

    def cover(self, path: str) -> None:
        try:
            place = open_path(path)
        except OSError:
            return
        if stat.S_ISDIR(os.fstat(place).st_mode):
            flags = libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC
            libc.mount("kedge", f"/proc/self/fd/{place}", "tmpfs", flags)
            self._made.append(open_path(path))
        else:
            null = open_path("/dev/null")
            clone = libc.open_tree(null)
            libc.move_mount(clone, place)
            os.close(clone)
            os.close(null)
        os.close(place)

    def close(self) -> None:
        """Make the empty directories read-only: nothing has to be put back into them any more."""
        for directory in self._made:
            libc.mount_setattr(directory, "", set_attributes=libc.MOUNT_ATTR_RDONLY, recursive=False)
            os.close(directory)


def ancestors(paths: Iterable[str], places: Iterable[str]) -> set[str]:
    """The directories between a writable place and a path inside of it."""
    found = set()
    for path in paths:
        for place in places:
            above = os.path.dirname(path)
            while above != place and is_below(above, place):
                found.add(above)
                above = os.path.dirname(above)
    return found


def depth(path: str) -> int:
    return len(list(filter(None, path.split("/"))))
