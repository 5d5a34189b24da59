"""Containment without a namespace: the overseer adopts orphans, and finds its descendants by walking /proc.

A process of the same user can kill the overseer and the keeper. The server then adopts its processes and kills them
(`orphans`); only a process that kills the server as well escapes. Loaded by the keeper: standard library only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NoReturn

from kedge.warden import libc
from kedge.warden.proc_fs import descendants, kill_all


class Subreaper:
    name = "subreaper"

    def begin(self, oversee: Callable[[], NoReturn], descriptors: list[int]) -> NoReturn:
        keeper = os.getppid()
        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
        # Not SIGKILL: the overseer must kill its tree. It also sees the end of its socket, unless it is stopped.
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGCONT)
        if os.getppid() != keeper:
            os._exit(1)  # the keeper died before the line above; nothing has been started
        oversee()

    def members(self) -> list[int]:
        return list(descendants(os.getpid()))

    def kill(self) -> None:
        kill_all(lambda: descendants(os.getpid()))
