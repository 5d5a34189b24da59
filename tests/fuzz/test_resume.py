"""Fuzzed resume values: a Position of the log gets exactly the events after it, a Position of another log gets a gap,
and everything else is refused."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote_plus

import pytest

from kedge.testing.hosted import HostedEndpoint
from proof.figures import IS_LONG, proof
from tests.conformance.harness import WAIT_S, Peer, Server
from tests.fuzz.seeds import IS_REPLAY, name_of, parts, replay

#: Values per seed. The refused ones share one connection.
EACH = 50
#: The largest integer that every JSON parser represents exactly.
POSITION_MAX = 2**53
ODD = (
    "", " ", "-1", "+1", "-0", "1.0", "1e3", "0x10", "0b1", "1_0", "1,000", "1 2", "null", "NaN", "inf", "true",
    "[]", "{}", "'1'", '"1"', "1;", "1\x0b", "%31", "0", "00", "0" * 16, "0" * 17, "9" * 16, "9" * 17, "9" * 5000,
    str(POSITION_MAX),
    str(POSITION_MAX + 1),
    str(2**64),
    "\u202e1",
    "1\u200b",
    "\u0661",
    "\u00b2",
    "\uff11",
    "\u2460",
)  # fmt: skip


@dataclass(frozen=True)
class Log:
    """A workspace whose log no longer grows."""

    server: Server
    path: str
    #: The Position before the first event. `positions` are those of all events.
    base: int
    positions: list[int]
    foreign: int

    def expected(self, value: str) -> tuple[bool, list[int]] | None:
        """(has a gap, the Positions sent), or None if the value is refused."""
        if not value:
            return False, []
        if re.fullmatch(r"[0-9]{1,16}", value) is None or int(value) > POSITION_MAX:
            return None
        after = int(value) or self.base
        if not self.base <= after <= self.positions[-1]:
            return True, []
        return False, [position for position in self.positions if position > after]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with HostedEndpoint() as endpoint:
        server = Server(tmp_path_factory.mktemp("resume"), endpoint.url).start()
        yield asyncio.run(_fill(server, tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")))
        server.stop()


async def _fill(server: Server, here: Path, there: Path) -> Log:
    async with server.http() as http:
        peer, other = await Peer(http, here).open(), await Peer(http, there).open()
        for each in (peer, other):
            for _ in range(2):
                run = await each.submit(await each.session(), "script: say something")
                await each.wait(run["run_id"])
        # The last event: all others precede it.
        last = await peer.session("last")
        async with peer.stream(after=0) as stream:
            await stream.until(lambda stream: any(frame.payload.get("id") == last for frame in stream.durable))
            positions = stream.positions
        path = f"/v1{peer.at}/events?client_id={peer.client_id}"
        return Log(server, path, positions[0] - 1, positions, run["position"])


def value_of(rng: random.Random, log: Log) -> str:
    kind = rng.random()
    if kind < 0.02:
        return str(rng.choice((log.base, log.positions[-1], log.foreign, *log.positions)) + rng.choice((0, 0, -1, 1)))
    if kind < 0.025:
        return str(rng.randrange(POSITION_MAX))
    value = rng.choice(ODD) if kind < 0.6 else str(rng.choice(log.positions))
    for _ in range(rng.choice((0, 1, 1, 2)) if kind < 0.6 else 1):
        index = rng.randrange(len(value) + 1)
        value = (
            value[:index]
            + rng.choice((*"-+.,eE_xX#%&= \t;:'\"/\\", "\u0660", "\x7f", "\x01", "é", "٣"))
            + value[index:]
        )
    return value


def request_of(rng: random.Random, log: Log) -> tuple[bytes, str]:
    """A resume request and its effective value: the header, or else the last query parameter."""
    query = [value_of(rng, log) for _ in range(rng.choice((0, 1, 1, 2)))]
    headers = [value_of(rng, log) for _ in range(rng.choice((0, 1, 1, 2)) if query else 1)]
    # The parser refuses invalid header characters, which `test_http.py` covers.
    headers = [value for value in headers if not re.search(r"[\x00-\x1f\x7f]", value)]
    target = log.path + "".join(f"&after={quote_plus(value)}" for value in query)
    lines = [f"GET {target} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {log.server.token}"]
    head = "\r\n".join([*lines, *(f"Last-Event-ID: {value}" for value in headers), "", ""])
    effective = headers[0].lstrip(" ") if headers else ""
    return head.encode(), effective or (query[-1] if query else "")


def connect(log: Log) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(log.server.url.rpartition(":")[2])), timeout=WAIT_S)


def refusals(log: Log, requests: list[bytes]) -> bytes:
    """The replies to pipelined requests that must all be refused, and to one valid request after them."""
    with connect(log) as connection:
        connection.sendall(
            b"".join([*requests, b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"])
        )
        received = b""
        while b"text/event-stream" not in received and (data := connection.recv(1 << 16)):
            received += data
    return received


def streamed(log: Log, request: bytes) -> tuple[bool, list[int]] | str:
    """(has a gap, the Positions received) of a stream, up to the end of the log."""
    with connect(log) as connection:
        connection.sendall(request)
        received = b""
        # Each stream reaches the end of the log, by its last event or by its initial Position.
        while b"id: %d\n" % log.positions[-1] not in received or not received.endswith(b"\n\n\r\n"):
            data = connection.recv(1 << 16)
            received += data
            if not data or not received.startswith(b"HTTP/1.1 200"):
                return received[:300].decode("latin-1")
    events = [int(position) for position in re.findall(rb"id: (\d+)\ndata: ", received)]
    return b'data: {"type":"gap"' in received, events


def play(log: Log, seed: int) -> tuple[list[str], int]:
    """Return the failures, and the number of opened streams."""
    rng = random.Random(seed)
    failures: list[str] = []
    refused: list[tuple[bytes, str]] = []
    for request, value in (request_of(rng, log) for _ in range(EACH)):
        expected = log.expected(value)
        if expected is None:
            refused.append((request, value))
        elif (received := streamed(log, request)) != expected:
            failures.append(f"{value!r}: expected {expected}, received {received}")
    replies = refusals(log, [request for request, _ in refused])
    counts = replies.count(b"HTTP/1.1 400 "), replies.count(b'"code":"bad_position"'), replies.count(b"HTTP/1.1 200 ")
    if counts != (len(refused), len(refused), 1):
        failures.append(f"{[value for _, value in refused]}: {counts} instead of {len(refused)} refusals")
    return failures, EACH - len(refused)


@pytest.mark.proof
@pytest.mark.timeout(1800 if IS_LONG else 120)
@pytest.mark.parametrize("seeds", parts(100, 20_000, 2_000), ids=name_of)
def test_random_resume_values_get_correct_replies(log: Log, seeds: range) -> None:
    with proof("G14", "fuzzed resume values", "wrong answers") as figure:
        streams = 0
        for seed in seeds:
            failures, opened = play(log, seed)
            figure.wrong += len(failures)
            streams += opened
            assert failures == [], replay("test_resume.py", seed)
        figure.count, figure.notes = len(seeds) * EACH, {"streams": streams}
        assert IS_REPLAY or 0 < streams < figure.count // 2
        assert "Traceback" not in log.server.log
