"""The capabilities that a sandboxed process of root keeps. Loaded by the keeper: standard library only.

Root without CAP_SYS_ADMIN cannot undo the mounts of the sandbox (Landlock refuses mount and umount, but Linux 6.18 lets
mount_setattr and open_tree pass), without CAP_MKNOD it cannot make a device node for the disk below them, and without
CAP_DAC_READ_SEARCH it cannot open files by handle, past every mount.
"""

from __future__ import annotations

import errno
import os

from kedge.warden import libc

#: The capabilities that programs of root need for files, users and sockets. All others are dropped, including those
#: of later kernels: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE,
#: NET_RAW, SYS_CHROOT.
KEPT = frozenset({0, 1, 3, 4, 5, 6, 7, 10, 13, 18})

#: The kernel's capability sets have 64 bits.
_CAPABILITIES = 64


def drop(*, must: bool) -> None:
    """Limit the capabilities to KEPT from the next exec on. Other users have none after an exec anyway.

    With `must`, raises OSError if this is not allowed, as in a container without CAP_SETPCAP.
    """
    if os.geteuid() != 0:
        return
    for capability in set(range(_CAPABILITIES)) - KEPT:
        try:
            libc.prctl(libc.PR_CAPBSET_DROP, capability)
        except OSError as error:
            # EINVAL: the kernel does not have this capability.
            if must and error.errno != errno.EINVAL:
                raise
