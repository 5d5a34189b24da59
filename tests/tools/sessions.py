"""Processes as the warden gives them: their exit is seen while children still hold their output, and the tree (here:
their session) is known and ended as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from kedge.core.approvals import Confinement
from kedge.tools.process_port import Process
from tests.polling import PAUSE_S
from tests.tools.contexts import READ_BYTES, PlainProcesses


def of_session(session: int) -> list[int]:
    """The pids of a session that are alive; zombies are not."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            state, _, _, sid = Path(f"/proc/{int(name)}/stat").read_text().rpartition(")")[2].split()[:4]
            if int(sid) == session and state not in "ZX":
                found.append(int(name))
    return found


class SessionProcess:
    #: Pids that are claimed to be left, for tests of what happens then.
    left: tuple[int, ...] = ()

    def __init__(self, argv: tuple[str, ...], cwd: Path, environment: Mapping[str, str]) -> None:
        self._output, end = os.pipe()
        self._popen = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=end,
            stderr=end,
            start_new_session=True,
        )
        os.close(end)
        self._exit = os.pidfd_open(self._popen.pid)

    @property
    def pid(self) -> int:
        return self._popen.pid

    async def read(self) -> bytes:
        await _readable(self._output)
        return os.read(self._output, READ_BYTES)

    async def wait(self) -> int:
        await _readable(self._exit)
        return self._popen.wait()

    async def alive(self) -> int:
        return len(of_session(self.pid))

    async def withhold(self) -> str:
        return ""

    async def end(self, grace_s: float) -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        kill_at = loop.time() + grace_s
        self._send(signal.SIGTERM)
        while of_session(self.pid):
            if loop.time() > kill_at:
                self._send(signal.SIGKILL)
            await asyncio.sleep(PAUSE_S)
        self._popen.wait()
        return self.left

    def close(self) -> None:
        self._send(signal.SIGKILL)
        self._popen.wait()
        os.close(self._output)
        os.close(self._exit)

    def _send(self, number: int) -> None:
        for pid in of_session(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


async def _readable(descriptor: int) -> None:
    """A copy of the descriptor is watched, so that several may wait for the same thing."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    copy = os.dup(descriptor)
    loop.add_reader(copy, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(copy)
        os.close(copy)


class SessionProcesses(PlainProcesses):
    def __init__(self) -> None:
        super().__init__()
        self.processes: list[SessionProcess] = []

    async def start(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        *,
        stdin: BinaryIO | None = None,
        confinement: Confinement = "configured",
    ) -> Process:
        assert stdin is None
        self.processes.append(SessionProcess(argv, cwd, self.environment))
        return self.processes[-1]

    def close(self) -> None:
        for process in self.processes:
            process.close()
