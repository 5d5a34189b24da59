"""Two real nodes on one real PostgreSQL: any node takes any request, and nothing a client sees differs."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx2
import pytest

from tests.cluster.nodes import Nodes, until_moved, until_status
from tests.conformance.harness import Endpoint, Peer, open_http, unique
from tests.polling import until
from tests.warden.support import marked, new_mark

pytestmark = pytest.mark.timeout(120)

ALLOW = '[permissions]\nallow = ["bash"]'


def hanging(mark: str) -> str:
    """The call of a tool that never ends, and whose process has this mark."""
    return f'tool bash {{"command": "exec -a {mark} sleep 1000"}}'


async def test_every_node_takes_every_request(nodes: Nodes, endpoint: Endpoint, directory: Path) -> None:
    first, second = nodes.add("a"), nodes.add("b")
    key, tag = unique("key"), unique("tag")
    async with nodes.peer(first, directory) as at_a, nodes.peer(second, directory, at=at_a) as at_b:
        session = await at_b.session("Made on b")
        async with at_a.stream(deltas=1) as stream_a, at_b.stream(deltas=1) as stream_b:
            run = await at_b.submit(session, f"script: tag {tag} | say hello | hold {key} | say never")
            queued = await at_a.submit(session, "script: say also never", run_id=unique("run"))
            for stream in (stream_a, stream_b):
                await stream.until(
                    lambda stream: any("hello" in frame.payload.get("text", "") for frame in stream.of("delta"))
                )
            assert [one["run_id"] for one in await at_b.call("GET", "/runs")] == [run["run_id"], queued["run_id"]]
            cancelled = await at_b.cancel(session)
            assert [one["was"] for one in cancelled["covered"]] == ["active", "queued"]
            later = await at_a.submit(session, "script: say later", run_id=unique("run"))
            for stream in (stream_a, stream_b):
                ends = await stream.until_complete(run["run_id"], queued["run_id"], later["run_id"])
                assert [end["outcome"] for end in ends] == ["cancelled", "cancelled", "completed"]
            assert stream_a.positions == stream_b.positions == sorted(set(stream_a.positions))
        listed = await at_b.call("GET", "/nodes")
        assert [(node["name"], node["state"], node["is_this"]) for node in listed] == [
            ("a", "live", False),
            ("b", "live", True),
        ]
        assert [one["id"] for one in await at_b.call("GET", "/workspaces")] == [at_a.workspace]
        # A second client opens the directory on the other node, and gets the same workspace.
        async with nodes.peer(second, directory) as other:
            assert other.workspace == at_a.workspace
            assert [one["id"] for one in await other.call("GET", f"{other.at}/sessions")] == [session]


async def test_lost_node_is_replaced(nodes: Nodes, endpoint: Endpoint, directory: Path) -> None:
    first, second = nodes.add("a", config=ALLOW), nodes.add("b", config=ALLOW)
    mark = new_mark()
    async with nodes.peer(first, directory) as at_a, nodes.peer(second, directory, at=at_a) as at_b:
        session = await at_a.session()
        run = await at_a.submit(session, f"script: {hanging(mark)} | say after the crash", run_id=unique("run"))
        queued = await at_a.submit(session, "script: say queued", run_id=unique("run"))
        await until(lambda: marked(mark))
        async with at_b.stream(after=0) as before:
            await before.until(lambda stream: [run for run in stream.of("run") if run.payload["state"] == "queued"])
            first.kill()
            await until(lambda: not marked(mark))
        await until_moved(at_b)
        async with at_b.stream(after=before.positions[-1]) as stream:
            ends = await stream.until_complete(run["run_id"], queued["run_id"])
            assert [end["outcome"] for end in ends] == ["completed", "completed"]
            assert stream.positions[0] == before.positions[-1] + 1
            assert stream.positions == list(range(stream.positions[0], stream.positions[-1] + 1))
            assert all(len(stream.completes(one["run_id"])) == 1 for one in (run, queued))
        (result,) = [
            part
            for message in await at_b.messages(session)
            for part in message["parts"]
            if part["type"] == "tool_result"
        ]
        assert "may or may not" in result["data"]["content"]
        states = {node["name"]: node["state"] for node in await at_b.call("GET", "/nodes")}
        assert states == {"a": "lost", "b": "live"}


async def test_stopped_node_loses_its_tools_and_writes_nothing(nodes: Nodes, directory: Path) -> None:
    first, second = nodes.add("a", config=ALLOW), nodes.add("b", config=ALLOW)
    mark = new_mark()
    async with nodes.peer(first, directory) as at_a, nodes.peer(second, directory, at=at_a) as at_b:
        session = await at_a.session()
        run = await at_a.submit(session, f"script: {hanging(mark)} | say done", run_id=unique("run"))
        await until(lambda: marked(mark))
        assert first.process is not None
        first.process.send_signal(signal.SIGSTOP)
        try:
            await until(lambda: not marked(mark))  # although its server is stopped
            await until_moved(at_b)
            assert (await at_b.wait(run["run_id"]))["outcome"] == "completed"
            log_before = await at_b.messages(session)
        finally:
            first.process.send_signal(signal.SIGCONT)
        await until(lambda: "starting again" in first.log)
        # It is a node again, and forwards to the one that has its workspace.
        await until_moved(at_a)
        assert await at_a.messages(session) == log_before


async def test_queue_continues_elsewhere_when_a_node_stops(nodes: Nodes, endpoint: Endpoint, directory: Path) -> None:
    first, second = nodes.add("a"), nodes.add("b")
    key, tag = unique("key"), unique("tag")
    async with nodes.peer(first, directory) as at_a, nodes.peer(second, directory, at=at_a) as at_b:
        session = await at_a.session()
        active = await at_a.submit(session, f"script: tag {tag} | hold {key} | say never", run_id=unique("run"))
        queued = await at_a.submit(session, "script: say queued", run_id=unique("run"))
        await endpoint.wait_open(tag)
        assert await asyncio.to_thread(first.terminate) == 0
        await until_moved(at_b)
        assert (await at_b.wait(active["run_id"]))["outcome"] == "interrupted"
        assert (await at_b.wait(queued["run_id"]))["text"] == "queued"
        assert [node["name"] for node in await at_b.call("GET", "/nodes")] == ["b"]


async def test_workspaces_are_served_by_nodes_with_their_root(nodes: Nodes, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name / "project").mkdir(parents=True)
    first, second = nodes.add("a", tmp_path / "one"), nodes.add("b", tmp_path / "two")
    async with open_http(first.url, nodes.token) as http:
        peer = await Peer(http, tmp_path / "two" / "project").open()  # through a, on b
        session = await peer.session()
        assert (await peer.wait((await peer.submit(session, "script: say hello"))["run_id"]))["text"] == "hello"
        served = {node["name"]: node["workspaces"] for node in await peer.call("GET", "/nodes")}
        assert served.keys() == {"a", "b"}
        nowhere = Peer(http, tmp_path / "three" / "project")
        body = {"path": str(nowhere.directory), "client_id": nowhere.client_id}
        error = await nowhere.call("POST", "/workspaces", body, expect=503)
        assert error["code"] == "no_node"
        # Its only node is lost: the queue waits, and the error says for what.
        run = await peer.submit(session, f"script: hold {unique()} | say x", run_id=unique("run"))
        second.kill()
        await until_status(peer, "GET", f"{peer.at}/sessions", 404, 503)
        assert [one["run_id"] for one in await peer.call("GET", "/runs")] == [run["run_id"]]
        second.start(token=nodes.token)
        await until_status(peer, "GET", f"{peer.at}/sessions", 200)


async def test_strangers_are_refused(nodes: Nodes, tmp_path: Path, directory: Path) -> None:
    first = nodes.add("a")
    with pytest.raises(AssertionError, match="another cluster"):
        nodes.add("b", secret="x" * 40)
    with pytest.raises(AssertionError, match="at least 32 characters"):
        nodes.add("c", secret="short")
    async with httpx2.AsyncClient(base_url=first.url) as http:
        for authorization in ("Kedge-Node 1:a:b", f"Kedge-Node {2**33}:b:{'0' * 64}", "Kedge-Node", "Kedge-Node :::"):
            reply = await http.get("/v1/runs", headers={"authorization": authorization})
            assert reply.status_code == 401
            assert reply.json()["code"] == "unauthorized"


async def test_same_name_on_another_machine_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add("a")
    with pytest.raises(AssertionError, match="--node"):
        nodes.add("a", home=tmp_path / "another machine")


async def test_unusual_targets_are_forwarded_as_they_are(nodes: Nodes, directory: Path) -> None:
    first, second = nodes.add("a"), nodes.add("b")
    async with nodes.peer(first, directory) as at_a, nodes.peer(second, directory, at=at_a) as at_b:
        session = await at_a.session()
        await at_a.wait((await at_a.submit(session, "script: say one 'quoted' wörd", run_id=unique("run")))["run_id"])
        for query in (
            "q=quoted",
            "q=%27quoted%27",
            "q=w%C3%B6rd&limit=5",
            "q=\"a'b<c>",
            "q=a+b%20c",
            "limit=x",
            "q=%zz",
        ):
            target = f"/v1{at_a.at}/search?{query}"
            replies = [await peer.http.get(target) for peer in (at_a, at_b)]
            assert replies[0].status_code == replies[1].status_code, query
            assert replies[0].content == replies[1].content, query
        for name in ("%3F", "a%2Fb", "%00", "w%C3%B6rd", "a%20b", "..%2F..", "a;b"):
            replies = [await peer.http.get(f"/v1{at_a.at}/sessions/{name}") for peer in (at_a, at_b)]
            assert [reply.status_code for reply in replies] == [404, 404], name
            assert replies[0].content == replies[1].content, name
