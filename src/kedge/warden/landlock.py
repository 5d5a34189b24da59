"""The Landlock sandbox: everything can be read and executed, only the given paths can be written.

Landlock does not restrict `chmod`, `chown`, times, extended attributes and Unix sockets in the file system: `mounts`
does, if the tree has a mount namespace. Abstract Unix sockets and signals are restricted from ABI 6 on. TCP is not
restricted. A process cannot leave the sandbox, and its children inherit it.

Loaded by the keeper: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from kedge.warden import libc
from kedge.warden.sandbox_paths import DEVICES, open_path

#: The first version that restricts `truncate`: with an older one all files of the user could be emptied.
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
#: The first version that restricts ioctl on devices: ioctl inserts input into a terminal that is open for reading.
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
    """Return the ABI version of the kernel; 0 if it has no Landlock."""
    try:
        return libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION))
    except OSError:
        return 0


def restrict(writable: Iterable[str]) -> None:
    """Restrict writes of this process to paths below `writable`. Paths that do not exist are skipped."""
    scoped = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if abi() >= SCOPES_ABI_MIN else 0
    ioctl = _IOCTL_DEVICE if abi() >= IOCTL_ABI_MIN else 0
    attributes = _RulesetAttributes(_WRITING | ioctl, 0, scoped)
    # An older kernel accepts a structure that is longer than its own if the rest is zero.
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), size, ctypes.c_uint32(0))
    for path in (*writable, *DEVICES):
        try:
            path_fd = open_path(path)
        except OSError:
            continue
        is_directory = stat.S_ISDIR(os.fstat(path_fd).st_mode)
        access = _WRITING & ~_MAKE_DEVICES if is_directory else _OF_FILES
        rule = _PathBeneath(access | ioctl, path_fd)
        libc.syscall(_ADD_RULE, ctypes.c_int(ruleset), _RULE_PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0))
        os.close(path_fd)
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)
