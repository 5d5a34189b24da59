"""A worker process that parses long command lines. The kernel ends it when it takes too long.

The grammar of bash takes quadratic time for some texts, holds the interpreter's lock meanwhile, and cannot be
interrupted: with tree-sitter 0.26 on Python 3.11 its progress callback crashes at the first call, and a read callback
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
from kedge.tools.file_threads import checkpoint

Commands = tuple[tuple[str | None, ...], ...]

#: Limit of processor time of a worker, its start included. A script of 100 kB takes half of it. Seconds.
PARSE_CPU_S_MAX = 1.0
#: Limit of its address space. A script of 100 kB takes 40 MB, hostile lines took a gigabyte. Bytes.
PARSE_MEMORY_BYTES_MAX = 256 << 20
#: Limit of workers at a time, for all Runs: each may take all of its memory. Items.
PARSE_PROCESSES_MAX = 4
#: Limit of the wait for a worker, for a machine without spare processor time. Seconds.
PARSE_WAIT_S_MAX = 20.0
#: Interval of the check whether the call was cancelled. Seconds.
CANCEL_CHECK_S = 0.25
#: The server and the user's terminal have priority.
NICENESS = 10

_workers = threading.BoundedSemaphore(PARSE_PROCESSES_MAX)

_CODE = "import sys; sys.path.append(sys.argv[1]); from kedge.tools.shell_parser import main; main()"


def parse_in_worker(text: str) -> Commands | None:
    """Return the commands of a line, or None if that exceeds the limits. Blocking. Raises Abandoned on cancellation."""
    while not _workers.acquire(timeout=CANCEL_CHECK_S):
        checkpoint()
    try:
        return _parse(text)
    finally:
        _workers.release()


def _parse(text: str) -> Commands | None:
    # A file: a pipe takes only 64 KiB without a reader.
    with tempfile.TemporaryFile() as file:
        file.write(msgspec.json.encode(text))
        file.seek(0)
        try:
            process = children.start_blocking(
                (sys.executable, "-I", "-X", "utf8", "-c", _CODE, str(Path(__file__).parents[2])),
                stdin=file,
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
    for _ in range(int(PARSE_WAIT_S_MAX / CANCEL_CHECK_S)):
        try:
            return process.communicate(timeout=CANCEL_CHECK_S)[0]
        except subprocess.TimeoutExpired:
            checkpoint()
    return None


def run_worker(parse: Callable[[str], Commands | None]) -> None:
    """In the worker: parse the line on standard input and print its commands."""
    signal.setitimer(signal.ITIMER_PROF, PARSE_CPU_S_MAX)  # the unhandled signal ends the process
    resource.setrlimit(resource.RLIMIT_AS, (PARSE_MEMORY_BYTES_MAX, PARSE_MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    commands = parse(msgspec.json.decode(sys.stdin.buffer.read(), type=str))
    if commands is None:
        sys.exit(1)
    sys.stdout.buffer.write(msgspec.json.encode(commands))
