"""Clients that do not read: streams of long messages, plain replies; and requests to a paused server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from http.client import HTTPResponse
from pathlib import Path

import pytest

from proof.figures import IS_LONG, proof, size
from tests.conformance.harness import WAIT_S, Endpoint, Frame, Peer, Server, Stream, text_of, unique
from tests.conformance.loops import Address, address_of, new_client
from tests.conformance.test_attacks_transport import HEALTH, LimitedServer, connected
from tests.conformance.test_stuck import next_heartbeat
from tests.conformance.watching import (
    Screen,
    memory_peak_kb,
    reset_memory_peak,
    until_metric,
)

#: Streaming messages that a reader receives when it joins, and their length: 9 MB together. Items, bytes.
MESSAGES, MESSAGE_BYTES = 10, 930_000
#: Memory of a reader that does not read: its slice of 32 kB, its connection, its task. kB.
READER_KB_MAX = 80
#: Memory of the encoded messages, once for all readers, with an allocator that is fragmented. kB.
SHARED_KB_MAX = 30_000


async def until_streamed(peer: Peer, session_id: str, length: int) -> None:
    """Wait until the reply has so many characters."""
    async with asyncio.timeout(WAIT_S):
        while sum(len(text_of(message)) for message in (await peer.messages(session_id))[1:]) < length:
            pass


def ask(address: Address, workspace: str, deltas: int) -> socket.socket:
    """Open a stream and read nothing."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect((address.host, address.port))
    path = f"/v1/workspaces/{workspace}/events?client_id={new_client()}&deltas={deltas}"
    made.sendall(f"GET {path} HTTP/1.1\r\n{address.head}\r\n".encode())
    return made


