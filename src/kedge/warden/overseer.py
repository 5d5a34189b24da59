"""The overseer: one process per tree that starts the tool, reaps, and kills the tree on request or without a keeper.

Loaded by the keeper: standard library only.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, Protocol

from kedge.warden import libc
from kedge.warden.child import exec_tool
from kedge.warden.keeper_protocol import RECEIVE_BYTES, KeeperMessage, MessageReader, encode
from kedge.warden.proc_fs import is_zombie, send_signal

#: First and longest delay between attempts to kill the rest of a tree. Seconds.
RETRY_S_MIN = 0.002
RETRY_S_MAX = 0.1


class Containment(Protocol):
    """A mechanism that contains a process tree."""

    @property
    def name(self) -> str: ...

    def begin(self, oversee: Callable[[], NoReturn], descriptors: list[int]) -> NoReturn:
        """Make this process, or a child of it, the overseer. Only the overseer keeps the descriptors."""

    def members(self) -> list[int]:
        """Return the pids of the tree in the overseer's pid namespace: with zombies, without the overseer."""

    def kill(self) -> None:
        """Send SIGKILL to all known processes of the tree. May need repetition; may end the overseer, too."""


def begin(containment: Containment, control: socket.socket, order: KeeperMessage, streams: list[int]) -> NoReturn:
    """Run the overseer in a new fork of the keeper, which has only these descriptors open."""
    # The /proc of the server: inside a namespace there is another one.
    outside = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)

    def oversee() -> NoReturn:
        Overseer(containment, control, order, streams, outside).run()

    try:
        containment.begin(oversee, [control.fileno(), outside, *streams])
    except OSError as error:
        with suppress(OSError):
            control.sendall(encode({"failed": order["run"], "error": f"no {containment.name}: {error.strerror}"}))
    finally:
        os._exit(1)


class Overseer:
    def __init__(
        self, containment: Containment, control: socket.socket, order: KeeperMessage, streams: list[int], outside: int
    ) -> None:
        self._containment = containment
        self._control = control
        self._id = order["run"]
        self._lines = MessageReader()
        self._exec_report = b""
        self._exec_done = False
        self._started = False
        self._exit: tuple[int | None, int | None] | None = None
        self._kill_at: float | None = None
        self._retry_s = RETRY_S_MIN
        self._terminated: set[int] = set()
        self._poll = select.poll()
        self._parent = os.getppid()
        self._pid_outside = int(os.readlink("self", dir_fd=outside))
        self._wake = wake_on_signals()
        libc.name_process("kedge-overseer")
        # Protects against debuggers inside the tree, and against reading /proc/1/environ.
        libc.prctl(libc.PR_SET_DUMPABLE, 0)
        self._exec, report = os.pipe()
        self._main = os.fork()
        if self._main == 0:
            exec_tool(order, streams, report, outside)
        for descriptor in (report, outside, *streams):
            os.close(descriptor)

    def run(self) -> NoReturn:
        for descriptor in (self._control.fileno(), self._wake, self._exec):
            self._poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll(self._timeout_ms())}
            if self._wake in ready:
                os.read(self._wake, RECEIVE_BYTES)
            if self._exec in ready:
                self._read_exec_report()
            if self._control.fileno() in ready:
                self._receive()
            if os.getppid() != self._parent:
                self._kill_at = time.monotonic()
            self._reap()
            if self._kill_at is None:
                continue
            if time.monotonic() < self._kill_at:
                self._terminate()
            else:
                self._containment.kill()
                self._reap()
                self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)

    def _timeout_ms(self) -> float | None:
        if self._kill_at is None:
            return None
        return 1000 * max(self._kill_at - time.monotonic(), self._retry_s)

    def _receive(self) -> None:
        try:
            data = self._control.recv(RECEIVE_BYTES)
        except OSError:
            data = b""  # the keeper died with unread messages from us
        if not data:  # the keeper is dead or dying
            self._poll.unregister(self._control)
            self._kill_at = time.monotonic()
        for line in self._lines.feed(data):
            if "end" in line:
                self._end(line["grace_s"])
            elif "count" in line:
                alive = sum(not is_zombie(pid) for pid in self._containment.members())
                self._report({"counted": self._id, "tag": line["tag"], "alive": alive})

    def _end(self, grace_s: float) -> None:
        kill_at = time.monotonic() + grace_s
        self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)

    def _terminate(self) -> None:
        """Send SIGTERM once to each process. Processes started meanwhile receive it after the next event."""
        for pid in self._containment.members():
            if pid not in self._terminated:
                self._terminated.add(pid)
                send_signal(pid, signal.SIGTERM)
                send_signal(pid, signal.SIGCONT)  # a stopped process must continue to handle it

    def _read_exec_report(self) -> None:
        data = os.read(self._exec, RECEIVE_BYTES)
        self._exec_report += data
        if data:
            return
        self._exec_done = True
        self._poll.unregister(self._exec)
        pid, _, error = self._exec_report.partition(b"\n")
        if error or not pid:
            self._report({"failed": self._id, "error": error.decode(errors="replace") or "killed before it began"})
            return
        self._started = True
        self._report({"started": self._id, "pid": int(pid), "overseer": self._pid_outside})
        self._report_exit()

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._main:
                    code = os.waitstatus_to_exitcode(status)
                    self._exit = (code, None) if code >= 0 else (None, -code)
                    self._report_exit()
        # Without children there are no descendants: orphans become our children. Read the rest of exec's report.
        while not self._exec_done:
            self._read_exec_report()
        os._exit(0)

    def _report_exit(self) -> None:
        if self._started and self._exit is not None:
            code, number = self._exit
            self._exit = None
            self._report({"exited": self._id, "code": code, "signal": number})

    def _report(self, line: KeeperMessage) -> None:
        with suppress(OSError):  # the keeper is gone; `_receive` sees the end of its socket
            self._control.sendall(encode(line))


def wake_on_signals() -> int:
    """Return a descriptor that becomes readable when a child or the parent exits. The exit of the parent is signalled
    with SIGCONT, which also wakes a stopped process."""
    wake, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGCONT):
        signal.signal(number, lambda *_: None)
    return wake
