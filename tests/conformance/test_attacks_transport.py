"""Attacks on connections: too many bytes, slow requests, pipelining and DNS rebinding."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pytest

from kedge.errors import BadConfig, Invalid
from kedge.server.auth import make_token
from kedge.server.sockets import bind
from tests.conformance import raw
from tests.conformance.harness import WAIT_S, Endpoint, Peer, Server
from tests.conformance.rounds import no_trace
from tests.conformance.watching import memory_peak_kb, metric, reset_memory_peak, until_metric

HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST /v1/control HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
#: Memory of a connection without a token; the first one of a fresh server takes 3,000. kB.
STRANGER_KB_MAX = 8_000


class LimitedServer(Server):
    """A server with lower limits, such as `{"kedge.server.protocol": {"HEAD_S_MAX": 0.2}}`."""

    def __init__(self, home: Path, endpoint_url: str, limits: dict[str, dict[str, float]]) -> None:
        super().__init__(home, endpoint_url, "[server]\nheartbeat_s = 0.2\n")
        lines = [
            f"import {module}\n" + "".join(f"{module}.{name} = {value}\n" for name, value in values.items())
            for module, values in limits.items()
        ]
        self._program = "\n".join([*lines, "from kedge.cli.main import main", "main()"])

    def start(self, *_: object, **__: object) -> Self:
        log = (self.home / "server.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-c", self._program, "serve", "--host", "tcp://127.0.0.1:0"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line.startswith("listening on tcp://"), line
        self.url = line.removeprefix("listening on ").replace("tcp://", "http://")
        self.token = (self.data_dir / "token").read_text().strip()
        return self


@pytest.fixture(scope="module")
def limited_server(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedServer]:
    """A server that allows one second per request and four streams."""
    if "KEDGE_URL" in os.environ:
        pytest.skip("needs a server process of its own")
    limits: dict[str, dict[str, float]] = {
        "kedge.server.protocol": {"HEAD_S_MAX": 1.0, "BODY_S_MAX": 1.0},
        "kedge.server.stream": {"STREAMS_MAX": 4},
    }
    server = LimitedServer(tmp_path_factory.mktemp("limited"), endpoint.hosted.url, limits)
    yield server.start()
    server.stop()


@pytest.fixture
async def limited(limited_server: LimitedServer) -> LimitedServer:
    """A client of the limited server, once the streams of the previous test are closed."""
    async with limited_server.http() as http:
        await until_metric(http, "kedge_streams_open", lambda count: count == 0)
    return limited_server


@pytest.fixture
def stranger(own_server: Callable[..., Server]) -> Server:
    """A fresh server for each test that measures memory: memory freed after one attack would hide the next one."""
    return own_server()


def connected(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=WAIT_S)


def read_until_closed(line: socket.socket) -> bytes:
    """Read to the end of the connection. Raises TimeoutError if it stays open."""
    received = b""
    try:
        while data := line.recv(65536):
            received += data
    except ConnectionError:
        pass  # closed by the server during the send
    return received


# --- DNS rebinding ---------------------------------------------------------------------------------------------------


class Browser:
    """A browser: it resolves names, and sends the name of the page as Host and Origin."""

    def __init__(self, names: dict[str, tuple[str, int]]) -> None:
        self.names = names

    async def get(self, url: str, *headers: tuple[str, bytes]) -> tuple[int, object]:
        page = urlsplit(url)
        host, port = self.names[page.netloc]
        async with raw.connect(f"http://{host}:{port}") as line:
            # For the browser this is the site of the page: it sends same-origin and the Origin of the page.
            more = [("Origin", f"http://{page.netloc}".encode()), ("Sec-Fetch-Site", b"same-origin"), *headers]
            await line.send(raw.request("GET", page.path, headers=more, host=page.netloc))
            return await line.reply()


@asynccontextmanager
async def hostile_site() -> AsyncIterator[tuple[str, int]]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        page = b'{"page": "ask me again, at my new address"}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(page), page))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield "127.0.0.1", server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    "name", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "kedge.evil.example"]
)
@pytest.mark.parametrize("path", ["/v1/health", "/v1/workspaces", "/v1/openapi.json"])
async def test_a_dns_rebinding_page_gets_nothing(kedge: Peer, shared: tuple[str, str], name: str, path: str) -> None:
    """The page gets nothing, even with the token."""
    url, token = shared
    async with hostile_site() as address:
        site = f"{name}:{address[1]}"
        browser = Browser({site: address})
        assert (await browser.get(f"http://{site}{path}"))[0] == 200
        here = urlsplit(url)
        assert here.hostname is not None
        assert here.port is not None
        browser.names[site] = (here.hostname, here.port)
        for headers in ([], [("Authorization", b"Bearer " + token.encode())]):
            status, error = await browser.get(f"http://{site}{path}", *headers)
            assert (status, isinstance(error, dict) and error["code"]) == (421, "bad_host")


# --- remote access ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["0.0.0.0", "[::]", "192.168.1.1", "8.8.8.8", "[::ffff:10.0.0.1]", "[fe80::1]"])
def test_remote_addresses_need_allow_remote(address: str) -> None:
    with pytest.raises(Invalid, match="--allow-remote"):
        bind(f"tcp://{address}:0", allow_remote=False)


@pytest.mark.parametrize("token", ["x", "too-short-a-one", "\u00fc" * 20, "x" * 20 + "\n", "x" * 20 + "\x7f"])
def test_invalid_tokens_are_refused_at_the_start(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEDGE_TOKEN", token)
    with pytest.raises(BadConfig, match="KEDGE_TOKEN must have"):
        make_token()


def test_an_empty_token_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEDGE_TOKEN", "")
    assert len(make_token()) >= 43
    assert make_token() != make_token()


async def test_a_remote_server_requires_the_token(endpoint: Endpoint, tmp_path: Path) -> None:
    server = Server(tmp_path / "server", endpoint.hosted.url)
    command = [sys.executable, "-m", "kedge", "serve", "--host", "tcp://0.0.0.0:0", "--allow-remote"]
    process = await asyncio.create_subprocess_exec(
        *command, env=server.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line = (await process.stdout.readline()).decode().strip()
        url = f"http://127.0.0.1:{line.rpartition(':')[2]}"
        token = (server.data_dir / "token").read_text().strip().encode()
        async with raw.connect(url) as connection:
            for headers, host, expected in (
                ([], "localhost", 401),
                ([("Authorization", b"Bearer " + token)], "127.0.0.1", 200),
                ([("Authorization", b"Bearer " + token)], "evil.example", 421),
                ([("Authorization", b"Bearer " + token), ("Origin", b"http://evil.example")], "127.0.0.1", 403),
            ):
                await connection.send(raw.request("GET", "/v1/version", headers=headers, host=host))
                assert (await connection.reply())[0] == expected
    finally:
        process.terminate()
        assert await process.wait() == 0


# --- too much --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/workspaces", "/v1/workspaces/WORKSPACE/agent"])
async def test_a_chunked_body_has_the_same_limit(kedge: Peer, shared: tuple[str, str], path: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(400):
            yield b"x" * 50_000

    async with no_trace(kedge, await kedge.session()):
        headers = {"content-type": "application/json"}
        at = path.replace("WORKSPACE", kedge.workspace)
        reply = await kedge.http.post(at, content=parts(), headers=headers)
        assert (reply.status_code, reply.json()["code"]) == (413, "too_large")


@pytest.mark.found(
    "attack: trailers of a body",
    "trailers of a chunked body were stored without a limit, without a token, and treated as headers of the request; "
    "they are ignored now, and chunk framing and trailers have a limit",
)
@pytest.mark.parametrize(
    "endless",
    [
        pytest.param((b"0\r\n", b"X: y\r\n"), id="trailers"),
        pytest.param((b"0\r\nX: ", b"y"), id="one trailer"),
        pytest.param((b"5;x=", b"y"), id="an extension of a chunk"),
    ],
)
def test_chunk_framing_and_trailers_are_bounded(stranger: Server, endless: tuple[bytes, bytes]) -> None:
    before_kb = reset_memory_peak(stranger.pid)
    start, more = endless
    with connected(stranger.url) as line:
        line.sendall(CHUNKED + start)
        with pytest.raises(ConnectionError):
            line.sendall(more * (30_000_000 // len(more)))
    assert memory_peak_kb(stranger.pid) - before_kb < STRANGER_KB_MAX
    with connected(stranger.url) as line:
        line.sendall(HEALTH)
        assert line.recv(100).startswith(b"HTTP/1.1 200")


async def test_trailers_are_not_headers(kedge: Peer, shared: tuple[str, str]) -> None:
    """A token or a second Host in the trailers is ignored: only the headers count."""
    url, token = shared
    with connected(url) as line:
        line.sendall(CHUNKED + b"0\r\nAuthorization: Bearer " + token.encode() + b"\r\nHost: evil.example\r\n\r\n")
        line.sendall(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        received = read_until_closed(line)
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"401", b"200"]


@pytest.mark.found(
    "attack: pipelined requests",
    "a client without a token that sent requests faster than they were answered had the server read and keep them all, "
    "and hardly answer other clients; requests sent ahead of a reply now stay unread",
)
def test_pipelined_requests_stay_unread(stranger: Server) -> None:
    before_kb = reset_memory_peak(stranger.pid)
    ahead = HEALTH.replace(b"health", b"version") * 5_000
    with connected(stranger.url) as line, connected(stranger.url) as other:
        line.setblocking(False)
        sent = received = asked = 0
        while received < 2_000_000:
            with suppress(BlockingIOError):
                sent += line.send(ahead[sent % len(ahead) :])
            try:
                received += len(line.recv(1 << 20))
            except BlockingIOError:
                # Another client is answered meanwhile.
                other.sendall(HEALTH)
                answer = b""
                while not answer.endswith(b"}"):
                    answer += other.recv(4096)
                asked += 1
    assert sent > 100_000
    assert asked > 0
    assert memory_peak_kb(stranger.pid) - before_kb < STRANGER_KB_MAX


@pytest.mark.found(
    "attack: a request pipelined after a stream",
    "a stream with another request after it on the connection did not notice that its client was "
    "gone, and ended only by failing at its next heartbeat, with a traceback in the log; now each running request of a "
    "connection is notified",
)
async def test_a_stream_with_a_pipelined_request_ends_on_disconnect(limited: LimitedServer, workspace: Path) -> None:
    server = limited
    async with server.peer(workspace) as peer:
        target = f"/v1{peer.at}/events?client_id={peer.client_id}"
        bearer = [("Authorization", b"Bearer " + server.token.encode())]
        with connected(server.url) as line:
            line.sendall(raw.request("GET", target, headers=bearer) + HEALTH)
            assert b"text/event-stream" in line.recv(4096)
            await until_metric(peer.http, "kedge_streams_open", lambda count: count == 1)
        await until_metric(peer.http, "kedge_streams_open", lambda count: count == 0)
    assert "Traceback" not in server.log


async def test_one_stream_too_many_is_refused(limited: LimitedServer, workspace: Path) -> None:
    async with limited.peer(workspace) as peer, peer.stream() as first, peer.stream(), peer.stream(), peer.stream():
        for _ in range(5):
            reply = await peer.reply("GET", f"{peer.at}/events", client_id=peer.client_id)
            assert (reply.status_code, reply.json()["code"]) == (429, "too_many_streams")
        assert await metric(peer.http, "kedge_streams_open") == 4
        made = await peer.session()
        await first.until(lambda stream: any(frame.payload.get("id") == made for frame in stream.frames))


# --- too slowly ------------------------------------------------------------------------------------------------------


@pytest.mark.found(
    "attack: slow requests",
    "a connection that sent its request a byte at a time, or nothing at all, was kept for ever; a head and a body now "
    "have so much time",
)
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX: ", id="head"),
        pytest.param(HEALTH + b"GET /v1/health HTTP/1.1\r\nX: ", id="second head"),
        pytest.param(CHUNKED + b"50000;", id="body in chunks"),
        pytest.param(b"POST /v1/control HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n", id="body"),
        pytest.param(CHUNKED + b"0\r\nX: ", id="trailer"),
    ],
)
async def test_a_slow_request_is_dropped(limited: LimitedServer, start: bytes) -> None:
    with connected(limited.url) as line:
        line.sendall(start)
        received = await asyncio.to_thread(trickled if start else read_until_closed, line)
    if start.startswith(b"POST"):
        assert received.startswith(b"HTTP/1.1 401")  # sent at once, before the rest of the request
    assert b"HTTP/1.1 408 Request Timeout" in received
    assert received.endswith(b'{"message":"The request was not complete in time; send it again.","code":"too_slow"}')


def trickled(line: socket.socket) -> bytes:
    """Send one byte at a time and read, until the connection ends."""
    received = b""
    line.settimeout(0.05)
    while True:
        try:
            data = line.recv(4096)
        except TimeoutError:
            with suppress(ConnectionError):
                line.send(b"1")
        except ConnectionError:
            return received
        else:
            received += data
            if not data:
                return received


async def test_a_slow_body_with_the_token_leaves_no_trace(limited: LimitedServer, workspace: Path) -> None:
    async with limited.peer(workspace) as peer:
        session = await peer.session()
        whole = raw.submit(limited.token, peer.workspace, {"session_id": session, "prompt": "hello"})
        async with no_trace(peer, session):
            with connected(limited.url) as line:
                line.sendall(whole[:-10])
                received = await asyncio.to_thread(trickled, line)
            assert b"HTTP/1.1 202" not in received


async def test_streams_and_long_waits_have_no_deadline(limited: LimitedServer, workspace: Path) -> None:
    """Their requests are complete, so the deadlines above do not apply."""
    async with limited.peer(workspace) as peer, peer.stream() as stream:
        run_id = (await peer.submit(await peer.session(), "script: hang"))["run_id"]
        waited = await peer.call("GET", f"{peer.at}/agent/runs/{run_id}/wait", timeout_s=2.5)
        assert waited["state"] == "active"
        await peer.cancel_run(run_id)
        await stream.until_complete(run_id)


@pytest.mark.found(
    "a review of the server: a line feed after a reply",
    "bytes that did not begin a request cancelled the keep-alive timer of an idle connection, so a client without a "
    "token could use up all connections; the timer is set again",
)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("trailing", [b"\r\n", b"\r\n\r\n\r\n"])
async def test_stray_bytes_do_not_keep_an_idle_connection_open(kedge: Peer, trailing: bytes) -> None:
    async with raw.connect(str(kedge.http.base_url)) as connection:
        await connection.send(raw.request("GET", "/v1/health"))
        assert (await connection.reply())[0] == 200
        await connection.send(trailing)
        async with asyncio.timeout(WAIT_S):
            assert await connection.read() == b""
