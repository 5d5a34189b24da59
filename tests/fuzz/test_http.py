"""Fuzzed requests against a real server: it replies or refuses, stays up, and returns nothing without the token."""

from __future__ import annotations

import json
import random
import re
import socket
from collections import Counter, deque
from collections.abc import Iterator

import pytest

from kedge.testing.hosted import HostedEndpoint
from proof.figures import IS_LONG, proof
from tests.conformance.harness import WAIT_S, Server
from tests.conformance.watching import memory_peak_kb
from tests.fuzz.random_requests import framed, split, wild
from tests.fuzz.seeds import IS_REPLAY, name_of, parts, replay

#: Well-framed requests per connection; a wild one follows.
FRAMED_EACH = 38
#: Requests that the wild part of a connection counts as: it holds up to three.
WILD_EACH = 2
EACH = FRAMED_EACH + WILD_EACH
#: Concurrent connections.
OPEN_MAX = 12
#: Memory growth of the server during a proof that caches explain. kB.
GROWTH_KB_MAX = 40_000
SENTINEL = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
#: The only replies without a token: invalid request, token required, foreign origin or host, the health check, and the
#: web page.
REFUSALS = {(400, "invalid"), (401, "unauthorized"), (403, "bad_origin"), (421, "bad_host")}
HEALTHY = {"ok": True, "state": "ready"}
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)

Reply = tuple[int, bytes, bytes]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with HostedEndpoint() as endpoint:
        server = Server(tmp_path_factory.mktemp("fuzz"), endpoint.url).start()
        yield server
        server.stop()


class Connection:
    """One connection of a seed: the requests sent and the replies received."""

    def __init__(self, server: Server, seed: int) -> None:
        rng = random.Random(seed)
        self.seed = seed
        #: The Unix socket needs no token; with a token, everything except a shutdown is allowed.
        self.is_local, self.has_token = seed % 8 == 7, seed % 8 == 6
        bearer = b"Bearer " + server.token.encode() if self.has_token else None
        self.sent = [framed(rng, bearer) for _ in range(FRAMED_EACH)]
        self.socket = socket.socket(socket.AF_UNIX) if self.is_local else socket.socket()
        self.socket.settimeout(WAIT_S)
        address = str(server.socket) if self.is_local else ("127.0.0.1", int(server.url.rpartition(":")[2]))
        self.socket.connect(address)
        self.replies: list[Reply] = []
        self.is_closed = False
        self._buffer = b""
        for piece in split(rng, b"".join([*self.sent, SENTINEL])):
            if not self._send(piece):
                break
        self.wild = wild(rng) if seed % 2 else b""

    def _send(self, data: bytes) -> bool:
        try:
            self.socket.sendall(data)
        except ConnectionError:
            return False
        return True

    def finish(self) -> list[str]:
        """Read the due replies, send the wild part, read to the end; return the failures."""
        wrong: list[str] = []
        try:
            while not self.is_closed and len(self.replies) <= FRAMED_EACH:
                self._read()
            due = len(self.replies)
            if self.is_closed:
                if due == 0 or not self._announces_close(self.replies[-1]):
                    wrong.append(f"the connection was closed after {due} replies, and the last one did not announce it")
            elif self.replies[-1][0] != 200:
                wrong.append(f"after {FRAMED_EACH} requests the next one got {self.replies[-1][0]}")
            elif self.wild and self._send(self.wild):
                self.socket.shutdown(socket.SHUT_WR)
                while not self.is_closed:
                    self._read()
        except TimeoutError:
            wrong.append(f"no reply to request {len(self.replies)}, and the connection stays open")
        except ConnectionError:
            pass  # closed by the server while sending
        finally:
            self.socket.close()
        return wrong + [failure for reply in self.replies if (failure := self._failure(reply))]

    def _announces_close(self, reply: Reply) -> bool:
        return b"connection: close" in reply[1].lower()

    def _read(self) -> None:
        data = self.socket.recv(1 << 18)
        self.is_closed = not data
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[: end + 2]
            if head.startswith(b"HTTP/1.1 1"):  # continue
                self._buffer = self._buffer[end + 4 :]
                continue
            length = _LENGTH.search(head)
            size = int(length[1]) if length is not None and not self._is_answer_to_head() else 0
            if len(self._buffer) < end + 4 + size:
                return
            self.replies.append((int(head[9:12]), head, self._buffer[end + 4 : end + 4 + size]))
            self._buffer = self._buffer[end + 4 + size :]

    def _is_answer_to_head(self) -> bool:
        index = len(self.replies)
        return index < len(self.sent) and self.sent[index].startswith(b"HEAD ")

    def _failure(self, reply: Reply) -> str:
        status, _, body = reply
        if status >= 500:
            return f"{status} {body[:200]!r}"
        if self.is_local or self.has_token or not body or body.startswith(b"<!doctype html>"):
            return ""  # the file of the web page needs no token
        answer = json.loads(body)
        if status == 200 and answer == HEALTHY:
            return ""
        return "" if (status, answer.get("code")) in REFUSALS else f"without a token: {status} {body[:200]!r}"


def fuzz(server: Server, seeds: range) -> tuple[list[tuple[int, str]], Counter[int]]:
    """Run the connections of these seeds; return (seed, failure) pairs, and the count of each status."""
    wrong: list[tuple[int, str]] = []
    statuses: Counter[int] = Counter()
    connections: deque[Connection] = deque()
    for seed in [*seeds, *[None] * OPEN_MAX]:
        if seed is not None:
            connections.append(Connection(server, seed))
        if connections and (seed is None or len(connections) >= OPEN_MAX):
            connection = connections.popleft()
            wrong += [(connection.seed, failure) for failure in connection.finish()]
            statuses.update(status for status, _, _ in connection.replies)
    return wrong, statuses


@pytest.mark.proof
@pytest.mark.timeout(1800 if IS_LONG else 120)
@pytest.mark.parametrize("seeds", parts(125, 25_000, 2_500), ids=name_of)
def test_random_requests_get_correct_replies(server: Server, seeds: range) -> None:
    with proof("G14", "fuzzed requests", "bypasses, server errors or hangs") as figure:
        assert fuzz(server, range(10**9, 10**9 + 20))[0] == []
        before_kb = memory_peak_kb(server.pid)
        wrong, statuses = fuzz(server, seeds)
        figure.count, figure.wrong = len(seeds) * EACH, len(wrong)
        figure.notes = {"connections": len(seeds), "replies": statuses.total()}
        assert wrong[:5] == [], replay("test_http.py", wrong[0][0])
        # Each kind of refusal occurred, and requests with the token were served.
        assert IS_REPLAY or set(statuses) >= {200, 400, 401, 403, 404, 405, 415, 421}
        assert memory_peak_kb(server.pid) - before_kb < GROWTH_KB_MAX
        assert "Traceback" not in server.log
        assert "unexpected error" not in server.log
