"""Readers at another node than the one that serves their workspace: they share one stream of that node, and continue
from the store while it cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes
from tests.conformance.harness import Endpoint, Peer, Server, Stream, unique
from tests.conformance.loops import new_client
from tests.polling import until
from tests.postgres_server import free_port
from tests.store.tcp_proxy import TcpProxy

pytestmark = pytest.mark.timeout(120)

READERS = 30


@dataclass
class Pair:
    """Node a serves the workspace, node b has the readers. All connections from b to a go through the link."""

    a: Server
    b: Server
    at_a: Peer
    at_b: Peer
    link: TcpProxy

    def cut(self) -> None:
        self.link.is_accepting = False
        self.link.cut()


@asynccontextmanager
async def pair(nodes: Nodes, directory: Path, config: str = "") -> AsyncIterator[Pair]:
    port = free_port()
    async with TcpProxy(port) as link:
        options = ("--node-url", f"http://127.0.0.1:{link.port}")
        a = await asyncio.to_thread(nodes.add, "a", config=config, options=options, port=port)
        b = await asyncio.to_thread(nodes.add, "b", config=config)
        async with nodes.peer(a, directory) as at_a, nodes.peer(b, directory, at=at_a) as at_b:
            yield Pair(a, b, at_a, at_b, link)


def assert_complete(*streams: Stream) -> None:
    """Check that each stream has neither a gap nor a duplicate, and has not ended."""
    for stream in streams:
        positions = stream.positions
        assert positions == list(range(positions[0], positions[-1] + 1))
        assert not stream.of("gap")
        assert not stream.ended


async def first_message(stream: Stream, text: str) -> str:
    """Wait until a message has this text, and return its id."""

    def shown(stream: Stream) -> str | None:
        ids = {frame.payload["id"] for frame in stream.of("message") if frame.payload["role"] == "assistant"}
        return next((id_ for id_ in ids if stream.text(id_) == text), None)

    return str(await stream.until(shown))


async def test_readers_share_one_connection(nodes: Nodes, endpoint: Endpoint, directory: Path) -> None:
    async with pair(nodes, directory) as p, AsyncExitStack() as stack:
        session = await p.at_b.session()
        before = p.link.accepted
        streams = await asyncio.gather(
            *(stack.enter_async_context(p.at_b.stream(deltas=int(number % 3 > 0))) for number in range(READERS))
        )
        key = unique("key")
        run = await p.at_a.submit(session, f"script: words 50 | hold {key} | say end", run_id=unique("run"))
        await streams[1].until(lambda stream: [one for one in stream.of("delta") if "49" in str(one)] or None)
        late = await stack.enter_async_context(p.at_b.stream(deltas=1, session_id=session))
        endpoint.release(key)
        ends = [await stream.until_complete(run["run_id"]) for stream in (*streams, late)]
        assert {end[0]["outcome"] for end in ends} == {"completed"}
        # One for the stream, and one for the requests that name its readers, one after the other.
        assert p.link.accepted - before <= 2
        text = ends[0][0]["text"]
        message = ends[0][0]["message_id"]
        assert {stream.text(message) for stream in (*streams, late)} == {text}
        assert len({tuple(stream.positions) for stream in streams}) == 1
        assert_complete(*streams)
        deltas = [len(stream.of("delta")) for stream in streams]
        assert all(count == 0 if number % 3 == 0 else count > 0 for number, count in enumerate(deltas))


async def test_cut_link_is_bridged_by_the_store(nodes: Nodes, endpoint: Endpoint, directory: Path) -> None:
    async with pair(nodes, directory) as p, p.at_b.stream(deltas=1) as stream:
        session = await p.at_a.session()
        first, second, third = (unique("key") for _ in range(3))
        script = f"script: say one | hold {first} | say two | hold {second} | say three | hold {third} | say four"
        run = await p.at_a.submit(session, script, run_id=unique("run"))
        message = await first_message(stream, "one")
        p.cut()
        endpoint.release(first)
        await stream.until(lambda stream: stream.text(message) == "one two")
        queued = await p.at_a.submit(session, "script: say queued", run_id=unique("run"))
        await stream.until(
            lambda stream: [one for one in stream.of("run") if one.payload["run_id"] == queued["run_id"]]
        )
        assert stream.text(message) == "one two"
        refused = await p.at_b.submit(session, "script: say never", expect=503, run_id=unique("run"))
        assert refused["code"] == "node_unreachable"
        async with p.at_b.stream(deltas=1, after=0) as late:
            await late.until(lambda stream: stream.text(message) == "one two")
            p.link.is_accepting = True
            await until(lambda: "is streamed by node a again" in p.b.log)
            endpoint.release(second)
            for one in (stream, late):
                await one.until(lambda stream: stream.text(message) == "one two three")
            p.cut()
            endpoint.release(third)
            for one in (stream, late):
                ends = await one.until_complete(run["run_id"], queued["run_id"])
                assert [end["text"] for end in ends] == ["one two three four", "queued"]
                assert one.text(message) == "one two three four"
            assert_complete(stream, late)


async def test_silent_link_is_a_cut_one(nodes: Nodes, endpoint: Endpoint, directory: Path) -> None:
    async with pair(nodes, directory) as p, p.at_b.stream(deltas=1) as stream:
        session = await p.at_a.session()
        await stream.until(lambda stream: stream.positions)
        p.link.from_server.clear()
        run = await p.at_a.submit(session, "script: say hello", run_id=unique("run"))
        assert (await stream.until_complete(run["run_id"]))[0]["text"] == "hello"
        p.link.from_server.set()
        await until(lambda: "is streamed by node a again" in p.b.log)
        later = await p.at_b.submit(session, "script: say later", run_id=unique("run"))
        assert (await stream.until_complete(later["run_id"]))[0]["text"] == "later"
        assert_complete(stream)


@pytest.mark.parametrize("is_killed", [True, False])
async def test_stream_follows_its_workspace_to_another_node(
    nodes: Nodes, endpoint: Endpoint, directory: Path, is_killed: bool
) -> None:
    async with pair(nodes, directory) as p, p.at_b.stream(deltas=1) as stream, p.at_b.stream() as other:
        session = await p.at_a.session()
        key, tag = unique("key"), unique("tag")
        active = await p.at_a.submit(
            session, f"script: tag {tag} | say one | hold {key} | say two", run_id=unique("run")
        )
        queued = await p.at_a.submit(session, "script: say queued", run_id=unique("run"))
        await first_message(stream, "one")
        await asyncio.to_thread(p.a.kill if is_killed else p.a.terminate)
        endpoint.release(key)
        for one in (stream, other):
            ends = await one.until_complete(active["run_id"], queued["run_id"])
            assert [end["outcome"] for end in ends] == ["completed" if is_killed else "interrupted", "completed"]
        assert_complete(stream, other)


async def test_readers_hold_the_workspace_at_its_node(nodes: Nodes, endpoint: Endpoint, directory: Path) -> None:
    config = "[server]\nhold_s = 0.5\ngrace_s = 0.5"
    async with pair(nodes, directory, config) as p, nodes.peer(p.b, directory, at=p.at_a) as other:
        other.client_id = new_client()
        session = await p.at_b.session()
        tag = unique("tag")
        async with other.stream() as watching:
            async with p.at_b.stream(session_id=session):
                run = await p.at_b.submit(session, f"script: tag {tag} | hang", on_disconnect="cancel", run_id=unique())
                await endpoint.wait_open(tag)
                await p.at_b.call(
                    "POST", f"{p.at_b.at}/current-session", {"session_id": session}, client_id=p.at_b.client_id
                )
                shown = await p.at_a.call("GET", f"{p.at_b.at}/sessions/{session}")
                assert shown["attached_clients"] == 1
            # The claim of the client that has left lapses; the other one still holds the Run.
            await until_detached(p.at_a, session)
            later = await p.at_a.submit(await p.at_a.session(), "script: say later", run_id=unique("run"))
            assert (await p.at_a.wait(later["run_id"]))["text"] == "later"  # a cancel would be recorded by now
            held = await p.at_a.run(run["run_id"])
            assert (held["state"], held["stopping"]) == ("active", False)
            assert not watching.completes(run["run_id"])
        assert (await p.at_a.wait(run["run_id"]))["outcome"] == "cancelled"


async def until_detached(peer: Peer, session: str) -> None:
    while (await peer.call("GET", f"{peer.at}/sessions/{session}"))["attached_clients"]:
        pass


async def test_refused_readers_receive_the_reason(nodes: Nodes, directory: Path) -> None:
    async with pair(nodes, directory) as p, nodes.peer(p.b, directory) as other, other.stream() as stream:
        await p.at_a.call("DELETE", f"/clients/{p.at_a.client_id}")
        refused = await p.at_b.call("GET", f"{p.at_b.at}/events", client_id=p.at_b.client_id, expect=409)
        assert refused["code"] == "client_retired"
        unknown = await other.call("GET", f"{other.at}/events", client_id=new_client(), session_id="none", expect=404)
        assert unknown["code"] == "session_not_found"
        await p.at_b.call("GET", f"/workspaces/{other.workspace}x/events", client_id=new_client(), expect=404)
        assert not stream.ended


async def test_slow_reader_delays_no_other(nodes: Nodes, directory: Path) -> None:
    async with pair(nodes, directory) as p, p.at_b.stream(deltas=1) as fast:
        session = await p.at_b.session()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(p.b.url.rpartition(":")[2]), limit=4096)
        target = f"/v1{p.at_b.at}/events?client_id={p.at_b.client_id}"
        head = f"GET {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {nodes.token}\r\n\r\n"
        writer.write(head.encode())
        await reader.readuntil(b": connected")
        runs = [await p.at_b.submit(session, f"script: say {'x' * 200_000}", run_id=unique("run")) for _ in range(20)]
        ids = [run["run_id"] for run in runs]
        await fast.until_complete(*ids)
        assert_complete(fast)
        seen: list[int] = []
        async with asyncio.timeout(60):
            while not seen or seen[-1] < fast.positions[-1]:
                data = await _line(reader)
                if data.startswith(b"id: "):
                    seen.append(int(data[4:]))
        assert seen[1:] == list(range(seen[1], fast.positions[-1] + 1))
        writer.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Return the start of the next line."""
    start = b""
    while True:
        try:
            return start or (await reader.readuntil(b"\n")).strip()
        except asyncio.LimitOverrunError as error:
            await reader.readexactly(error.consumed)
