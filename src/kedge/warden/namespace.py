"""Containment by a pid namespace: the overseer is its init, and when init exits, the kernel kills everything inside.

Processes inside cannot see, signal or stop anything outside, nor their overseer. Loaded by the keeper: standard
library only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NoReturn

from kedge.warden import libc
from kedge.warden.proc_fs import all_pids


class Namespace:
    name = "pid namespace"

    def __init__(self, own_users: bool) -> None:
        #: Without privileges a namespace requires a user namespace of our own.
        self.own_users = own_users

    def begin(self, oversee: Callable[[], NoReturn], descriptors: list[int]) -> NoReturn:
        """Become the waiter outside the namespace, with the overseer as its child inside."""
        keeper = os.getppid()
        user, group = os.geteuid(), os.getegid()
        libc.unshare(libc.CLONE_NEWPID | libc.CLONE_NEWNS | (libc.CLONE_NEWUSER if self.own_users else 0))
        if self.own_users:
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{user} {user} 1")
            _write("/proc/self/gid_map", f"{group} {group} 1")
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)  # the keeper died before the line above
        init = os.fork()
        if init == 0:
            # If the waiter died before this line, the keeper notices and closes the overseer's socket.
            libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
            _fresh_proc()
            oversee()
        for descriptor in descriptors:
            os.close(descriptor)
        # Reaped by the keeper, which inherits it: until then its pid is not reused.
        os.waitid(os.P_PID, init, os.WEXITED | os.WNOWAIT)
        os._exit(0)

    def members(self) -> list[int]:
        return [pid for pid in all_pids() if pid != os.getpid()]

    def kill(self) -> None:
        os._exit(0)


def detect(own_users: bool) -> Namespace | None:
    """Return a namespace that works on this machine, detected by creating one. `own_users`: only without privileges."""
    candidates = [Namespace(own_users=True)] if own_users else [Namespace(own_users=False), Namespace(own_users=True)]
    return next((candidate for candidate in candidates if _works(candidate)), None)


def _works(namespace: Namespace) -> bool:
    report, end = os.pipe()
    trial = os.fork()
    if trial == 0:

        def prove() -> NoReturn:
            if os.getpid() == 1 and os.readlink("/proc/self") == "1":
                os.write(end, b"+")
            os._exit(0)

        try:
            namespace.begin(prove, [end])
        finally:
            os._exit(1)
    os.close(end)
    os.waitpid(trial, 0)
    proven = os.read(report, 1) == b"+"
    os.close(report)
    return proven


def _fresh_proc() -> None:
    # Slave: later mounts outside appear inside, and not vice versa.
    libc.mount("none", "/", None, libc.MS_REC | libc.MS_SLAVE)
    libc.mount("proc", "/proc", "proc", libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
