"""The measured processes: a server with its own data directory, and the scripted model that it calls.

Clients and readers run in other processes, so that the kernel's figures for the server process cover only the server.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

ROOT = Path(__file__).parent.parent
#: Limit for a process to start or exit; only a hang reaches it. Seconds.
WAIT_S = 20.0
_CPUCLOCK_SCHED = 2


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server, and its bearer token."""

    host: str
    port: int
    token: str

    @classmethod
    def of(cls, url: str, token: str = "") -> Address:
        host, _, port = url.partition("//")[2].partition("/")[0].rpartition(":")
        return cls(host, int(port), token)


def cpu_s(pid: int) -> float:
    """Return the user and system CPU time of all threads of a process.

    Uses its CPU clock (clock_getcpuclockid(3)): like utime + stime of /proc/PID/stat, but not rounded to 10 ms."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def first_line(output: IO[str] | None) -> str:
    assert output is not None
    line = output.readline().strip()
    if not line.startswith("listening on "):
        raise RuntimeError(f"a process did not start; its first line is {line!r}")
    return line.removeprefix("listening on ")


@contextlib.contextmanager
def process(module: str, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a Python module in a child process; terminate it on exit."""
    child = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def endpoint() -> Iterator[Address]:
    """Run the scripted model in its own process."""
    with process("kedge.testing.endpoint", "--port", "0") as child:
        yield Address.of(first_line(child.stdout))


class Server:
    """The configuration of a `kedge serve` process. `home` holds its data; `run` can start a second process on it.

    `config`: further tables of its configuration file."""

    def __init__(self, home: Path, model: Address, config: str = "") -> None:
        self.home = home
        self.workspace = home / "workspace"
        self.workspace.mkdir(parents=True, exist_ok=True)
        self.token = uuid.uuid4().hex
        #: Further options of `kedge serve`, and variables of its environment.
        self.options: tuple[str, ...] = ()
        self.variables: dict[str, str] = {}
        (home / "config.toml").write_text(
            'model = "local/fake-large"\n[providers.local]\n'
            f'base_url = "http://{model.host}:{model.port}/v1"\napi_key = "a-key"\nmodels = [{{ id = "fake-large" }}]\n'
            + config
        )

    @contextlib.contextmanager
    def run(self) -> Iterator[Running]:
        environment = {
            "KEDGE_DATA_DIR": str(self.home / "data"),
            "KEDGE_CONFIG": str(self.home / "config.toml"),
            "KEDGE_TOKEN": self.token,
            "HOME": str(self.home),
            **self.variables,
        }
        started, command = time.perf_counter(), ("serve", "--host", "tcp://127.0.0.1:0", *self.options)
        with process("kedge", *command, environment=environment) as child:
            address = Address.of(first_line(child.stdout), self.token)
            yield Running(self, child, address, started)


@dataclass(frozen=True, slots=True)
class Running:
    server: Server
    child: subprocess.Popen[str]
    address: Address
    #: `time.perf_counter()` before the start of the process.
    started: float

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    @property
    def rss_mib(self) -> float:
        return rss_mib(self.pid)

    @property
    def stalls(self) -> int:
        """The number of times its event loop was blocked for more than 100 ms."""
        url = f"http://{self.address.host}:{self.address.port}/v1/metrics"
        request = urllib.request.Request(url, headers={"authorization": f"Bearer {self.address.token}"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
            lines = reply.read().decode().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("kedge_loop_stalls_total "))

    def kill(self) -> None:
        """Send SIGKILL."""
        self.child.kill()
        self.child.wait()


@contextlib.contextmanager
def home() -> Iterator[Path]:
    # Set TMPDIR to measure another disk.
    with TemporaryDirectory(prefix="kedge-bench-") as directory:
        yield Path(directory)