@pytest.mark.found(
    "fault 4",
    "each reader that joined 9 MB of streaming messages and did not read cost 18 MB, and was dropped only after the "
    "next heartbeat; it now costs a slice and is dropped after stall_s",
)
@pytest.mark.proof
@pytest.mark.timeout(300 if IS_LONG else 120)
async def test_stuck_readers_of_streaming_messages_cost_a_slice(
    own_server: Callable[..., Server], endpoint: Endpoint, workspace: Path
) -> None:
    count = size(40, 1_990)
    server = own_server(f"[server]\nheartbeat_s = 600\nstall_s = {size(3, 20)}")
    text = " ".join(["x" * 99] * (MESSAGE_BYTES // 100))
    with proof("G15", "stuck readers of 9 MB of streaming messages", "kept, or above 80 kB") as figure:
        async with server.peer(workspace) as peer, peer.stream(session_id=await peer.session()):
            key = unique("key")
            sessions = [await peer.session() for _ in range(MESSAGES)]
            for session in sessions:
                await peer.submit(session, f"script: say {text} | hold {key} | say end")
            for session in sessions:
                await until_streamed(peer, session, len(text))
            before_kb, address = reset_memory_peak(server.pid), address_of(server.url, server.token)
            with ExitStack() as stuck:
                for number in range(count):
                    stuck.enter_context(closing(await asyncio.to_thread(ask, address, peer.workspace, number % 2)))
                await until_metric(peer.http, "kedge_streams_open", lambda open_now: open_now == 1 + count)
                # No heartbeat comes in this test: the time counts from when the socket was full.
                await until_metric(peer.http, "kedge_streams_open", lambda open_now: open_now == 1)
            grown_kb = memory_peak_kb(server.pid) - before_kb
            assert grown_kb < count * READER_KB_MAX + SHARED_KB_MAX, f"grew by {grown_kb} kB for {count} readers"
            endpoint.release(key)
        figure.count = count
        figure.notes["memory in all"] = f"{grown_kb // 1024} MB"


async def test_reader_joining_a_long_reply_gets_its_exact_text(
    own_server: Callable[..., Server], endpoint: Endpoint, workspace: Path
) -> None:
    """It reads nothing while the reply grows, and then everything."""
    server = own_server()
    first, second = " ".join(["\u00e4" * 50] * 2_000), " ".join(["y\u20ac" * 50] * 3_000)
    async with server.peer(workspace) as peer, peer.stream(deltas=1) as reader:
        key, last = unique("key"), unique("key")
        prompt = f"script: say {first} | hold {key} | say {second} | hold {last}"
        session = await peer.session()
        receipt = await peer.submit(session, prompt)
        await until_streamed(peer, session, len(first))
        address = address_of(server.url, server.token)
        with closing(ask(address, peer.workspace, 1)) as line, closing(HTTPResponse(line)) as late:
            await asyncio.to_thread(late.begin)
            endpoint.release(key)
            await until_streamed(peer, session, len(first) + len(second))
            endpoint.release(last)
            (complete,) = await reader.until_complete(receipt["run_id"])
            frames = await asyncio.to_thread(read_until_complete, late)
    screen = Screen()
    screen.show(frames)
    screen.check(complete["message_id"], f"{first} {second}")


def read_until_complete(stream: HTTPResponse) -> list[Frame]:
    frames: list[Frame] = []
    while not any(frame.type == "run_complete" for frame in frames):
        line = stream.readline()
        assert line, "the stream ended"
        if line.startswith(b"data: "):
            body = json.loads(line[6:])
            frames.append(Frame(body["type"], "", body["payload"]["payload"], None))
    return frames


# --- plain replies ----------------------------------------------------------------------------------------------------


def ask_unix(server: Server, path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(30)
    made.connect(str(server.socket))
    made.sendall(f"GET /v1{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return made


async def read_slowly(reply: socket.socket, length: int, clock: Stream) -> bytes:
    """Read a part at each heartbeat of another stream."""
    received = b""
    while len(received) < length:
        received += await asyncio.to_thread(reply.recv, length // 40)
        await clock.until(next_heartbeat(clock.comments.count("heartbeat")))
    return received


@pytest.mark.found(
    "fault 17",
    "a reply that its client did not read was kept for ever on the Unix socket; now for stall_s, and longer if the "
    "client reads slowly",
)
async def test_unread_replies_are_dropped_and_slow_ones_kept(
    own_server: Callable[..., Server], workspace: Path
) -> None:
    server = own_server("[server]\nheartbeat_s = 0.1\nstall_s = 1")
    async with server.peer(workspace) as peer, peer.stream() as stream:
        session = await peer.session()
        for _ in range(2):
            receipt = await peer.submit(session, "script: say " + "x" * 900_000)
            await stream.until_complete(receipt["run_id"])
        path = f"{peer.at}/sessions/{session}/messages"
        length = len((await peer.reply("GET", path)).content)
        with ExitStack() as unread:
            slow = unread.enter_context(ask_unix(server, path))
            held = [unread.enter_context(ask_unix(server, path)) for _ in range(5)]
            # Takes longer than the server waits for the others.
            received = await read_slowly(slow, length, stream)
            assert received.startswith(b"HTTP/1.1 200")
            for reply in held:
                assert len(read_rest(reply)) < length


def read_rest(reply: socket.socket) -> bytes:
    received = b""
    try:
        while data := reply.recv(1 << 20):
            received += data
    except ConnectionResetError:
        pass
    return received


# --- a pause of the server --------------------------------------------------------------------------------------------


def is_answered(connection: socket.socket) -> bool:
    """Read one whole reply to HEALTH."""
    reply = b""
    while not reply.endswith(b'"ready"}') and (more := connection.recv(4096)):
        reply += more
    return reply.startswith(b"HTTP/1.1 200")


@pytest.mark.found(
    "fault 19",
    "a request that arrived while the server was stopped was refused with 400, or its kept-alive connection was reset; "
    "it is now read before the deadline counts",
)
async def test_requests_sent_during_a_pause_are_answered(endpoint: Endpoint, tmp_path: Path) -> None:
    limits: dict[str, dict[str, float]] = {
        "kedge.server.protocol": {"HEAD_S_MAX": 2.0},
        "kedge.server.http_server": {"KEEP_ALIVE_S": 2},
    }
    server = LimitedServer(tmp_path / "server", endpoint.hosted.url, limits).start()
    try:
        with connected(server.url) as new, connected(server.url) as begun, connected(server.url) as kept:
            kept.sendall(HEALTH)
            assert is_answered(kept)
            begun.sendall(HEALTH[:9])
            with connected(server.url) as later:  # accepted after the others
                later.sendall(HEALTH)
                assert is_answered(later)
            # All deadlines pass in the meantime.
            pause = f"kill -STOP {server.pid}; echo stopped; sleep 4; kill -CONT {server.pid}"
            pausing = await asyncio.create_subprocess_exec("sh", "-c", pause, stdout=asyncio.subprocess.PIPE)
            assert pausing.stdout is not None
            assert await pausing.stdout.readline() == b"stopped\n"
            new.sendall(HEALTH)
            begun.sendall(HEALTH[9:])
            kept.sendall(HEALTH)
            assert await pausing.wait() == 0
            for connection in (new, begun, kept):
                assert await asyncio.to_thread(is_answered, connection)
    finally:
        server.stop()
