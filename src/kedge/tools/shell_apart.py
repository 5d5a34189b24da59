"""Long command lines, read in a process of their own that the kernel ends when it takes too long.

The grammar of bash takes quadratic time for some texts, holds the interpreter's lock meanwhile, and cannot be
interrupted: the progress callback of its binding (tree-sitter 0.26) crashes Python 3.11, and so does a text that ends
early. A process can be killed, and may crash.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from kedge.tools.threads import checkpoint

Commands = tuple[tuple[str | None, ...], ...]

#: Processor time of the process, its start included. A script of 100 kB takes half of it. Seconds.
CPU_S_MAX = 1.0
#: Of its address space. A script of 100 kB takes 40 MB, hostile lines took a gigabyte. Bytes.
MEMORY_BYTES_MAX = 256 << 20
#: On a machine with no processor time to spare. Seconds.
WAIT_S_MAX = 20.0
#: How often is looked whether its call was cancelled. Seconds.
LOOK_S = 0.25
#: It gives way to the server, and to the terminal of its user.
NICENESS = 10

_CODE = "import sys; sys.path.append(sys.argv[1]); from kedge.tools.shell_words import answer; answer()"


def commands_apart(text: str) -> Commands | None:
    """The commands of a line. None: it cannot be read within the limits. Blocking; Abandoned when its call is."""
    try:
        process = subprocess.Popen(
            (sys.executable, "-I", "-X", "utf8", "-c", _CODE, str(Path(__file__).parents[2])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
        )
    except OSError:
        return None
    with process:
        try:
            output = _output(process, msgspec.json.encode(text))
        finally:
            process.kill()
    return msgspec.json.decode(output, type=Commands) if output and process.returncode == 0 else None


def _output(process: subprocess.Popen[bytes], text: bytes) -> bytes | None:
    given: bytes | None = text
    for _ in range(int(WAIT_S_MAX / LOOK_S)):
        try:
            return process.communicate(given, timeout=LOOK_S)[0]
        except subprocess.TimeoutExpired:
            given = None  # it goes on with what it was given first
            checkpoint()
    return None


def answer_apart(read: Callable[[str], Commands | None]) -> None:
    """In that process: read the line from the standard input, and write what it was asked for."""
    signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)  # nobody handles its signal: the process ends
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    commands = read(msgspec.json.decode(sys.stdin.buffer.read(), type=str))
    if commands is None:
        sys.exit(1)
    sys.stdout.buffer.write(msgspec.json.encode(commands))
