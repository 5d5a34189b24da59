"""SCENARIOS E: the start and the shutdown of servers, and several servers at once."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tests.conformance.harness import WAIT_S, Endpoint, Frame, Peer, Server, finish_of, open_http, outline, unique
from tests.conformance.watching import StuckReader, another, metric, until_metric


def serve(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run another server process that is expected to exit with an error."""
    command = [sys.executable, "-m", "kedge", "serve", *arguments]
    return subprocess.run(command, env=server.environment, capture_output=True, text=True, timeout=WAIT_S, check=False)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- E6, E11 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "force"])
async def test_e6_e11_a_shutdown_interrupts_runs_and_keeps_the_queue(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint, how: str
) -> None:
    """E11: a signal has the same effect as the command."""
    tags = [unique("tag"), unique("tag")]
    server = own_server()
    async with server.peer(workspace) as peer, peer.stream(deltas=1) as stream, peer.stream() as plain:
        one, two = await peer.session(), await peer.session()
        streaming = (await peer.submit(one, f"script: tag {tags[0]} | say some text | hang"))["run_id"]
        queued = (await peer.submit(one, "script: say my own answer", run_id=unique("run")))["run_id"]
        silent = (await peer.submit(two, f"script: tag {tags[1]} | hang"))["run_id"]
        for tag in tags:
            await endpoint.wait_open(tag)
        await stream.until(lambda stream: any(stream.text(found) == "some text" for found in assistants(stream.frames)))
        if how == "force":
            await peer.call("POST", "/control", {"command": "shutdown", "force": True})
            code = await asyncio.to_thread(ended, server)
        else:
            code = await asyncio.to_thread(server.signal, signal.Signals[how])
        assert code == 0, server.log[-2000:]
        # The streams ended regularly (a broken one does not count as ended), and contain the ends.
        for each in (stream, plain):
            await each.until_end()
            (complete,) = each.completes(streaming)
            assert (complete["outcome"], complete["text"]) == ("interrupted", "some text")
            assert complete["error"] == "the server was shut down"
            assert [complete["outcome"] for complete in each.completes(silent)] == ["interrupted"]
            assert not each.completes(queued)
            assert not each.of("agent_event")
    for tag in tags:
        await endpoint.wait_open(tag, 0)
    assert "Traceback" not in server.log
    assert not server.socket.exists()

    server.start()
    async with server.peer(workspace) as peer:
        run = await peer.wait(queued)
        assert (run["outcome"], run["text"]) == ("completed", "my own answer")
        assert [(await peer.run(run_id))["outcome"] for run_id in (streaming, silent)] == ["interrupted"] * 2
        assert (await peer.run(streaming))["text"] == "some text"
        transcript = outline(await peer.messages(one))
        assert transcript[1] == ("assistant", "some text", "error")
        assert transcript[3] == ("assistant", "my own answer", "end_turn")
        assert [finish_of(message) for message in await peer.messages(two)] == [None, "error"]


def assistants(frames: list[Frame]) -> set[str]:
    return {frame.payload["id"] for frame in frames if frame.type == "message" and frame.payload["role"] == "assistant"}


def ended(server: Server) -> int:
    """Wait for the exit of a server that was stopped without a signal."""
    assert server.process is not None
    code = server.process.wait(WAIT_S)
    assert server.process.stdout is not None
    server.process.stdout.close()
    server.process = None
    return code


