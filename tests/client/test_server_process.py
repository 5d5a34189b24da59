"""Finding and stopping the server by the lock of its data directory, with real processes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kedge import paths
from kedge.client.client import Client
from kedge.client.local_server import find_or_start
from kedge.client.server_process import find_process, lock_owner
from kedge.testing import HostedEndpoint
from tests.client.fixtures import server_pids
from tests.client.process import WAIT_S, Home, until
from tests.polling import block_until


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


def shut_down_soon(home: Home) -> None:
    """Let the server give up early on the ends of Runs that it cannot write."""
    with home.config.open("a") as config:
        config.write("\n[runs]\ncleanup_s = 1\n\n[server]\nshutdown_s = 1\n")


def serve_and_pause(home: Home, patch: str) -> subprocess.Popen[bytes]:
    """Start a server that stops itself (SIGSTOP) where `patch` calls `pause`."""
    lines = (
        "import os, signal",
        "pause = lambda: os.kill(os.getpid(), signal.SIGSTOP)",
        patch,
        "from kedge.cli.main import main",
        "main(['serve'])",
    )
    return subprocess.Popen(
        [sys.executable, "-P", "-c", "\n".join(lines)],
        env=home.env,
        cwd=home.data,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture
def slow_start(in_home: Home) -> Iterator[int]:
    """A server that is stopped (SIGSTOP) right after it took the lock of the data directory."""
    patch = (
        "from kedge.store.data_directory import DataDirectory\n"
        "claim = DataDirectory.claim\n"
        "def claim_and_pause(self):\n"
        "    claim(self)\n"
        "    pause()\n"
        "DataDirectory.claim = claim_and_pause"
    )
    server = serve_and_pause(in_home, patch)
    os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
    yield server.pid
    server.kill()
    server.wait()


@pytest.fixture
def slow_end(in_home: Home) -> Iterator[int]:
    """A server that is stopped (SIGSTOP) at its end, after it has released the lock and removed its socket."""
    patch = (
        "from kedge.server import startup\n"
        "unlink = startup.unlink_sockets\n"
        "def unlink_and_pause(files):\n"
        "    unlink(files)\n"
        "    pause()\n"
        "startup.unlink_sockets = unlink_and_pause"
    )
    server = serve_and_pause(in_home, patch)
    block_until(paths.socket_file().exists, WAIT_S)
    server.send_signal(signal.SIGTERM)
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
    block_until(lambda: "kedge.lock" in open_files(command.pid), WAIT_S)
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


@pytest.mark.found(
    "a run of CI",
    "`kedge doctor` failed for a moment after a server had stopped: its socket was gone; a server now records that it "
    "is stopping",
)
def test_server_at_its_end_is_waited_for(in_home: Home, slow_end: int) -> None:
    doctor = in_home.kedge("doctor")
    assert (doctor.code, "ok    server: shutting down" in doctor.out) == (0, True), doctor.out
    refused = in_home.kedge("stop", "--wait", "0.1")
    assert f"(pid {slow_end}) has not exited after 0.1 s" in refused.err
    command = in_home.start_kedge("run", "hello")
    assert command.stderr
    assert command.stderr.readline() == f"kedge: waiting for the server (pid {slow_end}), which is stopping ...\n"
    os.kill(slow_end, signal.SIGCONT)
    assert command.communicate(timeout=WAIT_S)[0] == "You said: hello\n"
    assert slow_end not in server_pids(in_home)


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


# --- the socket file -------------------------------------------------------------------------------------------------


@pytest.mark.found(
    "fault 10",
    "when the socket file was removed under a running server, no command found the server: `kedge runs` and `kedge "
    "stop` reported that none was running; the server binds its socket again, and commands go by the lock",
)
def test_server_without_its_socket_file_is_found_again(in_home: Home, endpoint: HostedEndpoint) -> None:
    pid, command, run_id = with_live_run(in_home, "socket-gone")
    os.kill(pid, signal.SIGSTOP)  # it cannot bind its socket again before the command has searched for it
    paths.socket_file().unlink()
    listing = in_home.start_kedge("runs")
    assert listing.stderr
    waits_for = listing.stderr.readline()
    os.kill(pid, signal.SIGCONT)
    assert waits_for == f"kedge: waiting for the server (pid {pid}) to create its socket again ...\n"
    assert run_id in listing.communicate(timeout=WAIT_S)[0]
    paths.socket_file().rename(in_home.root / "moved.sock")
    assert in_home.kedge("run", "hello").out == "You said: hello\n"
    shutil.rmtree(paths.runtime_dir())
    refused = in_home.kedge("stop")
    assert (refused.code, "Runs or commands are active" in refused.err) == (1, True)
    assert server_pids(in_home) == [pid]
    paths.socket_file().unlink()
    endpoint.release("socket-gone")
    assert command.communicate(timeout=WAIT_S)[0]
    assert command.returncode == 0
    paths.socket_file().unlink(missing_ok=True)
    assert in_home.kedge("stop").out == "stopped\n"
    assert server_pids(in_home) == []
    assert not paths.socket_file().exists()


async def test_socket_of_another_living_server_is_left_alone(in_home: Home) -> None:
    pid = started(in_home)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(in_home.root / "other.sock"))
        other.listen()
        os.rename(in_home.root / "other.sock", paths.socket_file())
        block_until(lambda: "Another server is listening" in paths.server_log().read_text(), WAIT_S)
        doctor = in_home.kedge("doctor")
        assert (doctor.code, "is not the kedge server" in doctor.out) == (1, True)
    paths.socket_file().unlink()
    async with Client(await find_or_start()) as client:
        assert (await client.version()).pid == pid


# --- the data directory ----------------------------------------------------------------------------------------------


@pytest.mark.found(
    "fault 14",
    "after `rm -rf` or `mv` of the data directory with the socket in it, the server stayed, and no client could reach "
    "it; such a server exits",
)
@pytest.mark.parametrize("how", ["remove", "move"])
def test_server_that_lost_its_directory_and_socket_exits(in_home: Home, how: str) -> None:
    shut_down_soon(in_home)
    pid, command, _ = with_live_run(in_home, f"lost-{how}")
    if how == "remove":
        shutil.rmtree(in_home.data)
    else:
        in_home.data.rename(in_home.root / "moved")
    block_until(lambda: is_zombie(pid), WAIT_S)
    assert not in_home.data.exists(), "it must not create the directory again"
    command.communicate(timeout=WAIT_S)
    assert in_home.kedge("stop").out == "no server is running\n"
    assert in_home.kedge("run", "hello").out == "You said: hello\n"
    if how == "move":
        assert in_home.kedge("stop").code == 0
        shutil.rmtree(in_home.data)
        (in_home.root / "moved").rename(in_home.data)
        assert "hold lost-move" in in_home.kedge("sessions", "list").out + in_home.kedge("runs").out


def is_zombie(pid: int) -> bool:
    """Also true for a process that is gone."""
    with suppress(OSError):
        return ") Z" in Path(f"/proc/{pid}/stat").read_text()
    return True


@pytest.fixture
def outside_runtime(in_home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The usual layout of a desktop: the socket is in XDG_RUNTIME_DIR, not in the data directory."""
    with tempfile.TemporaryDirectory(prefix="kedge-", dir="/run") as runtime:
        changes = {"XDG_RUNTIME_DIR": runtime, "XDG_DATA_HOME": str(in_home.root / "share")}
        for name, value in changes.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("KEDGE_DATA_DIR")
        del in_home.env["KEDGE_DATA_DIR"]
        in_home.env |= changes
        yield in_home.root / "share" / "kedge"
        with suppress(ProcessLookupError, FileNotFoundError, IndexError):
            os.kill(int(paths.server_record().read_text().split()[0]), signal.SIGKILL)


