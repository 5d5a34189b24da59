"""Load that a server carries and then releases: a session of 20,000 messages, and floods of connections."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kedge.core.records import WorkspaceRecord, first_position
from kedge.store.sqlite import SqliteStore
from proof.figures import proof, size
from tests.conformance.harness import Endpoint, Server, unique
from tests.conformance.loops import Address, Wire, address_of, new_client, open_workspace
from tests.conformance.test_abuse import memory_kb, until_closed
from tests.conformance.watching import memory_peak_kb, open_files, reset_memory_peak
from tests.server.test_long_work import add_session

pytestmark = [pytest.mark.long, pytest.mark.proof, pytest.mark.timeout(300)]

# --- a long session ---------------------------------------------------------------------------------------------------

#: Length of a message: the scripted endpoint accepts the part of the session that a model gets. Characters.
MESSAGE_CHARS = 3_000
#: Messages that a model gets at the most. Items.
HISTORY_MESSAGES = 10_000
#: Memory for a page of messages or a replay, whatever the length of the session. kB.
PAGE_KB_MAX = 64 * 1024
#: Memory for one request with the history: its records, and its JSON twice. Multiple of its size.
HISTORY_COPIES_MAX = 8


async def replay(address: Address, workspace: str, head: int) -> int:
    """Read the log of the workspace up to this Position, and return the number of its events."""
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=1 << 20)
    path = f"/v1/workspaces/{workspace}/events?client_id={new_client()}&after=0"
    writer.write(f"GET {path} HTTP/1.1\r\n{address.head}\r\n".encode())
    events, last, line = 0, f"id: {head}\n".encode(), b"-"
    while line and line != last:
        line = await reader.readline()
        events += line.startswith(b"data: ")
    assert line == last
    writer.transport.abort()
    return events + 1


async def test_long_session_is_paged_replayed_and_sent(endpoint: Endpoint, tmp_path: Path, workspace: Path) -> None:
    count, tag = size(2_000, 20_000), unique("tag")
    server = Server(tmp_path / "server", endpoint.hosted.url)
    config = server.home / "config.toml"
    config.write_text(config.read_text().replace('"fake-large" }', '"fake-large", context_window = 100_000_000 }'))
    store = SqliteStore(server.data_dir)
    await store.open()
    await store.workspace(str(workspace), WorkspaceRecord("w1", str(workspace), 1, first_position("w1")))
    await add_session(store, "long", count, MESSAGE_CHARS)
    _, head = await store.bounds("w1")
    await store.close()
    with proof("G15", "messages of one session", "lost, or held in memory") as figure:
        began = time.monotonic()

        def note(what: str, grown_kb: int = 0) -> None:
            nonlocal began
            figure.notes[what] = f"{time.monotonic() - began:.2f} s, {grown_kb // 1024} MB"
            began = time.monotonic()

        server.start()
        try:
            note("start")
            address = address_of(server.url, server.token)
            async with server.peer(workspace) as peer:
                assert peer.workspace == "w1"
                before_kb = reset_memory_peak(server.pid)
                began = time.monotonic()
                await peer.call("GET", f"{peer.at}/sessions/long/messages", limit=1_000)
                note("page of 1,000")
                messages = await peer.messages("long")
                assert [message["id"] for message in messages] == [f"long-{number}" for number in range(count)]
                note("all pages", memory_peak_kb(server.pid) - before_kb)
                assert memory_peak_kb(server.pid) - before_kb < PAGE_KB_MAX
                before_kb = reset_memory_peak(server.pid)
                assert await replay(address, "w1", head) == count
                note("replay", memory_peak_kb(server.pid) - before_kb)
                assert memory_peak_kb(server.pid) - before_kb < PAGE_KB_MAX
                before_kb = reset_memory_peak(server.pid)
                run_id = (await peer.submit("long", f"script: tag {tag} | say done"))["run_id"]
                assert (await peer.wait(run_id))["text"] == "done"
                grown_kb = memory_peak_kb(server.pid) - before_kb
                note("history sent", grown_kb)
                (request,) = endpoint.requests(tag)
                sent = [message for message in request.messages if message["role"] != "system"]
                assert len(sent) > min(count, HISTORY_MESSAGES) - 2
                assert tag in sent[-1]["content"]
                assert grown_kb * 1024 < HISTORY_COPIES_MAX * HISTORY_MESSAGES * MESSAGE_CHARS
            figure.count = count
        finally:
            server.stop()


# --- connections ------------------------------------------------------------------------------------------------------

#: Connections at the same time. Items.
LINES = 20
#: Memory that thousands of closed connections may leave: fragments in the allocator. kB.
LEFT_KB_MAX = 16 * 1024
RESET = struct.pack("ii", 1, 0)


async def come_and_go(address: Address, data: bytes, count: int, until: bytes) -> None:
    """Connect, send this data, read until that text, and disconnect; every other time with a reset."""
    for number in range(count):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(data)
        if until:
            await reader.readuntil(until)
        if number % 2:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()


async def use_normally(address: Address, directory: Path, flood: asyncio.Task[None]) -> list[float]:
    """Send requests of a normal client during the flood; return the seconds that each took."""
    wire, took = Wire(address), list[float]()
    workspace = await open_workspace(wire, directory)
    while not flood.done():
        began = time.monotonic()
        await wire.expect(200, "POST", f"/workspaces/{workspace}/sessions", {"title": ""})
        took.append(time.monotonic() - began)
    wire.close()
    return took


async def test_floods_of_connections_leave_nothing(
    own_server: Callable[..., Server], workspace: Path, tmp_path: Path
) -> None:
    count = size(500, 6_000)
    server = own_server()
    server.checks_stalls = False
    address = address_of(server.url, server.token)
    wire = Wire(address)
    path = f"/v1/workspaces/{await open_workspace(wire, workspace)}/events?client_id={new_client()}"
    wire.close()
    kinds = {
        "bare": (b"", b""),
        "half a head": (b"GET /v1/health HTTP/1.1\r\nHost: x", b""),
        "streams": (f"GET {path} HTTP/1.1\r\n{address.head}\r\n".encode(), b": connected"),
    }

    async def flood(data: bytes, until: bytes, each: int) -> None:
        await asyncio.gather(*(come_and_go(address, data, each, until) for _ in range(LINES)))

    with proof("G15", "connections that come and go", "kept, or at the cost of others") as figure:
        await flood(*kinds["streams"], 10)  # loads the late imports
        await until_closed(address, server.pid, open_files(server.pid))
        files, before_kb = open_files(server.pid), memory_kb(server.pid)
        for kind, (data, until) in kinds.items():
            each = count // LINES // (2 if kind == "streams" else 1)
            began = time.monotonic()
            flooding = asyncio.create_task(flood(data, until, each))
            took = sorted(await use_normally(address, tmp_path, flooding))
            await flooding
            rate = each * LINES / (time.monotonic() - began)
            assert took
            await until_closed(address, server.pid, files)
            figure.count += each * LINES
            figure.notes[f"{kind}, per second"] = f"{rate:.0f}"
            figure.notes[f"a write during {kind}"] = (
                f"p50 {took[len(took) // 2] * 1000:.0f}, most {took[-1] * 1000:.0f} ms"
            )
        left_kb = memory_kb(server.pid) - before_kb
        assert left_kb < LEFT_KB_MAX, f"{left_kb} kB"
        figure.notes["memory left"] = f"{left_kb} kB"
