"""Protection of the server process against its tools, set up before anything else is loaded."""

from __future__ import annotations

import sys
from contextlib import suppress

from kedge.warden import libc, orphans


def harden() -> None:
    """Close this process to other processes of the same user, and adopt the orphans of tools.

    Tools run as the user. Without a pid namespace of their own they see this process in /proc, and API keys are in its
    environment and memory. The kernel closes /proc/PID/{environ,mem,fd,...} and ptrace of a process that is not
    "dumpable", except to privileged users: a tool that runs as root with CAP_SYS_PTRACE can still read them.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError):  # an old kernel
        libc.prctl(libc.PR_SET_DUMPABLE, 0)
    orphans.adopt()