@pytest.mark.found(
    "fault 14",
    "after the data directory was removed or replaced, prompts were still accepted, and lost when the server exited; "
    "they are refused with the reason",
)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a runtime directory outside of the temporary one")
@pytest.mark.parametrize("how", ["remove", "replace"])
def test_prompt_is_refused_when_the_data_directory_is_gone(in_home: Home, outside_runtime: Path, how: str) -> None:
    shut_down_soon(in_home)
    command = in_home.start_kedge("run", "--output", "stream-json", f"script: say on | hold gone-{how}")
    assert command.stdout
    run_id = json.loads(command.stdout.readline())["payload"]["payload"]["run_id"]
    pid = int(paths.server_record().read_text().split()[0])
    if how == "remove":
        shutil.rmtree(outside_runtime)
    else:
        outside_runtime.rename(in_home.root / "moved")
        shutil.copytree(in_home.root / "moved", outside_runtime)
    refused = in_home.kedge("run", "hello")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == (
        f"kedge: the data directory {outside_runtime} was removed or replaced while the server was running; stop the "
        "server (kedge stop), then restore the directory or start with a new one\n"
    )
    assert run_id in in_home.kedge("runs").out, "what is in memory can be read"
    doctor = in_home.kedge("doctor")
    assert f"FAIL  server: The server (pid {pid}) is running, but its data directory {outside_runtime}" in doctor.out
    stopped = in_home.kedge("stop", "--force")
    assert (stopped.code, stopped.out) == (0, "stopped\n")
    assert in_home.kedge("stop").out == "no server is running\n"
    command.communicate(timeout=WAIT_S)
    assert in_home.kedge("run", "hello").out == "You said: hello\n"
    assert in_home.kedge("stop", "--force").out == "stopped\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a runtime directory outside of the temporary one")
