"""The sandbox by Landlock: everything may be read and executed, only named places may be written.

Landlock does not see `chmod`, `chown`, times, extended attributes and Unix sockets in the file system: `mounts` holds
those where the tree has a mount namespace. Abstract Unix sockets and signals are held from ABI 6 on. TCP is left open.
A process cannot leave it again, and what it starts is inside, too. Loaded by the keeper: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from kedge.warden import libc
from kedge.warden.sandbox_paths import DEVICES, open_path

#: The first version that holds `truncate`: with an older one every file of the user could still be emptied.
ABI_MIN = 3

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
#: The first version that holds ioctl on devices. A terminal that is open for reading takes input and settings by ioctl.
IOCTL_ABI_MIN = 5
_IOCTL_DEVICE = 1 << 15
#: No program needs a device node in a workspace, and root could write to the disk through one.
_MAKE_DEVICES = 1 << 6 | 1 << 11

#: The first version with scopes: abstract Unix sockets and signals do not leave the sandbox.
SCOPES_ABI_MIN = 6
_SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0
_SCOPE_SIGNAL = 1 << 1


class _RulesetAttributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("handled_access_fs", "handled_access_net", "scoped"))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def abi() -> int:
    """The version the kernel speaks; 0: none."""
    try:
        return libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION))
    except OSError:
        return 0


def restrict(writable: Iterable[str]) -> None:
    """From here on this process writes below `writable` only. A path that does not exist cannot be written, either."""
    scoped = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if abi() >= SCOPES_ABI_MIN else 0
    ioctl = _IOCTL_DEVICE if abi() >= IOCTL_ABI_MIN else 0
    attributes = _RulesetAttributes(_WRITING | ioctl, 0, scoped)
    # An older kernel accepts a structure that is longer than its own if the rest is zero.
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), size, ctypes.c_uint32(0))
    for path in (*writable, *DEVICES):
        try:
            place = open_path(path)
        except OSError:
            continue
        is_directory = stat.S_ISDIR(os.fstat(place).st_mode)
        access = _WRITING & ~_MAKE_DEVICES if is_directory else _OF_FILES
        rule = _PathBeneath(access | ioctl, place)
        libc.syscall(_ADD_RULE, ctypes.c_int(ruleset), _RULE_PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0))
        os.close(place)
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)
