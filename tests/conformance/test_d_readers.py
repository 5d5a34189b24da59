"""SCENARIOS D: slow, stuck, disconnected and many readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance.harness import Endpoint, Peer, Server, Stream, unique
from tests.conformance.watching import (
    Screen,
    StuckReader,
    another,
    identity_of,
    memory_peak_kb,
    metric,
    until_metric,
    words,
)

#: Text of one Run: about the limit of a prompt, since the prompt contains the text for the model.
RUN_TEXT_BYTES = 500_000
TOTAL_BYTES = 50_000_000
STUCK_READERS = 6


async def much_text(peer: Peer, total_bytes: int, *streams: Stream) -> list[str]:
    """Make Runs until each stream has received `total_bytes` more, and return their ids.

    Each Run has its own session, or its model requests would grow with the history."""
    starts = [stream.bytes for stream in streams]
    said = " ".join([f"{number:06}" + "x" * 3_990 for number in range(RUN_TEXT_BYTES // 4_000)])
    runs: list[str] = []
    while any(stream.bytes < start + total_bytes for stream, start in zip(streams, starts, strict=True)):
        receipts = [await peer.submit(await peer.session(), f"script: say {said}") for _ in range(3)]
        runs += [receipt["run_id"] for receipt in receipts]
        for stream in streams:
            for complete in await stream.until_complete(*runs[-3:]):
                assert complete["text"] == said
    return runs


async def test_d4_a_stuck_reader_costs_little_and_misses_nothing(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    server = own_server()
    async with server.peer(workspace) as peer, peer.stream(deltas=1) as reader:
        await peer.session("the first event")
        await much_text(peer, TOTAL_BYTES // 4, reader)
        without_kb = memory_peak_kb(server.pid)
        last_seen, seen = reader.positions[-1], len(reader.durable)
        with ExitStack() as stuck:
            for number in range(STUCK_READERS):
                stuck.enter_context(StuckReader(server.url, server.token, another(peer), f"deltas={number % 2}"))
            runs = await much_text(peer, TOTAL_BYTES, reader)
            # The stuck readers are still connected, others are served, and no copy is stored per reader.
            assert await metric(peer.http, "kedge_streams_open") == 1 + STUCK_READERS
            grown_kb = memory_peak_kb(server.pid) - without_kb
            assert grown_kb < STUCK_READERS * TOTAL_BYTES / 1000 / 8, f"grew by {grown_kb} kB from {without_kb} kB"
        async with another(peer).stream(last_event_id=last_seen) as back:
            await back.until(lambda stream: stream.positions[-1:] == reader.positions[-1:])
        assert [identity_of(frame) for frame in back.durable] == [identity_of(frame) for frame in reader.durable[seen:]]
        assert not back.of("gap")
        assert [len(back.completes(run_id)) for run_id in runs] == [1] * len(runs)
        await until_metric(peer.http, "kedge_streams_open", lambda open_now: open_now == 1)


async def test_d4_a_slow_reader_misses_no_durable_event(own_server: Callable[..., Server], workspace: Path) -> None:
    """It stops reading until the ring has dropped its frames, and then reads again: the log has the rest."""
    server = own_server()
    async with server.peer(workspace) as peer, peer.stream() as reader:
        with StuckReader(server.url, server.token, another(peer), "deltas=1") as stuck:
            await much_text(peer, 6_000_000, reader)
            last = await peer.session("the last event")
            await reader.until(lambda stream: stream.durable[-1].payload["id"] == last)
            received = await stuck.read_until(last.encode())
    ids = [int(line[4:]) for line in received.split(b"\n") if line.startswith(b"id: ")]
    assert ids == reader.positions
    assert not any(b'"type":"gap"' in line for line in received.split(b"\n") if len(line) < 500)


async def test_d7_fifty_clients_of_a_streaming_run_get_all_text(kedge: Peer, endpoint: Endpoint) -> None:
    count, key = 200, unique("key")
    session = await kedge.session()
    async with asyncio.TaskGroup() as group:
        opening = [
            group.create_task(another(kedge).stream(deltas=int(number % 5 > 0)).__aenter__()) for number in range(50)
        ]
    streams = [task.result() for task in opening]
    try:
        prompt = f"script: hold {key} | pause 3 | words {count}"
        run_id = (await kedge.submit(session, prompt))["run_id"]
        endpoint.release(key)
        completes = [(await stream.until_complete(run_id))[0] for stream in streams]
        message_id = completes[0]["message_id"]
        for stream, complete in zip(streams, completes, strict=True):
            assert complete == completes[0]
            assert len(stream.completes(run_id)) == 1
            assert [identity_of(frame) for frame in stream.durable][:5] == [
                identity_of(frame) for frame in streams[0].durable
            ][:5]
            screen = Screen()
            screen.show(stream.frames)
            screen.check(message_id, words(count))
        assert completes[0]["text"] == words(count)
        # They got Deltas, not only the complete message at the end.
        assert all(len(stream.of("delta")) > 5 for number, stream in enumerate(streams) if number % 5)
    finally:
        await asyncio.gather(*(stream.close() for stream in streams))


async def test_d9_a_client_that_stops_reading_is_dropped(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server("[server]\nheartbeat_s = 0.2\nstall_s = 0.5")
    async with server.peer(workspace) as peer, peer.stream() as reader:
        with StuckReader(server.url, server.token, another(peer)) as stuck:
            assert await metric(peer.http, "kedge_streams_open") == 2
            await much_text(peer, 8_000_000, reader)
            await until_metric(peer.http, "kedge_streams_open", lambda open_now: open_now == 1)
            received = await stuck.read_until()  # ends: the connection is closed, not only its stream
        assert len(received) < reader.bytes
        # The client that reads is not affected.
        receipt = await peer.submit(await peer.session(), "script: say still here")
        assert (await reader.until_complete(receipt["run_id"]))[0]["text"] == "still here"


async def test_d9_a_disconnect_is_noticed_without_events(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server()
    async with server.peer(workspace) as peer, peer.stream():
        with StuckReader(server.url, server.token, another(peer)):
            assert await metric(peer.http, "kedge_streams_open") == 2
        await until_metric(peer.http, "kedge_streams_open", lambda open_now: open_now == 1)


async def test_d9_heartbeats_are_comments_of_an_idle_stream(own_server: Callable[..., Server], workspace: Path) -> None:
    server = own_server("[server]\nheartbeat_s = 0.05")
    async with server.peer(workspace) as peer, peer.stream(deltas=1) as stream:
        await stream.until(lambda stream: stream.comments.count("heartbeat") >= 5)
        assert stream.frames == []
        assert set(stream.comments) == {"connected", "heartbeat"}


@pytest.mark.found(
    "a review of the client: a session deleted while its reader was disconnected",
    "a client that reconnected got 404 and never the end of its Run; the stream is read from the log",
)
async def test_a_reconnect_to_a_deleted_session_gets_its_run_ends(kedge: Peer) -> None:
    session = await kedge.session()
    async with kedge.stream(session_id=session) as stream:
        receipt = await kedge.submit(session, "script: say begun | hang", run_id=unique("run"))
        await stream.until(lambda stream: stream.of("run"))
    await kedge.call("DELETE", f"{kedge.at}/sessions/{session}")
    async with kedge.stream(session_id=session, last_event_id=stream.positions[-1]) as stream:
        (complete,) = await stream.until_complete(receipt["run_id"])
    assert complete["outcome"] == "cancelled"
    reply = await kedge.reply("GET", f"{kedge.at}/events", client_id=kedge.client_id, session_id=session)
    assert reply.status_code == 404, "a new client gets 404"
