"""What a server does for its own safety before it does anything else."""

from __future__ import annotations

import sys
from contextlib import suppress

from kedge.warden import libc, orphans


def harden() -> None:
    """Close this process to others of the same user, and adopt what tools leave behind.

    Tools run as the user. Where they have no pid namespace of their own they see this process in /proc, and API keys
    are in its environment and memory. The kernel closes /proc/PID/{environ,mem,fd,...} and ptrace of a process that is
    not "dumpable", except to privileged users: a tool that runs as root with CAP_SYS_PTRACE can still read them.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError):  # a kernel that does not know it
        libc.prctl(libc.PR_SET_DUMPABLE, 0)
    orphans.adopt()
