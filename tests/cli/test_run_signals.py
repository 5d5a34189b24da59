from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from kedge.client.client import Client
from kedge.testing import HostedEndpoint
from kedge.wire.models import RunBody
from tests.client.process import Home, Server, has_reader, until


def begun(server: Server, *arguments: str, **options: object) -> subprocess.Popen[str]:
    """Start `kedge run` and wait for the first word of its answer."""
    run = server.home.start_kedge("run", "--host", server.host, *arguments, **options)
    assert until(run, "begun") == "begun"
    return run


def ended(server: Server) -> RunBody:
    """The only Run of this workspace, once it has ended."""

    async def ask() -> RunBody:
        async with Client(server.host) as client:
            workspace = await client.create_workspace(str(server.home.workspace))
            (session,) = await client.sessions(workspace.id)
            (run,) = await client.session_runs(workspace.id, session.id)
            return await client.wait_run(workspace.id, run.run_id)

    return asyncio.run(ask())


def wait_shown(server: Server, word: str) -> None:
    """Wait until the server has sent this word to its clients."""

    async def ask() -> None:
        async with Client(server.host) as client:
            workspace = await client.create_workspace(str(server.home.workspace))
            async with client.events(workspace.id, deltas=True) as events:
                async for event in events:
                    if word in str(event.payload):
                        return

    asyncio.run(ask())


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_cancels_on_the_server_and_waits_for_the_end(server: Server, kind: signal.Signals) -> None:
    """F5."""
    run = begun(server, "script: say begun | hang")
    run.send_signal(kind)
    out, err = run.communicate(timeout=20)
    assert (run.returncode, out, err) == (130, "\n", "kedge: the run was cancelled\n")
    assert ended(server).outcome == "cancelled"


def test_ctrl_c_leaves_other_runs_of_the_session_alone(server: Server, endpoint: HostedEndpoint) -> None:
    run = server.home.start_kedge(
        "run", "--host", server.host, "--output", "stream-json", "script: say one | hold alone-1 | say two"
    )
    assert run.stdout
    session_id = json.loads(run.stdout.readline())["payload"]["payload"]["session_id"]
    queued = server.home.start_kedge("run", "--host", server.host, "-v", "-s", session_id, "queued")
    assert queued.stderr
    assert queued.stderr.readline().endswith(": queued\n")
    queued.send_signal(signal.SIGINT)
    queued.communicate(timeout=20)
    assert queued.returncode == 130
    endpoint.release("alone-1")
    out, _ = run.communicate(timeout=20)
    assert run.returncode == 0
    assert json.loads(out.splitlines()[-1])["payload"]["payload"]["outcome"] == "completed"


def test_second_ctrl_c_exits_while_the_server_hangs(own_server: Server) -> None:
    run = begun(own_server, "-v", "script: say begun | hang")
    assert own_server.process
    assert run.stderr
    assert "run " in run.stderr.readline()
    own_server.process.send_signal(signal.SIGSTOP)
    try:
        run.send_signal(signal.SIGINT)
        assert "Ctrl-C again to exit now" in run.stderr.readline()
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=20)
        assert run.returncode == 130
        assert "exiting" in err
    finally:
        own_server.process.send_signal(signal.SIGCONT)


def test_ctrl_c_while_connecting_exits_at_once(home: Home) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        path = home.root / "mute.sock"
        listener.bind(str(path))
        listener.listen()
        run = home.start_kedge("run", "--host", f"unix://{path}", "hello")
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(10)
            run.send_signal(signal.SIGINT)
            out, err = run.communicate(timeout=20)
    assert (run.returncode, out, err) == (130, "", "")


def test_ctrl_c_while_reading_stdin_exits(home: Home) -> None:
    run = home.start_kedge("run", "-", stdin=subprocess.PIPE)
    assert run.stdin
    # It reads more than a full pipe only once it is in its loop.
    run.stdin.write("x" * 200_000)
    run.stdin.flush()
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=20)
    assert (run.returncode, out, err.strip()) == (130, "", "")


def test_ctrl_c_works_while_the_output_is_not_read(server: Server) -> None:
    run = begun(server, "script: say begun | words 30000 | hang")
    wait_shown(server, "w30000")
    # More than a pipe holds, without a reader: only the second Ctrl-C can end the command, after the first was handled.
    run.send_signal(signal.SIGINT)
    assert ended(server).outcome == "cancelled"
    run.send_signal(signal.SIGINT)
    assert run.wait(20) == 130
    run.communicate()


def test_background_command_keeps_ignoring_interrupts(server: Server, endpoint: HostedEndpoint) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    run = begun(server, "script: say begun | hold ignored-1 | say done", preexec_fn=ignore)
    run.send_signal(signal.SIGINT)
    endpoint.release("ignored-1")
    out, err = run.communicate(timeout=20)
    assert (run.returncode, out.split(), err) == (0, ["done"], "")


def test_killed_command_leaves_its_run_running(server: Server, endpoint: HostedEndpoint) -> None:
    run = begun(server, "script: say begun | hold killed-1 | say done")
    run.kill()
    run.communicate(timeout=20)
    endpoint.release("killed-1")
    assert str(ended(server).text).split() == ["begun", "done"]


def test_ctrl_c_in_attach_does_not_cancel(server: Server, endpoint: HostedEndpoint, tmp_path: Path) -> None:
    run = begun(server, "script: say begun | hold attach-1 | say done")
    (session,) = json.loads(server.home.kedge("sessions", "list", "--host", server.host, "--json").out)
    attached = server.home.start_kedge("attach", "--host", server.host, session["id"][:8])
    assert until(attached, "\n") == "> script: say begun | hold attach-1 | say done\n"
    assert until(attached, "begun") == "begun"
    attached.send_signal(signal.SIGINT)
    out, err = attached.communicate(timeout=20)
    assert (attached.returncode, out.strip(), err) == (0, "", "")
    endpoint.release("attach-1")
    assert run.communicate(timeout=20)[0].split() == ["done"]
    assert run.returncode == 0


def test_ctrl_c_ends_a_typed_command(server: Server) -> None:
    fifo = server.home.workspace / "fifo"
    os.mkfifo(fifo)
    run = server.home.start_kedge("run", "--host", server.host, "!sleep 1000 0<>fifo")
    while not has_reader(fifo):
        assert run.poll() is None
    run.send_signal(signal.SIGINT)
    assert run.wait(20) == 130
    run.communicate()
    while has_reader(fifo):  # bounded by the timeout of the test
        pass
