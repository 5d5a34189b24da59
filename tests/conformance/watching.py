"""Helpers of sections D, E and G: readers that stall, metrics of the server, and the text that a client shows."""

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
    """A client that opens a stream, reads the head of the reply and nothing more."""

    def __init__(self, url: str, token: str, peer: Peer, query: str = "deltas=1") -> None:
        host = urlsplit(url)
        assert host.hostname is not None
        assert host.port is not None
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # Small, so that unread data stays in the server and not in the kernel.
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
        """Read to the end of the frame that contains `last`, or to the end of the connection."""
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
            pass  # the server aborts the connection of a client that does not read
        return bytes(received)


# --- metrics ---------------------------------------------------------------------------------------------------------


async def metric(http: httpx2.AsyncClient, name: str) -> float:
    reply = await http.get("/v1/metrics")
    assert reply.status_code == 200
    match = re.search(rf"^{name} ([0-9.]+)$", reply.text, re.MULTILINE)
    assert match, reply.text
    return float(match[1])


async def until_metric(http: httpx2.AsyncClient, name: str, condition: Callable[[float], bool]) -> None:
    """Poll a metric: gauges have no event."""
    async with asyncio.timeout(WAIT_S):
        while not condition(await metric(http, name)):
            pass


async def is_open(peer: Peer, workspace: str) -> bool:
    """Return True if the workspace is open. The request does not claim it."""
    reply = await peer.reply("GET", f"/workspaces/{workspace}")
    assert reply.status_code in (200, 404), reply.text
    return reply.status_code == 200


async def until_closed(peer: Peer, workspace: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while await is_open(peer, workspace):
            pass


def reset_memory_peak(pid: int) -> int:
    """Reset the memory peak of a process, and return its present memory in kB.

    The peak of an earlier test with the same server would hide a smaller one."""
    peak = Path(f"/proc/{pid}/clear_refs")
    if not peak.exists():
        pytest.skip("needs /proc")
    try:
        peak.write_text("5")  # see proc(5)
    except PermissionError:
        pytest.skip("needs root: a server is closed to other processes of its user")
    return memory_peak_kb(pid)


def open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:  # a server is closed to other processes of its user; Linux 6.2 still reports the number
        if not (count := os.stat(f"/proc/{pid}/fd").st_size):
            pytest.skip("needs root, or Linux 6.2")
        return count


def memory_peak_kb(pid: int) -> int:
    """Return the memory peak since the start or the last reset, in kB."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("needs /proc")
    return int(status.read_text().split("VmHWM:")[1].split()[0])


# --- the view of a client --------------------------------------------------------------------------------------------


def another(peer: Peer) -> Peer:
    """Return another client in the same workspace."""
    return Peer(peer.http, peer.directory, workspace=peer.workspace)


def identity_of(frame: Frame) -> tuple[int | None, str, str, str]:
    """Return the parts of a frame that do not depend on when it is read. The content of a record is the present one."""
    payload = frame.payload
    return frame.position, frame.type, payload.get("run_id") or payload["id"], payload.get("session_id") or ""


def words(count: int) -> str:
    """Return the text of the script command `words N`."""
    return " ".join(f"w{number}" for number in range(1, count + 1))


class Screen:
    """The messages that a client shows. They survive a reconnect. Every state of a text is recorded."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[int, str]] = {}
        self.states: dict[str, list[str]] = {}

    def show(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.type == "message":
                message_id = frame.payload["id"]
                numbered = enumerate(frame.payload["parts"])
                self.parts[message_id] = {
                    index: part["data"]["text"] for index, part in numbered if part["type"] == "text"
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
        return "".join(parts[index] for index in sorted(parts))

    def check(self, message_id: str, final: str) -> None:
        """Check that each state was a prefix of the final text, longer than the state before it."""
        states = self.states[message_id]
        for before, after in pairwise(states):
            assert len(after) > len(before), (before[-50:], after[-50:])
        for state in states:
            assert final.startswith(state), (state[-50:], final[:50])
        assert states[-1] == final


def check_history(messages: list[Json]) -> None:
    """Check the rules of all providers for a model request: each call is followed by its results, each result has its
    call, no message is empty, and no two assistant messages are adjacent."""
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
            assert message["content"] or waiting, f"empty message: {message}"
            assert (last, message["role"]) != ("assistant", "assistant"), messages
        last = message["role"]
    assert not waiting


async def in_parallel(work: list[Callable[[], Awaitable[None]]], at_once: int) -> None:
    slots = asyncio.Semaphore(at_once)

    async def one(begin: Callable[[], Awaitable[None]]) -> None:
        async with slots:
            await begin()

    async with asyncio.TaskGroup() as group:
        for begin in work:
            group.create_task(one(begin))
