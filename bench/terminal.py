"""The terminal interface in a terminal of its own: until it can be used, what it costs at rest and while text streams.

Beside it, in turns, an app of the same library that shows one line: what no app of it can do without.
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
#: How long nothing is done to see what that costs. Seconds.
REST_S = 10.0
#: Words of one answer, and the pause before each: as quick as people read at a glance. Items, milliseconds.
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
    #: All that was written to the terminal.
    seen: bytearray = field(default_factory=bytearray)
    at: float = 0.0

    def read(self) -> None:
        with contextlib.suppress(OSError):
            self.seen += os.read(self.screen, 65536)
        self.at = time.perf_counter()

    async def shows(self, text: str, since: int = 0) -> float:
        """When it was first written, behind so many bytes."""
        deadline = time.perf_counter() + WAIT_S
        while text.encode() not in self.seen[since:]:
            if time.perf_counter() > deadline:
                raise RuntimeError(f"the terminal never showed {text!r}, but {bytes(self.seen[-2000:])!r}")
            await asyncio.sleep(0.002)
        return self.at

    def type(self, keys: str) -> None:
        os.write(self.screen, keys.encode())


@contextlib.asynccontextmanager
async def terminal(arguments: list[str], environment: dict[str, str], cwd: Path) -> AsyncIterator[Terminal]:
    screen, inside = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    started = time.perf_counter()
    child = subprocess.Popen(  # noqa: ASYNC220 -- nothing else is going on
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color", **environment},
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    )
    os.close(inside)
    made = Terminal(child, screen, started)
    asyncio.get_running_loop().add_reader(screen, made.read)
    try:
        yield made
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
        await asyncio.sleep(1.0)  # what follows the first picture is not rest
        memory, bare_memory = rss_mib(own.child.pid), rss_mib(bare.child.pid)
        own_rest, bare_rest = cpu_s(own.child.pid), cpu_s(bare.child.pid)
        written = len(own.seen)
        await asyncio.sleep(REST_S)
        own_rest, bare_rest = cpu_s(own.child.pid) - own_rest, cpu_s(bare.child.pid) - bare_rest
        written = len(own.seen) - written
        streamed = cpu_s(own.child.pid)
        own.type(f"script: pause {PAUSE_MS} | words {WORDS}")
        own.type("\r")
        await own.shows(f"w{WORDS - 1}")
        streamed = cpu_s(own.child.pid) - streamed
    start, bare_start = median(ready_s), median(bare_s)
    return [
        Line(
            "kedge to the session on the screen",
            start,
            "s",
            f"the first picture {median(first_s):.2f} s; a bare app: {bare_start:.2f} s (x{start / bare_start:.1f})",
        ),
        Line("terminal, memory", memory, "MiB", f"a bare app: {bare_memory:.0f} MiB (x{memory / bare_memory:.1f})"),
        Line(
            "terminal at rest, CPU",
            100 * own_rest / REST_S,
            "%",
            f"of one core, in {REST_S:.0f} s; a bare app: {100 * bare_rest / REST_S:.2f} %; bytes written: {written}",
        ),
        Line(
            "terminal, CPU per 1,000 deltas",
            1000 * streamed / WORDS,
            "s",
            f"{1000 / PAUSE_MS:.0f} words/s, {ROWS} lines of {COLUMNS} columns",
        ),
    ]
