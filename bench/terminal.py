"""The terminal interface in a pseudo-terminal: time to start, and cost while idle and while text streams.

The baseline, measured alternately, is an app of the same library that shows one line of text.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.report import Line, median
from bench.server import ROOT, WAIT_S, Running, cpu_s, rss_mib
from bench.setting import Setting

ROWS, COLUMNS = 40, 120
#: Duration of the idle measurement. Seconds.
IDLE_S = 10.0
#: Words of one answer, and the pause before each: about as fast as a user skims. Items, milliseconds.
WORDS, PAUSE_MS = 400, 10

_BARE = """
from textual.app import App
from textual.widgets import Static

class Bare(App):
    def compose(self):
        yield Static("enter: send")

Bare().run()
"""


@dataclass(slots=True)
class Terminal:
    child: subprocess.Popen[bytes]
    screen: int
    started: float
    #: All bytes written to the terminal.
    output: bytearray = field(default_factory=bytearray)
    at: float = 0.0

    def read(self) -> None:
        with contextlib.suppress(OSError):
            self.output += os.read(self.screen, 65536)
        self.at = time.perf_counter()

    async def shows(self, text: str, since: int = 0) -> float:
        """Return the time at which the text appeared after the first `since` bytes of output."""
        deadline = time.perf_counter() + WAIT_S
        while text.encode() not in self.output[since:]:
            if time.perf_counter() > deadline:
                raise RuntimeError(
                    f"the terminal did not show {text!r}; its output ends with {bytes(self.output[-2000:])!r}"
                )
            await asyncio.sleep(0.002)
        return self.at

    def type(self, keys: str) -> None:
        os.write(self.screen, keys.encode())


@contextlib.asynccontextmanager
async def terminal(arguments: list[str], environment: dict[str, str], cwd: Path) -> AsyncIterator[Terminal]:
    screen, terminal_side = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    started = time.perf_counter()
    child = subprocess.Popen(  # noqa: ASYNC220 -- no other task is running
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color", **environment},
        stdin=terminal_side,
        stdout=terminal_side,
        stderr=terminal_side,
        start_new_session=True,
    )
    os.close(terminal_side)
    opened = Terminal(child, screen, started)
    asyncio.get_running_loop().add_reader(screen, opened.read)
    try:
        yield opened
    finally:
        asyncio.get_running_loop().remove_reader(screen)
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(WAIT_S)
        child.kill()
        child.wait()
        os.close(screen)


def _kedge(running: Running) -> tuple[list[str], dict[str, str], Path]:
    address, server = running.address, running.server
    arguments = ["-m", "kedge", "tui", "--host", f"tcp://{address.host}:{address.port}"]
    environment = {"KEDGE_TOKEN": address.token, "KEDGE_DATA_DIR": str(server.home / "tui"), "HOME": str(server.home)}
    return arguments, environment, server.workspace


async def terminal_costs(setting: Setting) -> list[Line]:
    kedge, bare_app = _kedge(setting.running), (["-c", _BARE], dict[str, str](), setting.running.server.workspace)
    first_s: list[float] = []
    ready_s: list[float] = []
    bare_s: list[float] = []
    for _ in range(setting.count(5, 2)):
        async with terminal(*kedge) as own:
            first_s.append(await own.shows("enter: send") - own.started)
            ready_s.append(await own.shows("local/fake-large") - own.started)
        async with terminal(*bare_app) as bare:
            bare_s.append(await bare.shows("enter: send") - bare.started)
    async with terminal(*kedge) as own, terminal(*bare_app) as bare:
        await own.shows("local/fake-large")
        await bare.shows("enter: send")
        await asyncio.sleep(1.0)  # let the work after the first frame finish
        memory, bare_memory = rss_mib(own.child.pid), rss_mib(bare.child.pid)
        own_idle, bare_idle = cpu_s(own.child.pid), cpu_s(bare.child.pid)
        written = len(own.output)
        await asyncio.sleep(IDLE_S)
        own_idle, bare_idle = cpu_s(own.child.pid) - own_idle, cpu_s(bare.child.pid) - bare_idle
        written = len(own.output) - written
        streamed = cpu_s(own.child.pid)
        own.type(f"script: pause {PAUSE_MS} | words {WORDS}")
        own.type("\r")
        await own.shows(f"w{WORDS - 1}")
        streamed = cpu_s(own.child.pid) - streamed
    start, bare_start = median(ready_s), median(bare_s)
    return [
        Line(
            "kedge to the session on screen",
            start,
            "s",
            f"first frame {median(first_s):.2f} s; bare app: {bare_start:.2f} s (x{start / bare_start:.1f})",
        ),
        Line("terminal, memory", memory, "MiB", f"bare app: {bare_memory:.0f} MiB (x{memory / bare_memory:.1f})"),
        Line(
            "terminal idle, CPU",
            100 * own_idle / IDLE_S,
            "%",
            f"of one core, in {IDLE_S:.0f} s; bare app: {100 * bare_idle / IDLE_S:.2f} %; bytes written: {written}",
        ),
        Line(
            "terminal, CPU per 1,000 deltas",
            1000 * streamed / WORDS,
            "s",
            f"{1000 / PAUSE_MS:.0f} words/s, {ROWS} lines of {COLUMNS} columns",
        ),
    ]
