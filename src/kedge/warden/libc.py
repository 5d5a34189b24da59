"""System calls that Python 3.11 does not offer. Loaded by the keeper: standard library only."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x0002_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NODEV = 0x4

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

# The numbers are the same on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE = 0x1
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOVE_MOUNT_T_EMPTY_PATH = 0x40

_LIBC = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd"))


def unshare(flags: int) -> None:
    _checked(_LIBC.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded, data = kind.encode() if kind else None, options.encode() or None
    _checked(_LIBC.mount(source.encode(), target.encode(), encoded, ctypes.c_ulong(flags), data), "mount")


def open_tree(path_fd: int) -> int:
    """Return a detached copy of the mount at a descriptor and of all mounts below it."""
    flags = _OPEN_TREE_CLONE | _AT_EMPTY_PATH | _AT_RECURSIVE | os.O_CLOEXEC
    return syscall(_OPEN_TREE, ctypes.c_int(path_fd), ctypes.c_char_p(b""), ctypes.c_uint(flags))


def move_mount(tree: int, target_fd: int) -> None:
    """Mount a result of `open_tree` at a descriptor. No path is resolved, so no link can redirect it."""
    flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH)
    nothing = ctypes.c_char_p(b"")
    syscall(_MOVE_MOUNT, ctypes.c_int(tree), nothing, ctypes.c_int(target_fd), nothing, flags)


def mount_setattr(
    directory_fd: int, path: str, *, set_attributes: int = 0, propagation: int = 0, recursive: bool = True
) -> None:
    """Change the mount at `path`, or at the descriptor if the path is empty, and by default all mounts below it."""
    attributes = _MountAttributes(set_attributes, 0, propagation, 0)
    flags = (0 if path else _AT_EMPTY_PATH) | (_AT_RECURSIVE if recursive else 0)
    target = (ctypes.c_int(directory_fd), ctypes.c_char_p(path.encode()), ctypes.c_uint(flags))
    syscall(_MOUNT_SETATTR, *target, ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)))


def prctl(option: int, value: int, more: int = 0) -> None:
    zero = ctypes.c_ulong(0)
    _checked(_LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), ctypes.c_ulong(more), zero, zero), "prctl")


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` display; the kernel keeps 15 bytes."""
    text = ctypes.create_string_buffer(name.encode()[:15])
    prctl(PR_SET_NAME, ctypes.addressof(text))


def syscall(number: int, *arguments: object) -> int:
    return _checked(_LIBC.syscall(ctypes.c_long(number), *arguments), f"system call {number}")


def _checked(result: int, what: str) -> int:
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result
