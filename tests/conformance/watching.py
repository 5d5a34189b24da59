"""For sections D, E and G: sockets that stop reading, the server seen from outside, what a client's screen shows."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.conformance.harness import WAIT_S, Frame, Json, Peer


class StuckReader:
    """Asks for the stream, reads the head of the reply, and from then on nothing, with the socket left open."""

    def __init__(self, url: str, token: str, peer: Peer, query: str = "deltas=1") -> None:
        host = urlsplit(url)
        assert host.hostname is not None
        assert host.port is not None
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # Small, so that the server and not the kernel has to hold what is not read.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(WAIT_S)
        self._socket.connect((host.hostname, host.port))
        request = (
            f"GET /v1{peer.at}/events?client_id={peer.client_id}&{query} HTTP/1.1\r\n"
            f"Host: {host.hostname}:{host.port}\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        self._socket.sendall(request.encode())
        head = b""
        while b"\n\n" not in head.partition(b": connected")[2]:
            head += self._socket.recv(512)
        assert head.startswith(b"HTTP/1.1 200")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    async def read_until(self, last: bytes = b"") -> bytes:
        """Read after all, until this comes and the frame it is in is whole; without it until the connection ends."""
        return await asyncio.to_thread(self._read_until, last)

    def _read_until(self, last: bytes) -> bytes:
        received = bytearray()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        try:
            while data := self._socket.recv(1 << 20):
                received += data
                if last and last in received[-10_000:] and received.endswith(b"\n\n\r\n"):
                    break
        except ConnectionResetError:
            pass  # dropped without a farewell, as a server does with one that would not read it
        return bytes(received)


# --- the server from outside -----------------------------------------------------------------------------------------


async def metric(http: httpx2.AsyncClient, name: str) -> float:
    reply = await http.get("/v1/metrics")
    assert reply.status_code == 200
    found = re.search(rf"^{name} ([0-9.]+)$", reply.text, re.MULTILINE)
    assert found, reply.text
    return float(found[1])


async def until_metric(http: httpx2.AsyncClient, name: str, condition: Callable[[float], bool]) -> None:
    """Ask again and again: gauges have no event."""
    async with asyncio.timeout(WAIT_S):
        while not condition(await metric(http, name)):
            pass


async def is_open(peer: Peer, workspace: str) -> bool:
    """Whether the server has this workspace open. Asking does not hold it."""
    reply = await peer.reply("GET", f"/workspaces/{workspace}")
    assert reply.status_code in (200, 404), reply.text
    return reply.status_code == 200


async def until_gone(peer: Peer, workspace: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while await is_open(peer, workspace):
            pass


def forget_memory_peak(pid: int) -> int:
    """What the process holds now, in kB. From here on its peak is counted anew: one of earlier, such as that of another
    test with the same server, would hide all that is smaller."""
    peak = Path(f"/proc/{pid}/clear_refs")
    if not peak.exists():
        pytest.skip("needs /proc")
    try:
        peak.write_text("5")  # see proc(5)
    except PermissionError:
        pytest.skip("a server lets no other process of its user do this: needs root")
    return memory_peak_kb(pid)


def open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:  # a server is closed to other processes of its user; newer kernels tell the number
        if not (count := os.stat(f"/proc/{pid}/fd").st_size):
            pytest.skip("needs root, or Linux 6.2")
        return count


def memory_peak_kb(pid: int) -> int:
    """The most that the process held since it began, or since its peak was forgotten, in kB."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("needs /proc")
    return int(status.read_text().split("VmHWM:")[1].split()[0])


# --- what a client makes of it ---------------------------------------------------------------------------------------


def another(peer: Peer) -> Peer:
    """Another client in the same workspace."""
    return Peer(peer.http, peer.directory, workspace=peer.workspace)


def kind_of(frame: Frame) -> tuple[int | None, str, str, str]:
    """What stays the same however late a frame is read: a record's content is the present one."""
    payload = frame.payload
    return frame.position, frame.type, payload.get("run_id") or payload["id"], payload.get("session_id") or ""


def words(count: int) -> str:
    """What the script's `words N` says."""
    return " ".join(f"w{number}" for number in range(1, count + 1))


class Screen:
    """What a client shows of the messages: it keeps its texts when it reconnects. Every state of a text is noted."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[int, str]] = {}
        self.states: dict[str, list[str]] = {}

    def show(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.type == "message":
                message_id = frame.payload["id"]
                found = enumerate(frame.payload["parts"])
                self.parts[message_id] = {
                    place: part["data"]["text"] for place, part in found if part["type"] == "text"
                }
            elif frame.type == "delta":
                message_id = frame.payload["message_id"]
                parts = self.parts.setdefault(message_id, {})
                parts[frame.payload["part"]] = parts.get(frame.payload["part"], "") + frame.payload["text"]
            else:
                continue
            states = self.states.setdefault(message_id, [])
            if states[-1:] != [self.text(message_id)]:
                states.append(self.text(message_id))

    def text(self, message_id: str) -> str:
        parts = self.parts.get(message_id, {})
        return "".join(parts[place] for place in sorted(parts))

    def check(self, message_id: str, final: str) -> None:
        """Each state was a beginning of the final text, and none was shorter than the one before it."""
        states = self.states[message_id]
        for before, after in pairwise(states):
            assert len(after) > len(before), (before[-50:], after[-50:])
        for state in states:
            assert final.startswith(state), (state[-50:], final[:50])
        assert states[-1] == final


def check_history(messages: list[Json]) -> None:
    """A model request that every provider's rules allow: no call without its results right behind it, no result without
    its call, nothing empty, and no model that talks to itself."""
    spoken = [message for message in messages if message["role"] != "system"]
    assert spoken[0]["role"] == "user"
    assert spoken[-1]["role"] in ("user", "tool")
    waiting: list[str] = []
    last = ""
    for message in spoken:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting, messages
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting, f"calls without results: {waiting}"
            waiting = [call["id"] for call in message.get("tool_calls", [])]
            assert message["content"] or waiting, f"an empty message: {message}"
            assert (last, message["role"]) != ("assistant", "assistant"), messages
        last = message["role"]
    assert not waiting


async def in_parallel(work: list[Callable[[], Awaitable[None]]], at_once: int) -> None:
    places = asyncio.Semaphore(at_once)

    async def one(begin: Callable[[], Awaitable[None]]) -> None:
        async with places:
            await begin()

    async with asyncio.TaskGroup() as group:
        for begin in work:
            group.create_task(one(begin))
