"""The sandbox by Landlock: everything may be read and executed, only named places may be written.

Landlock says nothing about `chmod`, `chown`, timestamps, Unix sockets and signals, and here nothing about TCP. It
cannot be taken off again, and what a process starts is inside it too. Loaded by the keeper: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from kedge.warden import libc

#: The first version that holds `truncate`: with an older one every file of the user could still be emptied.
ABI_MIN = 3

#: Devices that programs expect to be able to write. Terminals are not among them: the user's own is one.
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")

# The numbers are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_WRITE_FILE = 1 << 1
_TRUNCATE = 1 << 14
_OF_FILES = _WRITE_FILE | _TRUNCATE
#: Remove (4, 5) and make (6 to 12) entries of directories; link and rename between directories (13).
_OF_DIRECTORIES = sum(1 << bit for bit in range(4, 14))
_WRITING = _OF_FILES | _OF_DIRECTORIES


class _RulesetAttributes(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def abi() -> int:
    """The version the kernel speaks; 0: none."""
    try:
        return libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION))
    except OSError:
        return 0


def _open(path: str) -> int:
    """Part by part, and through no link: one that a command has put there would open what it leads to."""
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


def restrict(writable: Iterable[str]) -> None:
    """From here on this process writes below `writable` only. A path that does not exist cannot be written, either."""
    attributes = _RulesetAttributes(_WRITING)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), size, ctypes.c_uint32(0))
    for path in (*writable, *DEVICES):
        try:
            place = _open(path)
        except OSError:
            continue
        is_directory = stat.S_ISDIR(os.fstat(place).st_mode)
        rule = _PathBeneath(_WRITING if is_directory else _OF_FILES, place)
        libc.syscall(_ADD_RULE, ctypes.c_int(ruleset), _RULE_PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0))
        os.close(place)
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)
