"""Long command lines, read in a process of their own that the kernel ends when it takes too long.

The grammar of bash takes quadratic time for some texts, holds the interpreter's lock meanwhile, and cannot be
interrupted: with tree-sitter 0.26 on Python 3.11, its progress callback crashes at the first call, and a read callback
that ends the text early crashed in a search over texts. A process can be killed, and may crash.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from kedge import children
from kedge.tools.tool_threads import checkpoint

Commands = tuple[tuple[str | None, ...], ...]

#: Processor time of the process, its start included. A script of 100 kB takes half of it. Seconds.
CPU_S_MAX = 1.0
#: Of its address space. A script of 100 kB takes 40 MB, hostile lines took a gigabyte. Bytes.
MEMORY_BYTES_MAX = 256 << 20
#: Of such processes at a time, for all Runs: they share the processors, and each may take all of its memory.
PROCESSES_MAX = 4
#: On a machine with no processor time to spare. Seconds.
WAIT_S_MAX = 20.0
#: How often is looked whether its call was cancelled. Seconds.
LOOK_S = 0.25
#: It gives way to the server, and to the terminal of its user.
NICENESS = 10

_room = threading.BoundedSemaphore(PROCESSES_MAX)

_CODE = "import sys; sys.path.append(sys.argv[1]); from kedge.tools.shell_parser import answer; answer()"


def commands_apart(text: str) -> Commands | None:
    """The commands of a line. None: it cannot be read within the limits. Blocking; Abandoned when its call is."""
    while not _room.acquire(timeout=LOOK_S):
        checkpoint()
    try:
        return _read_apart(text)
    finally:
        _room.release()


def _read_apart(text: str) -> Commands | None:
    # A file, since a pipe takes 64 KiB, and the rest would have to be written while waiting.
    with tempfile.TemporaryFile() as given:
        given.write(msgspec.json.encode(text))
        given.seek(0)
        try:
            process = children.start_blocking(
                (sys.executable, "-I", "-X", "utf8", "-c", _CODE, str(Path(__file__).parents[2])),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
            )
        except OSError:
            return None
    with process:
        try:
            output = _output(process)
        finally:
            process.kill()
    return msgspec.json.decode(output, type=Commands) if output and process.returncode == 0 else None


def _output(process: subprocess.Popen[bytes]) -> bytes | None:
    for _ in range(int(WAIT_S_MAX / LOOK_S)):
        try:
            return process.communicate(timeout=LOOK_S)[0]
        except subprocess.TimeoutExpired:
            checkpoint()
    return None


def answer_apart(read: Callable[[str], Commands | None]) -> None:
    """In that process: read the line from the standard input, and write what it was asked for."""
    signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)  # its signal is not handled: the process ends
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    commands = read(msgspec.json.decode(sys.stdin.buffer.read(), type=str))
    if commands is None:
        sys.exit(1)
    sys.stdout.buffer.write(msgspec.json.encode(commands))
