"""G15: slow connections, thousands of streams and a flood at once, while a normal client works."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from proof.figures import IS_LONG, proof, size
from tests.conformance.harness import WAIT_S, Server, results_of
from tests.conformance.loops import ROOT, Address, Wire, address_of, open_workspace
from tests.conformance.test_i_agent import call
from tests.conformance.watching import open_files

SLOW, STREAMS = 500, 1_000
#: Rate of the flood: a tenth to a fifth of what one core can answer; more would measure the sharing of the core.
REQUESTS_PER_S = 400
#: Memory of a connection. An idle one takes about 10 kB, a stream about 20 kB; the rest is for the allocator. kB.
CONNECTION_KB_MAX = 64
#: Calls of the normal client in one measurement. Items.
CALLS = size(150, 600)
#: The delay of a call on a busy machine, whatever the server does. Seconds.
NOISE_S = 0.025
#: Measurements, one of which must be good: noise of the machine is temporary, a blocked server is not. Items.
TRIES = 4


def memory_kb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


@contextlib.asynccontextmanager
async def abused(address: Address, directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    wire = Wire(address)
    workspace = await open_workspace(wire, directory)
    wire.close()
    given = (address.host, address.port, address.token, workspace, SLOW, STREAMS, REQUESTS_PER_S)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.conformance.abuser",
        *map(str, given),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(2 * WAIT_S):
            reported = json.loads(await process.stdout.readline())
        # The server closes idle connections after some seconds; all others must be open.
        assert reported["open"] >= STREAMS + SLOW * 2 // 3, reported
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def p99_s(address: Address, directory: Path) -> float:
    """Measure the 99th percentile of ordinary calls: reads and short Runs."""
    wire, took = Wire(address), list[float]()
    workspace = await open_workspace(wire, directory)
    for number in range(CALLS):
        began = time.monotonic()
        if number % 10 == 0:
            session = (await wire.expect(200, "POST", f"/workspaces/{workspace}/sessions", {"title": ""}))["id"]
            body = {"session_id": session, "prompt": "script: say hello"}
            run = await wire.expect(202, "POST", f"/workspaces/{workspace}/agent", body)
            path = f"/workspaces/{workspace}/agent/runs/{run['run_id']}/wait?timeout_s={WAIT_S}"
            assert (await wire.expect(200, "GET", path))["text"] == "hello"
        else:
            await wire.expect(200, "GET", f"/workspaces/{workspace}")
        took.append(time.monotonic() - began)
    wire.close()
    return sorted(took)[int(len(took) * 0.99)]


@pytest.mark.proof
@pytest.mark.timeout(900 if IS_LONG else 240)
async def test_a_normal_client_is_served_during_abuse(
    own_server: Callable[..., Server], tmp_path: Path, many_files: None
) -> None:
    server = own_server()
    address = address_of(server.url, server.token)
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    with proof("G15", "slow connections, streams and a flood", "held up others, or grew") as figure:
        await p99_s(address, good)  # load the late imports
        files, before_kb = open_files(server.pid), memory_kb(server.pid)
        ratios: list[float] = []
        for _ in range(TRIES):
            before_s = await p99_s(address, good)
            async with abused(address, bad) as process:
                during_s = await p99_s(address, good)
                grown_kb = memory_kb(server.pid) - before_kb
                replies = await end(process)
            assert replies["200"] > STREAMS, replies
            assert set(replies) <= {"200", "400", "401", "404", "422"}, replies
            assert grown_kb < (SLOW + STREAMS) * CONNECTION_KB_MAX, f"{grown_kb} kB"
            ratios.append(during_s / before_s)
            if during_s < 2 * before_s + NOISE_S:
                break
        else:
            raise AssertionError(f"p99 of a good client grew by {ratios}, the last to {during_s * 1000:.1f} ms")
        await until_closed(address, server.pid, files)
        figure.count = (SLOW + STREAMS) * len(ratios)
        figure.notes["requests of the flood answered"] = sum(replies.values()) - STREAMS
        figure.notes["p99 of a good client"] = f"{during_s * 1000:.1f} ms, {ratios[-1]:.1f} times that of before"
        figure.notes["memory for each connection"] = f"{grown_kb / (SLOW + STREAMS):.1f} kB"


async def end(process: asyncio.subprocess.Process) -> dict[str, int]:
    """Stop the abuser, and return its replies by status."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    async with asyncio.timeout(WAIT_S):
        return dict(json.loads(await process.stdout.readline()))


async def until_closed(address: Address, pid: int, files: int) -> None:
    """Wait until the connections of the abuser are closed; a few of the normal client may remain, and the files of two
    reading threads that the store has started meanwhile."""
    wire = Wire(address)
    async with asyncio.timeout(2 * WAIT_S):
        while open_files(pid) > files + 2 + READER_FILES:
            await wire.expect(200, "GET", "/health")
    wire.close()


#: Open files of two more connections to the database: the file, its log and its index, each. Items.
READER_FILES = 6
#: Open files of the server below, and connections of strangers. Items.
FEW_FILES, STRANGERS = 256, 400


@pytest.mark.found(
    "500 slow connections and 1,000 streams where a process may have 1,024 files",
    "connections used up all open files, and then the database and tools failed: the server raises the limit when it "
    "starts, and keeps some that no connection can have.",
)
async def test_strangers_cannot_use_up_the_open_files(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server()
    server.kill()
    server.start(files_max=FEW_FILES)
    async with server.peer(workspace) as peer, peer.stream() as stream:
        (workspace / "notes.txt").write_text("here\n")
        session = await peer.session()
        address = address_of(server.url, server.token)
        with ExitStack() as strangers:
            for _ in range(STRANGERS):
                line = strangers.enter_context(socket.socket())
                line.connect((address.host, address.port))
            # Over its open connection; the server needs new ones to the model, pipes for a process, and a file.
            looks = f"{call('bash', command='echo hello')} | step | {call('view', path='notes.txt')}"
            receipt = await peer.submit(session, f"script: {looks} | say done", mode="yolo")
            (complete,) = await stream.until_complete(receipt["run_id"])
            assert (complete["outcome"], complete["text"]) == ("completed", "done")
            results = results_of(await peer.messages(session))
            assert ["hello" in results[0]["content"], "here" in results[1]["content"]] == [True, True], results
            # The user connects through the Unix socket.
            async with server.http(unix=True) as http:
                assert (await http.get("/v1/runs")).status_code == 200
        # Every client connects once the strangers have disconnected.
        async with asyncio.timeout(WAIT_S):
            while not await answers(server):
                pass
        assert "connection limit of" in server.log


async def answers(server: Server) -> bool:
    async with server.http() as http:
        try:
            return (await http.get("/v1/health")).status_code == 200
        except httpx2.HTTPError:
            return False


async def test_a_server_raises_its_limit_of_open_files(own_server: Callable[..., Server]) -> None:
    server = own_server()
    soft, hard = Path(f"/proc/{server.pid}/limits").read_text().split("Max open files")[1].split()[:2]
    assert int(soft) >= min(int(hard) if hard.isdigit() else 8192, 8192)
