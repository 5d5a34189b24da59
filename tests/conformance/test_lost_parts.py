"""The keeper is killed under load, and the disk is full or locked while Runs stream: nothing is lost or left."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from proof.figures import IS_LONG, proof, size
from tests.conformance.harness import Endpoint, Server, Stream, results_of, unique
from tests.conformance.rounds import Ends
from tests.conformance.test_b_tools import marked, processes_with
from tests.conformance.test_g_crash import check_ended_once
from tests.conformance.test_hung_keeper import keeper_of
from tests.conformance.test_i_agent import call
from tests.conformance.watching import open_files, words
from tests.store.test_real_disks import fill

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600 if IS_LONG else 120)]

#: Longer than any wait while other proofs run. Seconds.
LOAD_S = 120.0
STREAMING_RUNS = 3


async def until_ended(stream: Stream, ends: Ends, count: int) -> None:
    await stream.until(lambda _: len(ends.all()) >= count, LOAD_S)


async def test_runs_continue_when_their_keeper_is_killed(own_server: Callable[..., Server], workspace: Path) -> None:
    rounds, runs = size(2, 5), size(5, 30)
    server, files = own_server(), list[int]()
    with proof("G5", "commands whose keeper was killed", "survivors, or Runs that did not continue") as figure:
        async with server.peer(workspace) as peer, peer.stream() as stream:
            ends = Ends(stream)
            for number in range(rounds):
                sessions, mark = [await peer.session() for _ in range(runs)], unique("mark")
                for index, session in enumerate(sessions):
                    bash = call("bash", command=marked(mark, f"touch ready-{number}-{index}; sleep 1000"))
                    await peer.submit(session, f"script: {bash} | say continued", mode="yolo")
                while len(list(workspace.glob(f"ready-{number}-*"))) < runs:
                    await peer.call("GET", "/runs")
                os.kill(keeper_of(server.pid), signal.SIGKILL)
                await until_ended(stream, ends, (number + 1) * runs)
                assert processes_with(mark) == []
                for session in sessions:
                    (result,) = results_of(await peer.messages(session))
                    assert "keeper was lost" in result["content"]
                files.append(open_files(server.pid))
            assert {len(completes) for completes in ends.all().values()} == {1}
            completes = [end for (end,) in ends.all().values()]
            assert {(end["text"], end["cleanup"]) for end in completes} == {("continued", "clean")}
            assert len(completes) == rounds * runs
            # The keeper of the next round starts with its first command.
            assert max(files) - min(files) < 10, files
        figure.count = rounds * runs


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk requires root")
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=32m,mode=0700", "kedge-test", str(path)]
    if (done := subprocess.run(command, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"cannot mount a disk: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def full(data_dir: Path) -> Iterator[None]:
    fill(data_dir / "filler")
    yield
    (data_dir / "filler").unlink()


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Another program holds the write lock of the database."""
    database = apsw.Connection(str(data_dir / "kedge.db"))
    database.execute("BEGIN IMMEDIATE")
    yield
    database.execute("ROLLBACK")
    database.close()


@pytest.mark.parametrize("fault", [full, locked])
async def test_streams_outlast_a_store_that_is_away(
    own_server: Callable[..., Server],
    tmp_path: Path,
    workspace: Path,
    endpoint: Endpoint,
    fault: Callable[[Path], Iterator[None]],
) -> None:
    count, tag, key = size(2_000, 60_000), unique("tag"), unique("key")
    with (
        proof("G7", "Runs that stream while the disk is full or locked", "lost, doubled or cut") as figure,
        small_disk(tmp_path / "server-0" / "data"),
    ):
        server = own_server()
        async with server.peer(workspace) as peer, peer.stream() as stream:
            script = f"script: tag {tag} | say a | hold {key} | words {count}"
            sessions = [await peer.session() for _ in range(STREAMING_RUNS)]
            run_ids = [(await peer.submit(session, script))["run_id"] for session in sessions]
            await endpoint.wait_open(tag, STREAMING_RUNS)
            with fault(server.data_dir):  # type: ignore[attr-defined]
                refused = await peer.reply("POST", f"{peer.at}/agent", {"session_id": sessions[0], "prompt": "x"})
                assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
                endpoint.release(key)
                await endpoint.wait_open(tag, 0)
                for run_id in run_ids:
                    assert (await peer.run(run_id))["state"] == "active"
            ends = Ends(stream)
            await until_ended(stream, ends, STREAMING_RUNS)
            completes = [end for (end,) in ends.all().values()]
            assert {(end["outcome"], end["text"]) for end in completes} == {("completed", f"a {words(count)}")}
            assert stream.positions == sorted(set(stream.positions))
        server.kill()
        server.start()
        async with server.peer(workspace) as peer:
            await check_ended_once(peer, run_ids)
        server.kill()
        figure.count = STREAMING_RUNS