async def test_e6_prompts_during_a_shutdown_are_kept_or_refused(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    """Prompts during a shutdown: each gets 202 and survives the restart, or 503, or no reply."""
    tag, count = unique("tag"), 60
    server = own_server()
    accepted: list[str] = []
    refused: list[httpx2.Response] = []

    async def submit_until_it_is_gone(peer: Peer, session: str) -> None:
        try:
            while True:
                run_id = unique("run")
                reply = await peer.reply(
                    "POST", f"{peer.at}/agent", {"session_id": session, "prompt": "script: say late", "run_id": run_id}
                )
                if reply.status_code == 202:
                    accepted.append(run_id)
                else:
                    refused.append(reply)
        except httpx2.TransportError:
            pass

    async with server.peer(workspace) as peer:
        sessions = await asyncio.gather(*(peer.session() for _ in range(count)))
        receipts = await asyncio.gather(
            *(peer.submit(session, f"script: tag {tag} | say x | hang") for session in sessions)
        )
        await endpoint.wait_open(tag, count)
        writers = [asyncio.create_task(submit_until_it_is_gone(peer, session)) for session in sessions[:4]]
        async with asyncio.timeout(WAIT_S):
            while len(accepted) < 8:
                await metric(peer.http, "kedge_runs_queued")
        code = await asyncio.to_thread(server.terminate)
        await asyncio.gather(*writers)
    assert code == 0
    statuses = {reply.status_code for reply in refused}
    assert 503 in statuses
    assert statuses <= {429, 503}, statuses  # 429: the queue is full
    for reply in refused:
        assert int(reply.headers["retry-after"]) >= 0
        assert reply.json()["code"] in ("shutting_down", "queue_full")
    server.start()
    async with server.peer(workspace) as peer:
        for receipt in receipts:
            assert (await peer.run(receipt["run_id"]))["outcome"] == "interrupted"
        for run_id in accepted:
            assert (await peer.wait(run_id))["outcome"] == "completed"


@pytest.mark.found(
    "issue 20",
    "stopping a server with a reader that did not read logged a traceback of the cancelled request; the server drops "
    "the connection first",
)
async def test_e6_a_shutdown_does_not_wait_for_a_stuck_client(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    server = own_server()
    async with server.peer(workspace) as peer:
        with StuckReader(server.url, server.token, another(peer)):
            text = "x" * 900_000
            for _ in range(4):
                receipt = await peer.submit(await peer.session(), f"script: say {text}")
                await peer.wait(receipt["run_id"])
            assert await asyncio.to_thread(server.terminate) == 0
    assert "Traceback" not in server.log
    assert "ERROR" not in server.log


@pytest.mark.found(
    "issue 20",
    "shutdown_if_idle stopped a server to which other clients were attached; it is refused until they have left",
)
async def test_e6_the_control_command_stops_only_an_idle_server(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    key = unique("key")
    server = own_server()
    async with server.peer(workspace) as peer:
        receipt = await peer.submit(await peer.session(), f"script: hold {key} | say done")
        for body in (
            {"command": "shutdown"},
            {"command": "shutdown_if_idle"},
            {"command": "shutdown_if_idle", "force": True},
        ):
            error = await peer.call("POST", "/control", body, expect=409)
            assert error["code"] == "server_not_idle"
        await peer.call("POST", "/control", {"command": "explode"}, expect=422)
        endpoint.release(key)
        assert (await peer.wait(receipt["run_id"]))["outcome"] == "completed"
        other = await Peer(peer.http, workspace).open()
        if_idle = {"command": "shutdown_if_idle"}
        for caller in (peer, other):
            error = await peer.call("POST", "/control", if_idle, client_id=caller.client_id, expect=409)
            assert error["code"] == "server_not_idle"
            assert "attached" in error["message"]
        await other.call("DELETE", other.at, client_id=other.client_id)
        await peer.call("POST", "/control", if_idle, expect=409)  # the caller is not known as a client
        await peer.call("POST", "/control", if_idle, client_id=peer.client_id)
        assert await asyncio.to_thread(ended, server) == 0
    assert "Traceback" not in server.log


async def test_e6_a_server_with_a_queue_after_a_restart_is_not_idle(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    server = own_server()
    async with server.peer(workspace) as peer:
        receipt = await peer.submit(await peer.session(), "script: hang")
    server.kill()
    server.start()
    async with server.http() as http:
        peer = Peer(http, workspace)  # not opened: only the Run keeps the workspace open
        await peer.call("POST", "/control", {"command": "shutdown"}, expect=409)
        assert [run["run_id"] for run in await peer.call("GET", "/runs")] == [receipt["run_id"]]


# --- E9 --------------------------------------------------------------------------------------------------------------


async def test_e9_eight_concurrent_commands_start_one_server(
    endpoint: Endpoint, tmp_path: Path, own_server: Callable[..., Server]
) -> None:
    home = Server(
        tmp_path / "home", endpoint.hosted.url, "[server]\nidle_exit_s = 20.0"
    )  # not started: the commands do that
    (tmp_path / "workspace").mkdir()
    command = [sys.executable, "-m", "kedge", "run", "--cwd", str(tmp_path / "workspace")]
    started = [
        await asyncio.create_subprocess_exec(
            *command,
            f"script: say answer {number}",
            env=home.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(8)
    ]
    try:
        async with asyncio.timeout(2 * WAIT_S):
            outputs = [await process.communicate() for process in started]
        for number, (process, (said, errors)) in enumerate(zip(started, outputs, strict=True)):
            assert process.returncode == 0, errors.decode()
            assert said.decode() == f"answer {number}\n"
        log = (home.data_dir / "server.log").read_text()
        hosts = re.findall(r"^listening on unix://(.*)$", log, re.MULTILINE)
        assert len(hosts) == 1, log
    finally:
        found = re.search(r"^listening on unix://(.*)$", (home.data_dir / "server.log").read_text(), re.MULTILINE)
        if found:
            async with open_http("", "", Path(found[1])) as http:
                await http.post("/v1/control", json={"command": "shutdown", "force": True})


# --- E10, E13 --------------------------------------------------------------------------------------------------------


async def test_e10_a_stale_socket_is_replaced(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server()
    server.kill()
    assert server.socket.is_socket()
    server.start()
    async with server.http(unix=True) as http:
        assert (await http.get("/v1/version")).json()["pid"] == server.pid


async def test_e10_a_live_socket_is_never_replaced(own_server: Callable[..., Server], workspace: Path) -> None:
    server, other = own_server(), own_server()
    other.terminate()
    done = await asyncio.to_thread(serve, other, "--host", f"unix://{server.socket}")
    assert done.returncode != 0
    assert done.stdout == ""
    assert str(server.socket) in done.stderr
    assert "Traceback" not in done.stderr
    async with server.http(unix=True) as http:
        assert (await http.get("/v1/version")).json()["pid"] == server.pid


async def test_e10_a_file_that_is_not_a_socket_is_not_removed(
    own_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = own_server()
    server.terminate()
    precious = tmp_path / "precious.txt"
    precious.write_text("years of work")
    done = await asyncio.to_thread(serve, server, "--host", f"unix://{precious}")
    assert done.returncode != 0
    assert str(precious) in done.stderr
    assert precious.read_text() == "years of work"


async def test_e13_a_second_server_of_a_data_directory_is_refused(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    key = unique("key")
    server = own_server()
    async with server.peer(workspace) as peer:
        receipt = await peer.submit(await peer.session(), f"script: hold {key} | say undisturbed")
        token = (server.data_dir / "token").read_text()
        done = await asyncio.to_thread(serve, server, "--host", "tcp://127.0.0.1:0")
        assert done.returncode != 0
        assert done.stdout == ""
        assert re.search(rf"\b{server.pid}\b", done.stderr), done.stderr
        assert str(server.data_dir) in done.stderr
        assert "Traceback" not in done.stderr
        # The first server still has its token, its socket and its Run.
        assert (server.data_dir / "token").read_text() == token
        assert server.socket.is_socket()
        endpoint.release(key)
        assert (await peer.wait(receipt["run_id"]))["text"] == "undisturbed"
    server.kill()
    server.start()  # the lock ends with its process


# --- sockets and files -----------------------------------------------------------------------------------------------


async def test_e_the_socket_needs_no_token_and_is_private(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server()
    assert mode(server.socket) == 0o600
    assert mode(server.data_dir / "token") == 0o600
    assert mode(server.data_dir) == 0o700
    for path in server.data_dir.iterdir():
        assert mode(path) & 0o077 == 0, path
    async with server.http(unix=True) as http:
        peer = await Peer(http, workspace).open()
        async with peer.stream() as stream:
            receipt = await peer.submit(await peer.session(), "script: say by socket")
            assert (await stream.until_complete(receipt["run_id"]))[0]["text"] == "by socket"
    async with httpx2.AsyncClient(base_url=server.url, verify=False) as http:
        assert (await http.get("/v1/workspaces")).status_code == 401


#: Connects to the socket as another user, and prints the reply. The directory is entered before, as root.
ASK_AS_NOBODY = """
import os, socket, sys
directory, name = os.path.split(sys.argv[1])
os.chdir(directory)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(name)
    try:
        connection.sendall(b"GET /v1/workspaces HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
        print(b"".join(iter(lambda: connection.recv(65536), b"")))
    except ConnectionError:
        print(b"")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can connect as another user")
def test_e_another_user_at_the_socket_is_refused(
    own_server: Callable[..., Server],
) -> None:
    server = own_server()
    server.socket.parent.chmod(0o711)
    server.socket.chmod(0o777)
    asked = [sys.executable, "-I", "-c", ASK_AS_NOBODY, str(server.socket)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout == "b''\n"


async def test_e_the_default_socket_is_in_a_directory_of_its_owner(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    server = own_server()
    server.terminate()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "kedge",
        "serve",
        env=server.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line = (await process.stdout.readline()).decode().strip()
        assert line.startswith("listening on unix://")
        path = Path(line.removeprefix("listening on unix://"))
        assert mode(path) == 0o600
        assert mode(path.parent) == 0o700
        async with open_http("", "", path) as http:
            await until_metric(http, "kedge_workspaces_open", lambda count: count == 0)
    finally:
        process.terminate()
        assert await process.wait() == 0


@pytest.mark.found(
    "a review of the server: a start on a port in use, after a kill",
    "the server resumed the Runs of the killed one, failed to listen, and interrupted them all; it binds its sockets "
    "first, and touches no Run if that fails",
)
async def test_a_server_that_cannot_listen_touches_no_run(
    own_server: Callable[..., Server], workspace: Path, endpoint: Endpoint
) -> None:
    server, tag = own_server(), unique("tag")
    async with server.peer(workspace) as peer:
        session = await peer.session()
        receipt = await peer.submit(session, f"script: tag {tag} | say begun | hold {tag} | say done", run_id=unique())
        await endpoint.wait_open(tag)
    server.kill()
    with socket.create_server(("127.0.0.1", 0)) as in_use:
        host = f"tcp://127.0.0.1:{in_use.getsockname()[1]}"
        command = [sys.executable, "-m", "kedge", "serve", "--host", host]
        done = await asyncio.to_thread(
            subprocess.run, command, env=server.environment, capture_output=True, text=True, timeout=WAIT_S
        )
        assert done.returncode != 0
        assert host in done.stderr or "in use" in done.stderr
    endpoint.release(tag)
    server.start()
    async with server.peer(workspace) as peer:
        run = await peer.wait(receipt["run_id"])
    assert run["outcome"] == "completed"


async def test_a_server_with_a_closed_stdout_serves(own_server: Callable[..., Server]) -> None:
    server = own_server()
    server.kill()
    command = f'exec "{sys.executable}" -m kedge serve --host unix://{server.socket} >&-'
    process = await asyncio.create_subprocess_exec("sh", "-c", command, env=server.environment)
    try:
        async with server.http(unix=True) as http:

            async def answers() -> bool:
                try:
                    return bool((await http.get("/v1/health")).status_code == 200)
                except httpx2.TransportError:
                    return False

            async with asyncio.timeout(WAIT_S):
                while process.returncode is None and not await answers():  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert process.returncode is None
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
