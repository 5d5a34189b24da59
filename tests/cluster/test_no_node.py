"""Workspaces whose directory no live node has: prompts wait in the queue, and begin at the first node that has it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes, until_moved, until_status
from tests.conformance.harness import Endpoint, Json, Peer, open_http, unique

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A directory of the only node that keeps running, which has no other one."""
    path = tmp_path / "elsewhere"
    path.mkdir()
    return path


async def stored(nodes: Nodes, directory: Path) -> str:
    """Store a workspace with a session, at a node that is then stopped; return the session."""
    owner = nodes.add("a", directory)
    async with nodes.peer(owner, directory) as peer:
        session = await peer.session()
    await asyncio.to_thread(owner.terminate)
    return session


async def run_of(peer: Peer, run_id: str) -> Json:
    return next(run for run in await peer.call("GET", "/runs") if run["run_id"] == run_id)


async def test_prompts_wait_for_a_node_with_the_directory(
    nodes: Nodes, endpoint: Endpoint, directory: Path, elsewhere: Path
) -> None:
    session = await stored(nodes, directory)
    second, third = nodes.add("b", elsewhere), nodes.add("c", elsewhere)
    async with nodes.peer(second, directory) as at_b, nodes.peer(third, directory) as at_c, at_c.stream() as stream:
        assert at_b.workspace == at_c.workspace
        tag, ids = unique("tag"), [unique("run") for _ in range(3)]
        receipts = [await at_b.submit(session, f"script: tag {tag} | say {id_}", run_id=id_) for id_ in ids]
        assert [one["state"] for one in receipts] == ["queued"] * 3
        assert receipts[0]["waits_for_node"]
        repeated = await at_c.submit(session, f"script: tag {tag} | say {ids[0]}", run_id=ids[0])
        assert repeated == receipts[0]
        listed = [await run_of(at_c, id_) for id_ in ids]
        assert [(run["state"], run["waits_for_node"]) for run in listed] == [("queued", True)] * 3
        covered = (await at_c.cancel_run(ids[0]))["covered"]
        assert [one["run_id"] for one in covered] == ids[:1]
        assert (await stream.until_complete(ids[0]))[0]["outcome"] == "cancelled"
        refused = await at_b.call("POST", f"{at_b.at}/agent/sessions/{session}/shell", {"command": "ls"}, expect=503)
        assert refused["code"] == "no_node"
        assert endpoint.requests(tag) == []
        late = nodes.add("late", directory)
        async with nodes.peer(late, directory, at=at_b) as at_late:
            await until_moved(at_late)
            runs = [await at_late.wait(id_) for id_ in ids]
            assert [run["outcome"] for run in runs] == ["cancelled", "completed", "completed"]
            assert [run.get("text") for run in runs[1:]] == ids[1:]
            assert "waits_for_node" not in runs[1]
            async with at_late.stream(after=0) as log:
                await log.until_complete(*ids)
                assert log.positions == list(range(log.positions[0], log.positions[-1] + 1))
                assert all(len(log.completes(id_)) == 1 for id_ in ids)
        assert len(endpoint.requests(tag)) == 2


async def test_stream_continues_at_the_node_that_joins(
    nodes: Nodes, endpoint: Endpoint, directory: Path, elsewhere: Path
) -> None:
    """At a node that only relays it, in the same connection."""
    session = await stored(nodes, directory)
    second, third = nodes.add("b", elsewhere), nodes.add("c", elsewhere)
    async with nodes.peer(second, directory) as at_b, nodes.peer(third, directory) as at_c, at_c.stream() as stream:
        run = await at_b.submit(session, "script: say hello", run_id=unique("run"))
        nodes.add("late", directory)
        assert (await stream.until_complete(run["run_id"]))[0]["text"] == "hello"
        assert stream.positions == list(range(stream.positions[0], stream.positions[-1] + 1))


async def test_waiting_runs_survive_the_node_that_accepted_them(
    nodes: Nodes, endpoint: Endpoint, directory: Path, elsewhere: Path
) -> None:
    session = await stored(nodes, directory)
    second = nodes.add("b", elsewhere)
    async with nodes.peer(second, directory) as at_b:
        ids = [unique("run") for _ in range(3)]
        for id_ in ids:
            await at_b.submit(session, f"script: say {id_}", run_id=id_)
        await asyncio.to_thread(second.kill)
        await asyncio.to_thread(second.start, int(at_b.http.base_url.port or 0), nodes.token)
        await until_status(at_b, "GET", "/runs", 200)
        assert (await run_of(at_b, ids[0]))["state"] == "queued"
        await at_b.open()
        await at_b.submit(session, f"script: say {ids[0]}", run_id=ids[0])
        assert (await at_b.cancel(session))["covered"]
        last = await at_b.submit(session, "script: say last", run_id=unique("run"))
    late = nodes.add("late", directory)
    async with nodes.peer(late, directory, at=at_b) as at_late:
        await until_moved(at_late)
        assert [(await at_late.wait(id_))["outcome"] for id_ in ids] == ["cancelled"] * 3
        assert (await at_late.wait(last["run_id"]))["text"] == "last"


async def test_commands_say_what_a_run_waits_for(nodes: Nodes, directory: Path, elsewhere: Path) -> None:
    await stored(nodes, directory)
    second = nodes.add("b", elsewhere)
    host = ("--host", f"unix://{second.socket}")
    command = (sys.executable, "-m", "kedge", "run", *host, "script: say hello")
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_exec(
        *command, cwd=directory, env=second.environment, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    try:
        async with nodes.peer(second, elsewhere) as peer:
            run_id = await until_listed(peer)
        assert "queued: no live node serves its directory" in second.kedge("runs", *host, cwd=elsewhere)
        assert "cancelled run" in second.kedge("cancel", run_id, *host, cwd=elsewhere)
        _, errors = await running.communicate()
    finally:
        if running.returncode is None:
            running.kill()
    assert f"waiting: no live node serves {directory}; start one with --workspace-root" in errors.decode()


async def until_listed(peer: Peer) -> str:
    """Wait until a Run is live, and return its id."""
    while not (runs := await peer.call("GET", "/runs")):
        pass
    return str(runs[0]["run_id"])


async def test_unknown_directory_is_refused(nodes: Nodes, directory: Path, elsewhere: Path) -> None:
    server = nodes.add("b", elsewhere)
    async with open_http(server.url, nodes.token) as http:
        peer = Peer(http, directory)
        body = {"path": str(directory), "client_id": peer.client_id}
        assert (await peer.call("POST", "/workspaces", body, expect=503))["code"] == "no_node"
