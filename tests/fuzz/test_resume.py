"""Fuzzed resume values: a place in the log is answered with exactly what lies behind it, another log's with a gap, and
everything else is refused."""

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

#: Values tried by one seed: those that are refused go over one connection. Items.
EACH = 50
#: The largest number that every reader of JSON holds exactly.
POSITION_MAX = 2**53
ODD = (
    *("", " ", "-1", "+1", "-0", "1.0", "1e3", "0x10", "0b1", "1_0", "1,000", "1 2", "null", "NaN", "inf", "true"),
    *("[]", "{}", "'1'", '"1"', "1;", "1\x0b", "%31", "0", "00", "0" * 16, "0" * 17, "9" * 16, "9" * 17, "9" * 5000),
    *(
        str(POSITION_MAX),
        str(POSITION_MAX + 1),
        str(2**64),
        "\u202e1",
        "1\u200b",
        "\u0661",
        "\u00b2",
        "\uff11",
        "\u2460",
    ),
)


@dataclass(frozen=True)
class Log:
    """A workspace whose log does not grow any more."""

    server: Server
    path: str
    #: Position before the first event, and those of all events.
    base: int
    positions: list[int]
    foreign: int

    def expected(self, value: str) -> tuple[bool, list[int]] | None:
        """(whether there is a gap, the Positions sent), or None if it is refused."""
        if not value:
            return False, []
        if re.fullmatch(r"[0-9]{1,16}", value) is None or int(value) > POSITION_MAX:
            return None
        place = int(value) or self.base
        if not self.base <= place <= self.positions[-1]:
            return True, []
        return False, [position for position in self.positions if position > place]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with HostedEndpoint() as endpoint:
        server = Server(tmp_path_factory.mktemp("resume"), endpoint.url).start()
        yield asyncio.run(_fill(server, tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")))
        server.stop()


async def _fill(server: Server, here: Path, there: Path) -> Log:
    async with server.http() as http:
        peer, other = await Peer(http, here).open(), await Peer(http, there).open()
        for one in (peer, other):
            for _ in range(2):
                run = await one.submit(await one.session(), "script: say something")
                await one.wait(run["run_id"])
        # The last event of all, so that everything before it is known to be there.
        last = await peer.session("last")
        async with peer.stream(after=0) as stream:
            await stream.until(lambda stream: any(frame.payload.get("id") == last for frame in stream.durable))
            positions = stream.positions
        path = f"/v1{peer.at}/events?client_id={peer.client_id}"
        return Log(server, path, positions[0] - 1, positions, run["position"])


def value_of(chance: random.Random, log: Log) -> str:
    kind = chance.random()
    if kind < 0.02:
        return str(
            chance.choice((log.base, log.positions[-1], log.foreign, *log.positions)) + chance.choice((0, 0, -1, 1))
        )
    if kind < 0.025:
        return str(chance.randrange(POSITION_MAX))
    value = chance.choice(ODD) if kind < 0.6 else str(chance.choice(log.positions))
    for _ in range(chance.choice((0, 1, 1, 2)) if kind < 0.6 else 1):
        place = chance.randrange(len(value) + 1)
        value = (
            value[:place]
            + chance.choice((*"-+.,eE_xX#%&= \t;:'\"/\\", "\u0660", "\x7f", "\x01", "é", "٣"))
            + value[place:]
        )
    return value


def request_of(chance: random.Random, log: Log) -> tuple[bytes, str]:
    """A request to resume, and the value that counts in it: the header's, and without one the query's last."""
    query = [value_of(chance, log) for _ in range(chance.choice((0, 1, 1, 2)))]
    headers = [value_of(chance, log) for _ in range(chance.choice((0, 1, 1, 2)) if query else 1)]
    # What a header cannot carry, the parser refuses: that is the other fuzzed proof's.
    headers = [value for value in headers if not re.search(r"[\x00-\x1f\x7f]", value)]
    target = log.path + "".join(f"&after={quote_plus(value)}" for value in query)
    lines = [f"GET {target} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {log.server.token}"]
    head = "\r\n".join([*lines, *(f"Last-Event-ID: {value}" for value in headers), "", ""])
    counts = headers[0].lstrip(" ") if headers else ""
    return head.encode(), counts or (query[-1] if query else "")


def connect(log: Log) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(log.server.url.rpartition(":")[2])), timeout=WAIT_S)


def told(log: Log, requests: list[bytes]) -> bytes:
    """What is said to requests that are all to be refused, sent ahead of their replies, and to one more behind them."""
    with connect(log) as line:
        line.sendall(b"".join([*requests, b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"]))
        said = b""
        while b"text/event-stream" not in said and (data := line.recv(1 << 16)):
            said += data
    return said


def streamed(log: Log, request: bytes) -> tuple[bool, list[int]] | str:
    """(whether a gap was told, the Positions of the events that came) of a stream, up to the log's end."""
    with connect(log) as line:
        line.sendall(request)
        said = b""
        # Each stream comes to the log's end, by its last event or by the Position it says it begins at.
        while b"id: %d\n" % log.positions[-1] not in said or not said.endswith(b"\n\n\r\n"):
            data = line.recv(1 << 16)
            said += data
            if not data or not said.startswith(b"HTTP/1.1 200"):
                return said[:300].decode("latin-1")
    events = [int(found) for found in re.findall(rb"id: (\d+)\ndata: ", said)]
    return b'data: {"type":"gap"' in said, events


def play(log: Log, seed: int) -> tuple[list[str], int]:
    """What was wrong, and how many streams were opened."""
    chance = random.Random(seed)
    wrong: list[str] = []
    bad: list[tuple[bytes, str]] = []
    for request, value in (request_of(chance, log) for _ in range(EACH)):
        expected = log.expected(value)
        if expected is None:
            bad.append((request, value))
        elif (found := streamed(log, request)) != expected:
            wrong.append(f"{value!r}: expected {expected}, found {found}")
    said = told(log, [request for request, _ in bad])
    counts = said.count(b"HTTP/1.1 400 "), said.count(b'"code":"bad_position"'), said.count(b"HTTP/1.1 200 ")
    if counts != (len(bad), len(bad), 1):
        wrong.append(f"{[value for _, value in bad]}: {counts} instead of {len(bad)} refusals")
    return wrong, EACH - len(bad)


@pytest.mark.proof
@pytest.mark.timeout(1800 if IS_LONG else 120)
@pytest.mark.parametrize("seeds", parts(100, 20_000, 2_000), ids=name_of)
def test_a_resume_value_made_by_chance_gets_what_lies_behind_it_or_a_gap_or_a_refusal(log: Log, seeds: range) -> None:
    with proof("G14", "fuzzed resume values", "wrong answers") as figure:
        streams = 0
        for seed in seeds:
            wrong, opened = play(log, seed)
            figure.wrong += len(wrong)
            streams += opened
            assert wrong == [], replay("test_resume.py", seed)
        figure.count, figure.notes = len(seeds) * EACH, {"streams": streams}
        assert IS_REPLAY or 0 < streams < figure.count // 2
        assert "Traceback" not in log.server.log
