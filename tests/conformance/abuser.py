"""A program that abuses a server, as a process with the lowest priority: connections that send their requests one byte
at a time or fall silent, thousands of streams, and a flood of requests.

    python -m tests.conformance.abuser HOST PORT TOKEN WORKSPACE SLOW STREAMS RATE

It prints a line when all connections are open, then floods, and prints the replies at the end of its input.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import uuid
from collections import Counter
from itertools import cycle

#: The interval between two bytes of a slow connection. Seconds.
SLOW_S = 0.5
#: Connections of the flood. Items.
FLOOD_LINES = 8
#: Concurrent connects. Items.
AT_ONCE = 50


class CountingConnection(asyncio.Protocol):
    """A connection that counts the received bytes and discards them."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.begun = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self.statuses: Counter[str] = Counter()
        self.replied = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 "):
            self.statuses[data[9:12].decode()] += 1
            self.replied.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()
        self.replied.set()

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)


class Abuser:
    def __init__(self, host: str, port: int, token: str, workspace: str) -> None:
        self.host, self.port, self.workspace = host, port, workspace
        self.head = f"Host: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        self.lines: list[CountingConnection] = []
        self.flooded: Counter[str] = Counter()
        self._places = asyncio.Semaphore(AT_ONCE)

    async def line(self) -> CountingConnection:
        async with self._places:
            _, line = await asyncio.get_running_loop().create_connection(CountingConnection, self.host, self.port)
        self.lines.append(line)
        return line

    async def slow(self, number: int) -> None:
        """Open slow connections: a third never ends its head, a third its body, and a third stays after one request."""
        line = await self.line()
        match number % 3:
            case 0:
                line.send(b"GET /v1/health HTTP/1.1\r\nX-Slow: ")
                self.trickle(line)
            case 1:
                kind = "Content-Type: application/json\r\nContent-Length: 60000\r\n"
                path = f"/v1/workspaces/{self.workspace}/sessions"
                line.send(f'POST {path} HTTP/1.1\r\n{self.head}{kind}\r\n{{"title": "'.encode())
                self.trickle(line)
            case _:
                line.send(f"GET /v1/health HTTP/1.1\r\n{self.head}\r\n".encode())
                await line.replied.wait()

    def trickle(self, line: CountingConnection) -> None:
        if not line.ended.is_set():
            line.send(b"x")
            asyncio.get_running_loop().call_later(SLOW_S, self.trickle, line)

    async def stream(self, number: int) -> None:
        line = await self.line()
        query = f"client_id={uuid.uuid4()}&deltas={number % 2}"
        line.send(f"GET /v1/workspaces/{self.workspace}/events?{query} HTTP/1.1\r\n{self.head}\r\n".encode())
        await line.replied.wait()

    async def flood(self, rate: float) -> None:
        """Send valid and invalid requests at a total rate, one at a time on each connection."""
        at = f"/v1/workspaces/{self.workspace}"
        body = b'{"title": 5}'
        typed = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        requests = cycle(
            [
                f"GET {at}/sessions HTTP/1.1\r\n{self.head}\r\n".encode(),
                f"GET {at} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nAuthorization: Bearer wrong\r\n\r\n".encode(),
                f"POST {at}/sessions HTTP/1.1\r\n{self.head}{typed}\r\n".encode() + body,
                f"GET /v1/nothing HTTP/1.1\r\n{self.head}\r\n".encode(),
                f"GET {at}/agent/runs/none HTTP/1.1\r\n{self.head}\r\n".encode(),
            ]
        )

        async def repeat_requests() -> None:
            line, loop = await self.line(), asyncio.get_running_loop()
            due = loop.time()
            while True:
                line.replied.clear()
                line.send(next(requests))
                await line.replied.wait()
                if line.ended.is_set():
                    line = await self.line()
                due = max(due + FLOOD_LINES / rate, loop.time())
                waited = asyncio.Event()
                loop.call_at(due, waited.set)
                await waited.wait()

        await asyncio.gather(*(repeat_requests() for _ in range(FLOOD_LINES)))


async def main(host: str, port: int, token: str, workspace: str, slow: int, streams: int, rate: float) -> None:
    abuser = Abuser(host, port, token, workspace)
    await asyncio.gather(*(abuser.slow(number) for number in range(slow)))
    await asyncio.gather(*(abuser.stream(number) for number in range(streams)))
    still = sum(not line.ended.is_set() for line in abuser.lines)
    print(json.dumps({"open": still}), flush=True)
    flood = asyncio.create_task(abuser.flood(rate))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    flood.cancel()
    statuses = sum((line.statuses for line in abuser.lines), Counter[str]())
    print(json.dumps(statuses), flush=True)


if __name__ == "__main__":
    os.nice(10)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192) if most > 0 else 8192, most))
    given = sys.argv[1:]
    asyncio.run(main(given[0], int(given[1]), given[2], given[3], int(given[4]), int(given[5]), float(given[6])))
