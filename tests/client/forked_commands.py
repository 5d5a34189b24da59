"""`kedge` commands in processes that are forked from one that has loaded the modules.

A test run has some six hundred short commands. Each is a process with its own environment, directory and handles. Only
the start of the interpreter and its imports, four fifths of the time of such a command, are shared.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

#: A command and its environment. Bytes.
REQUEST_BYTES_MAX = 1 << 20
#: Text that a pipe takes without a reader. Bytes.
PIPE_BYTES = 60_000
#: Variables that the interpreter or the C library reads at its start.
_AT_START = ("PYTHON", "LC_", "LANG", "COVERAGE_", "LD_")


class ForkServer:
    """Starts commands. One for each process that runs tests."""

    def __init__(self) -> None:
        directory = tempfile.mkdtemp(prefix="kedge-fork-")
        self._address = f"{directory}/s"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import serve; serve({listener.fileno()})"],
                pass_fds=[listener.fileno()],
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )
        atexit.register(self._stop, directory)

    def _stop(self, directory: str) -> None:
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            os.unlink(self._address)
            os.rmdir(directory)

    def run(
        self, arguments: tuple[str, ...], env: Mapping[str, str], cwd: Path, stdin: str | int | None, timeout_s: float
    ) -> tuple[int, str, str]:
        """Return the exit code (or minus the signal), standard output and standard error."""
        with contextlib.ExitStack() as stack:
            outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
            source = 0 if stdin is None else stdin
            if isinstance(source, str):
                source, writer = os.pipe()
                stack.callback(os.close, source)
                os.write(writer, stdin.encode() if isinstance(stdin, str) else b"")
                os.close(writer)
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(timeout_s)
            connection.connect(self._address)
            request = json.dumps([arguments, dict(env), str(cwd)]).encode()
            socket.send_fds(connection, [request], [source, *(output.fileno() for output in outputs)])
            connection.shutdown(socket.SHUT_WR)
            reply = connection.recv(64)
            assert reply, "the command's attendant was lost"
            for output in outputs:
                output.seek(0)
            texts = [output.read().decode().replace("\r\n", "\n") for output in outputs]
            return int(reply), texts[0], texts[1]


def can_fork(arguments: tuple[str, ...], env: Mapping[str, str], stdin: str | int | None) -> bool:
    """Return whether a forked command behaves as a new one."""
    is_short = len(stdin) < PIPE_BYTES // 4 if isinstance(stdin, str) else stdin is None or stdin >= 0
    own = {name: value for name, value in os.environ.items() if name.startswith(_AT_START)}
    other = {name: value for name, value in env.items() if name.startswith(_AT_START)}
    return is_short and own == other and not set(arguments) & {"serve", "tui"} and "COVERAGE_PROCESS_START" not in env


@cache
def _of_process(pid: int) -> ForkServer:
    return ForkServer()


_lock = threading.Lock()


def fork_server() -> ForkServer:
    with _lock:
        return _of_process(os.getpid())


def serve(handle: int) -> None:
    """Entry point of the process from which commands are forked."""
    from kedge.cli import main as cli

    for module in sorted(set(cli.COMMANDS.values()) - {cli.COMMANDS["serve"], cli.COMMANDS["tui"]}):
        import_module(module)
    gc.freeze()
    listener = socket.socket(fileno=handle)
    listener.setblocking(True)
    while True:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            _attend(connection)
        connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _attend(connection: socket.socket) -> None:
    """Run one command in a child process, and send its exit code."""
    request, handles, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 3)
    while more := connection.recv(REQUEST_BYTES_MAX):
        request += more
    arguments, env, cwd = json.loads(request)
    command = os.fork()
    if not command:
        connection.close()
        _become(handles, arguments, env, cwd)
    _, status = os.waitpid(command, 0)
    connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(handles: list[int], arguments: list[str], env: dict[str, str], cwd: str) -> None:
    from kedge.cli.main import main

    for target, handle in enumerate(handles):
        os.dup2(handle, target)
        os.close(handle)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ["kedge", *arguments]
    main()
