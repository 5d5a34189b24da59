"""Holding a tree without a namespace: orphans come to the overseer, and what is below it is found by walking /proc.

A process of the same user can kill the overseer and the keeper. Then what it has started comes to the server, which
kills it (`orphans`); only one that kills the server as well escapes. Loaded by the keeper: standard library only.
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
        # Not SIGKILL: the overseer is to take its tree along. It also sees the end of its socket, unless it is stopped.
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGCONT)
        if os.getppid() != keeper:
            os._exit(1)  # the keeper died before the line above; nothing is started yet
        oversee()

    def members(self) -> list[int]:
        return list(descendants(os.getpid()))

    def kill(self) -> None:
        kill_all(lambda: descendants(os.getpid()))