@pytest.mark.found(
    "issue 20",
    "two homes of one user shared a socket in XDG_RUNTIME_DIR: the server of one kept that of the other from starting; "
    "the socket, the record and the start lock are named after the data directory",
)
def test_two_homes_of_one_user_have_a_server_each(
    in_home: Home, outside_runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, sockets = [], []
    for name in ("share", "share-2"):
        share = str(in_home.root / name)
        monkeypatch.setenv("XDG_DATA_HOME", share)
        in_home.env["XDG_DATA_HOME"] = share
        assert in_home.kedge("run", "hello").out == "You said: hello\n"
        assert f"ok    socket: {paths.socket_file()}" in in_home.kedge("doctor").out
        pids.append(lock_owner()[1])
        sockets.append(paths.socket_file())
    assert len(set(pids)) == len(set(sockets)) == 2
    assert in_home.kedge("stop").out == "stopped\n"
    in_home.env["XDG_DATA_HOME"] = str(in_home.root / "link")  # another spelling of the first one
    (in_home.root / "link").symlink_to(in_home.root / "share")
    assert f"pid {pids[0]}" in in_home.kedge("doctor").out, "the other server is still running"
    assert in_home.kedge("stop").out == "stopped\n"


# --- stop and start at once ------------------------------------------------------------------------------------------


@pytest.mark.found(
    "fault 24",
    "`kedge stop` waited for a server that another client started afterwards, and reported that the server had not "
    "exited; it waits for the process that it stopped",
)
async def test_stop_ignores_a_server_that_was_started_afterwards(in_home: Home) -> None:
    before = started(in_home)
    command = in_home.start_kedge("stop")
    block_until(lambda: "shutting down" in paths.server_log().read_text(), WAIT_S)
    command.send_signal(signal.SIGSTOP)
    block_until(lambda: is_zombie(before), WAIT_S)
    async with Client(await find_or_start()) as client:
        after = (await client.version()).pid
    assert after != before
    command.send_signal(signal.SIGCONT)
    assert command.communicate(timeout=WAIT_S) == ("stopped\n", "")
    assert command.returncode == 0
    assert lock_owner() == (True, after)


@pytest.mark.found(
    "fault 24",
    "a `kedge run` whose server was stopped after it had opened the workspace failed with `shutting_down`; requests "
    "that such a server refused are sent to the next one",
)
def test_run_survives_a_stop_after_its_open(in_home: Home) -> None:
    """The command is stopped (SIGSTOP) right after it opened the workspace, until the server has exited."""
    code = (
        "import os, signal\n"
        "from kedge.client.client import Client\n"
        "create = Client.create_workspace\n"
        "async def create_and_pause(self, path):\n"
        "    Client.create_workspace = create\n"
        "    opened = await create(self, path)\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    return opened\n"
        "Client.create_workspace = create_and_pause\n"
        "from kedge.cli.main import main\n"
        "main(['run', 'hello'])\n"
    )
    command = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        env=in_home.env,
        cwd=in_home.workspace,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    in_home.started.append(command)
    os.waitid(os.P_PID, command.pid, os.WSTOPPED | os.WNOWAIT)
    assert in_home.kedge("stop").out == "stopped\n"
    command.send_signal(signal.SIGCONT)
    out, err = command.communicate(timeout=WAIT_S)
    assert (out, command.returncode) == ("You said: hello\n", 0), err


def test_runs_survive_servers_that_are_stopped(in_home: Home) -> None:
    commands = [in_home.start_kedge("run", f"hello {number}") for number in range(8)]
    while any(command.poll() is None for command in commands):
        assert "Traceback" not in in_home.kedge("stop").err
    ended = [(*command.communicate(timeout=WAIT_S), command.returncode) for command in commands]
    assert [(out, code) for out, _, code in ended] == [(f"You said: hello {number}\n", 0) for number in range(8)], ended


def test_removed_directory_of_a_socket_is_not_created_again(in_home: Home) -> None:
    """A server whose data directory and own socket are gone exits, and removes its files."""
    directory = in_home.root / "own"
    directory.mkdir()
    command = in_home.start_kedge("serve", "--host", f"unix://{directory / 'k.sock'}")
    until(command, "listening on")
    shutil.rmtree(directory)
    shutil.rmtree(in_home.data)
    assert command.wait(WAIT_S) == 0
    assert not directory.exists()
    assert not in_home.data.exists()
