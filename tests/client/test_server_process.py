"""Finding and stopping the server by the lock of its data directory, with real processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kedge import paths
from kedge.client.client import Client
from kedge.client.server_process import find_process, lock_owner
from tests.client.fixtures import server_pids
from tests.client.process import WAIT_S, Home, until


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        os.sched_yield()


def started(home: Home) -> int:
    """Start a server with one command, and return its pid."""
    assert home.kedge("run", "hello").code == 0
    (pid,) = server_pids(home)
    return pid


def with_live_run(home: Home, key: str) -> tuple[int, subprocess.Popen[str], str]:
    """Start a server with a Run that holds until `key` is released. Return its pid, the command and the run id."""
    command = home.start_kedge("run", "--output", "stream-json", f"script: say on | hold {key} | say last")
    assert command.stdout
    run_id = json.loads(command.stdout.readline())["payload"]["payload"]["run_id"]
    (pid,) = server_pids(home)
    return pid, command, run_id


@pytest.fixture
def slow_start(in_home: Home) -> Iterator[int]:
    """A server that is stopped (SIGSTOP) right after it took the lock of the data directory."""
    code = (
        "import os, signal\n"
        "from kedge.store.data_directory import DataDirectory\n"
        "claim = DataDirectory.claim\n"
        "def claim_and_pause(self):\n"
        "    claim(self)\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "DataDirectory.claim = claim_and_pause\n"
        "from kedge.cli.main import main\n"
        "main(['serve'])\n"
    )
    server = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        env=in_home.env,
        cwd=in_home.data,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
    yield server.pid
    server.kill()
    server.wait()


def test_client_that_checks_the_lock_does_not_disturb_a_start(in_home: Home) -> None:
    """A server that starts while a client checks the lock waits for an instant."""
    paths.lock_file().touch()
    handle = os.open(paths.lock_file(), os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    command = in_home.start_kedge("serve")
    # The server cannot be observed while it waits for the lock. It starts if the lock is released within 0.5 s of that.
    wait_for(lambda: "kedge.lock" in open_files(command.pid))
    os.close(handle)
    assert "listening on" in until(command, "\n")
    assert lock_owner() == (True, command.pid)


def open_files(pid: int) -> str:
    try:
        return " ".join(os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return ""


@pytest.mark.found(
    "fault 6",
    "while a server was starting, `kedge run` failed after 15 s and `kedge stop` reported that no server was running; "
    "commands now go by the lock of the data directory, and wait for that server or stop it",
)
def test_run_waits_for_a_server_that_is_starting(in_home: Home, slow_start: int) -> None:
    command = in_home.start_kedge("run", "hello")
    assert command.stderr
    assert command.stderr.readline() == (
        f"kedge: waiting for the server (pid {slow_start}), which is starting or stopping ...\n"
    )
    doctor = in_home.kedge("doctor")
    assert f"warn  server: The server (pid {slow_start}) does not listen on" in doctor.out
    os.kill(slow_start, signal.SIGCONT)
    assert command.communicate(timeout=WAIT_S)[0] == "You said: hello\n"
    assert command.returncode == 0
    assert lock_owner() == (True, slow_start), "the command started no other server"


@pytest.mark.parametrize("force", [False, True])
def test_stop_ends_a_server_that_is_starting(in_home: Home, slow_start: int, force: bool) -> None:
    if force:  # it does not react to SIGTERM
        done = in_home.kedge("stop", "--force", "--wait", "0.5")
        assert (done.code, done.out) == (0, "killed, since it had not exited after 0.5 s\n")
    else:
        refused = in_home.kedge("stop", "--wait", "0.5")
        assert (refused.code, refused.out) == (1, "")
        assert f"(pid {slow_start}) has not exited after 0.5 s. Kill it with: kedge stop --force" in refused.err
        os.kill(slow_start, signal.SIGCONT)
        done = in_home.kedge("stop")
        assert (done.code, done.out) in [(0, "stopped\n"), (0, "no server is running\n")]
    assert lock_owner() == (False, None)
    assert in_home.kedge("stop").out == "no server is running\n"


async def test_hanging_server_is_reported_and_killed(in_home: Home) -> None:
    pid = started(in_home)
    os.kill(pid, signal.SIGSTOP)
    try:
        async with Client() as client:
            server = await find_process(client)
        assert (server.state, server.pid) == ("hanging", pid)
        done = in_home.kedge("stop", "--force", "--wait", "0.1")
        assert (done.code, done.out) == (0, "killed, since it had not exited after 0.1 s\n")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert lock_owner() == (False, None)
