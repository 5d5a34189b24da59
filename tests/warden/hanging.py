"""A keeper that hangs: stopped by a debugger, so that SIGCONT does not continue it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

#: Stops a process and holds it until it is killed. A tracer has to reap the process before its parent can.
TRACER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
for request in (0x4206, 0x4207):  # PTRACE_SEIZE, PTRACE_INTERRUPT
    if libc.ptrace(request, pid, None, None) == -1:
        sys.exit(os.strerror(ctypes.get_errno()))
_, status = os.waitpid(pid, 0x40000000)  # __WALL
print("stopped", flush=True)
while os.WIFSTOPPED(status):
    _, status = os.waitpid(pid, 0x40000000)
"""


@contextmanager
def hung(pid: int) -> Iterator[None]:
    """Let a process hang. Signals have no effect on it, except for SIGKILL."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", TRACER, str(pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as tracer:
        assert tracer.stdout is not None
        assert tracer.stderr is not None
        try:
            if tracer.stdout.readline() != "stopped\n":
                pytest.skip(f"this machine does not allow a debugger: {tracer.stderr.read().strip()}")
            yield
        finally:
            tracer.kill()
