"""Real processes: a server and `kedge` commands."""

from __future__ import annotations

import errno
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kedge.testing import HostedEndpoint
from tests.client.forked_commands import can_fork, fork_server
from tests.stalls import assert_no_stall

#: Longer than any wait here; a hanging test fails with a clear error before pytest's timeout. Seconds.
WAIT_S = 30.0

CONFIG = """
model = "local/fake-large"

[providers.local]
type = "openai"
base_url = "{url}"
api_key = "secret-canary-key"
models = [{{ id = "fake-large" }}]
"""


@dataclass
class Home:
    """A user's directories: data, configuration and a workspace. The path is short, as a socket's must be."""

    root: Path
    endpoint: HostedEndpoint
    env: dict[str, str] = field(default_factory=dict)
    workspace: Path = Path()
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workspace = self.root / "work"
        for directory in (self.workspace, self.data):
            directory.mkdir()
        self.config.write_text(CONFIG.format(url=self.endpoint.url))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("KEDGE_", "XDG_"))}
        own = {"KEDGE_DATA_DIR": str(self.data), "KEDGE_CONFIG": str(self.config), "HOME": str(self.root)}
        self.env = inherited | own

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    def kedge(self, *arguments: str, stdin: str | int | None = "", cwd: Path | None = None) -> Finished:
        """Run the command to its end. By default standard input is empty and closed."""
        if can_fork(arguments, self.env, stdin):
            return Finished(*fork_server().run(arguments, self.env, cwd or self.workspace, stdin, WAIT_S))
        source = {"input": stdin} if isinstance(stdin, str) else {"stdin": stdin}
        done = subprocess.run(
            _command(*arguments),
            capture_output=True,
            env=self.env,
            cwd=cwd or self.workspace,
            text=True,
            timeout=WAIT_S,
            check=False,
            **source,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def start_kedge(self, *arguments: str, **options: object) -> subprocess.Popen[str]:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        command: subprocess.Popen[str] = subprocess.Popen(
            _command(*arguments),
            env=self.env,
            cwd=self.workspace,
            text=True,
            **streams,  # type: ignore[call-overload]
        )
        self.started.append(command)
        return command

    def close(self) -> None:
        """Kill the processes that the test left running."""
        for command in self.started:
            command.kill()
            command.wait()
            for stream in (command.stdin, command.stdout, command.stderr):
                if stream:
                    with suppress(BrokenPipeError):
                        stream.close()


def until(command: subprocess.Popen[str], text: str) -> str:
    """Return the output up to and including this text. Reads single bytes, so that the rest stays unread."""
    assert command.stdout
    read = b""
    while not read.endswith(text.encode()):
        byte = os.read(command.stdout.fileno(), 1)
        assert byte, f"it ended without {text!r}: {read!r}"
        read += byte
    return read.decode()


def has_reader(fifo: Path) -> bool:
    """Return whether a process has it open for reading."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return False
    return True


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def errors(self) -> str:
        """Standard error without the line that reports a slow start of the server, as on a busy machine."""
        return re.sub(r"kedge: waiting for the server \(pid \d+\), which is starting.*\n", "", self.err)


class Server:
    """A `kedge serve` process."""

    def __init__(self, home: Home, *arguments: str) -> None:
        self.home = home
        self.arguments = arguments
        self.socket = home.root / "k.sock"
        self.host = f"unix://{self.socket}"
        self.tcp = ""
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Server:
        hosts = ("--host", self.host, "--host", "tcp://127.0.0.1:0")
        with (self.home.root / "server.stderr").open("a") as log:
            self.process = subprocess.Popen(
                _command("serve", *hosts, *self.arguments),
                env=self.home.env,
                cwd=self.home.root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout
        for _ in range(2):
            line = self.process.stdout.readline().strip()
            assert line.startswith("listening on "), (line, self.log())
            if line.startswith("listening on tcp://"):
                self.tcp = line.removeprefix("listening on ")
        return self

    def stop(self, kind: int = signal.SIGTERM) -> None:
        if self.process is None:
            return
        process, self.process = self.process, None
        process.send_signal(kind)
        process.wait(WAIT_S)
        assert process.stdout
        process.stdout.close()
        assert_no_stall(self.log())

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def log(self) -> str:
        return (self.home.root / "server.stderr").read_text()


class Terminal:
    """A `kedge` process on its own pseudo-terminal."""

    def __init__(self, home: Home, *arguments: str, program: str = "") -> None:
        """`program`: Python code to run instead of kedge."""
        self._master, slave = pty.openpty()

        def own_terminal() -> None:
            os.setsid()
            os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first terminal a session leader opens becomes its own

        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments] if program else _command(*arguments),
            env=home.env | {"TERM": "xterm"},
            cwd=home.workspace,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=own_terminal,
            text=True,
        )
        home.started.append(self.process)
        os.close(slave)
        self._shown = ""

    def until(self, text: str) -> str:
        """Return the output up to and including this text, since the last call."""
        while text not in self._shown:
            piece = self._read()
            assert piece, f"it ended without {text!r}: {self._shown!r}"
            self._shown += piece
        shown, match, self._shown = self._shown.partition(text)
        return shown + match

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    @property
    def settings(self) -> list[Any]:
        """The terminal attributes, such as echo."""
        return termios.tcgetattr(self._master)

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code, and the output since the last call."""
        while piece := self._read():
            self._shown += piece
        os.close(self._master)
        return self.process.wait(WAIT_S), self._shown

    def _read(self) -> str:
        try:
            return os.read(self._master, 4096).decode("utf-8", "replace").replace("\r\n", "\n")
        except OSError:  # no process has it open any more
            return ""


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "kedge", *arguments]
