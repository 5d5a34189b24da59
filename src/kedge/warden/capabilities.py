"""The capabilities that a sandboxed process of root keeps. Loaded by the keeper: standard library only.

Root without CAP_SYS_ADMIN cannot undo the mounts of the sandbox (Landlock refuses mount and umount, but Linux 6.18 lets
mount_setattr and open_tree pass), without CAP_MKNOD it cannot make a device node for the disk below them, and without
CAP_DAC_READ_SEARCH it cannot open files by handle, past every mount.
"""

from __future__ import annotations

import errno
import os

from kedge.warden import libc

#: What programs of root need to deal with files, users and sockets. A capability that is not listed here is dropped, so
#: one that a later kernel adds is, too: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE,
#: NET_RAW, SYS_CHROOT.
KEPT = frozenset({0, 1, 3, 4, 5, 6, 7, 10, 13, 18})

#: The kernel has 64 bits for them.
_CAPABILITIES = 64


def drop(*, must: bool) -> None:
    """Keep only KEPT from the next exec on. Other users have no capability after an exec anyway.

    `must`: OSError if this is not allowed, as in a container without CAP_SETPCAP.
    """
    if os.geteuid() != 0:
        return
    for capability in set(range(_CAPABILITIES)) - KEPT:
        try:
            libc.prctl(libc.PR_CAPBSET_DROP, capability)
        except OSError as error:
            # EINVAL: a capability this kernel does not know.
            if must and error.errno != errno.EINVAL:
                raise
