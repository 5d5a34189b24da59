"""What a second review has found, seen from outside: leaving clients, servers that cannot listen, idle connections."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tests.client.process import has_reader
from tests.conformance.harness import WAIT_S, Endpoint, Peer, Server, unique
from tests.conformance.raw import connect, request


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.found(
    "a review of the server: Esc, or Ctrl-C, while a command that a person typed is at work",
    "the client went away, and nobody told the server's task so: the command went on for up to two minutes and was put "
    "into the transcript; it ends with its request",
)
async def test_a_typed_command_ends_when_its_client_goes_away(kedge: Peer) -> None:
    session, fifo = await kedge.session(), kedge.directory / "fifo"
    os.mkfifo(fifo)
    body = {"command": "sleep 1000 0<>fifo; echo over"}
    asking = asyncio.create_task(kedge.call("POST", f"{kedge.at}/agent/sessions/{session}/shell", body))
    await until(lambda: has_reader(fifo))
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: not has_reader(fifo))
    assert await kedge.messages(session) == []


@pytest.mark.found(
    "a review of the client: a session deleted while its reader is away",
    "whoever came back was told that there is no such session, and never how its Run had ended; the log tells it",
)
async def test_who_comes_back_to_a_deleted_session_is_told_the_ends_of_its_runs(kedge: Peer) -> None:
    session = await kedge.session()
    async with kedge.stream(session_id=session) as stream:
        receipt = await kedge.submit(session, "script: say begun | hang", run_id=unique("run"))
        await stream.until(lambda stream: stream.of("run"))
    await kedge.call("DELETE", f"{kedge.at}/sessions/{session}")
    async with kedge.stream(session_id=session, last_event_id=stream.positions[-1]) as stream:
        (complete,) = await stream.until_complete(receipt["run_id"])
    assert complete["outcome"] == "cancelled"
    reply = await kedge.reply("GET", f"{kedge.at}/events", client_id=kedge.client_id, session_id=session)
    assert reply.status_code == 404, "who has not been there is told that there is none"


@pytest.mark.found(
    "a review of the server: a start on a port that is taken, behind a kill",
    "the server resumed the Runs of the killed one, found that it cannot listen, and interrupted them all; it takes "
    "its place first, and touches no Run if it cannot",
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
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
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


async def test_a_server_whose_output_is_closed_serves(own_server: Callable[..., Server]) -> None:
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


@pytest.mark.found(
    "a review of the server: a line feed behind a reply",
    "bytes that begin no request stopped the clock of an idle connection for good: without a token, anybody could hold "
    "every place that the server has; it is set again",
)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("behind", [b"\r\n", b"\r\n\r\n\r\n"])
async def test_an_idle_connection_ends_though_bytes_come_that_begin_no_request(kedge: Peer, behind: bytes) -> None:
    async with connect(str(kedge.http.base_url)) as line:
        await line.send(request("GET", "/v1/health"))
        assert (await line.reply())[0] == 200
        await line.send(behind)
        async with asyncio.timeout(WAIT_S):
            assert await line.read() == b""
