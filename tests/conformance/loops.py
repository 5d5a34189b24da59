"""Helpers of loops with thousands of rounds: servers that start in 30 ms, requests and streams without a client
library, and seeds.

A server is a normal process, but forked from one that has loaded the modules: loading them is nine tenths of a start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import struct
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any

import msgspec
import pytest

from proof.figures import slices
from tests.conformance.harness import WAIT_S, Json, Server

TOKEN = "a-token-for-loops-of-thousands"
ROOT = Path(__file__).parents[2]

_NEST = """
import ctypes, os, sys
import kedge.cli.main, kedge.server.startup, kedge.agent.model_choice, kedge.llm.catalogue, kedge.llm.openai, uvloop
import anyio._backends._asyncio, uvicorn.lifespan.off

kedge.agent.model_choice.new_client(False)  # loads what it needs
kedge.llm.catalogue.facts("local", "fake-large")

def serve():
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it goes with the nest
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND), 2)
    os._exit(kedge.server.startup.serve(hosts=["tcp://127.0.0.1:0"]))

child = 0
while word := os.read(0, 1):
    if word == b"s":
        child = os.fork()
        if child == 0:
            serve()
        os.write(1, b"pid %d\\n" % child)
    else:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        child = 0
        os.write(1, b"gone %d\\n" % code)
if child:
    os.kill(child, 9)
"""


class Lost(Exception):
    """The server was lost before it replied; it may have executed the request."""


class Leaving(Exception):
    """The server is shutting down and has not accepted the request."""


class Refused(Exception):
    """A stream was refused. The argument is the status."""


@dataclass(frozen=True)
class Address:
    """The address of a server."""

    host: str
    port: int
    token: str = TOKEN

    @property
    def head(self) -> str:
        return f"Host: {self.host}:{self.port}\r\nAuthorization: Bearer {self.token}\r\n"


def address_of(url: str, token: str = TOKEN) -> Address:
    host, _, port = url.rpartition("://")[2].rpartition(":")
    return Address(host, int(port), token)


class Nest:
    """Consecutive servers in one data directory. `server` is only the configuration and the environment."""

    def __init__(self, server: Server, process: asyncio.subprocess.Process) -> None:
        self.server = server
        self._process = process
        self.pid = 0
        #: True once the present or last server has printed its address.
        self.has_listened = False

    async def start(self) -> None:
        """Start a server, without waiting for it."""
        self._ask(b"s")
        self._early, self.has_listened = "", False
        self.pid = int((await self._line("pid", keep="listening")).split()[1])

    async def listening(self) -> Address | None:
        """Wait for the address of the server; None if it exits before."""
        assert self._process.stdout is not None
        line = self._early or await self._line("listening", "gone")
        self._early = ""
        return address_of(line.split()[-1]) if line.startswith("listening") else None

    def signal(self, number: Signals = SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)  # not reaped yet, so the pid is not reused

    async def gone(self) -> int:
        """Wait for the exit, and return the exit code or the negative number of the signal."""
        self._ask(b"w")
        line = await self._line("gone", skip="listening")
        self.pid = 0
        return int(line.split()[1])

    @property
    def log(self) -> str:
        return self.server.log

    _early = ""

    def _ask(self, word: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word)

    async def _line(self, *expected: str, keep: str = "-", skip: str = "-") -> str:
        assert self._process.stdout is not None
        while True:
            async with asyncio.timeout(WAIT_S):
                line = (await self._process.stdout.readline()).decode().strip()
            self.has_listened = self.has_listened or line.startswith("listening")
            if line.startswith(keep):
                self._early = line
            elif not line.startswith(skip):
                assert line.startswith(expected), f"{line!r} {self.log[-2000:]}"
                return line


def _few_authorities(home: Path) -> dict[str, str]:
    """Replace the list of certificates, which takes half of a start to load; the endpoint uses plain HTTP."""
    for certificate in ssl.create_default_context().get_ca_certs(binary_form=True)[:1]:
        (home / "authority.pem").write_text(ssl.DER_cert_to_PEM_cert(certificate))
        return {"SSL_CERT_FILE": str(home / "authority.pem")}
    return {}


@contextlib.asynccontextmanager
async def nest(home: Path, endpoint_url: str, config: str = "") -> AsyncIterator[Nest]:
    if "KEDGE_URL" in os.environ:
        pytest.skip("needs a server process of its own")
    server = Server(home, endpoint_url, config)
    (home / "server.log").touch()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _NEST,
        str(home / "server.log"),
        env={**server.environment, "KEDGE_TOKEN": TOKEN, "PYTHONPATH": f"{ROOT / 'src'}", **_few_authorities(home)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    made = Nest(server, process)
    try:
        yield made
    finally:
        if made.pid:
            made.signal()
        assert process.stdin is not None
        process.stdin.close()  # which ends it
        await process.wait()


# --- requests ---------------------------------------------------------------------------------------------------------


class Wire:
    """Sequential requests over one connection."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the JSON body of the reply.

        The server closes a connection that was idle for some seconds, as this one is after a pause of the machine: a
        GET is then sent again on a new one."""
        was_idle = self._reader is not None
        try:
            return await self._call(method, path, body)
        except Lost as lost:
            error = lost.__cause__
            if not (was_idle and method == "GET" and isinstance(error, asyncio.IncompleteReadError)) or error.partial:
                raise
        return await self._call(method, path, body)

    async def _call(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        kind = f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n" if data else ""
        try:
            async with asyncio.timeout(WAIT_S + 10):
                if self._reader is None or self._writer is None:
                    self._reader, self._writer = await asyncio.open_connection(self.address.host, self.address.port)
                request = f"{method} /v1{path} HTTP/1.1\r\n{self.address.head}{kind}\r\n"
                self._writer.write(request.encode() + data)
                head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = int(head.partition("content-length:")[2].split()[0])
                reply = await self._reader.readexactly(length)
        except (OSError, EOFError) as error:
            self.close()
            raise Lost from error
        return int(head.split()[1]), msgspec.json.decode(reply) if reply.startswith((b"{", b"[")) else reply.decode()

    async def expect(self, status: int, method: str, path: str, body: Any = None) -> Any:
        got, reply = await self.call(method, path, body)
        assert got == status, f"{method} {path}: {got} {reply}"
        return reply

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None


def new_client() -> str:
    return str(uuid.uuid4())


async def open_workspace(wire: Wire, directory: Path) -> str:
    body = {"path": str(directory), "client_id": new_client()}
    return str((await wire.expect(200, "POST", "/workspaces", body))["id"])


# --- streams ----------------------------------------------------------------------------------------------------------


class Body(msgspec.Struct):
    """The fields of a payload that loops use."""

    id: str = ""
    run_id: str = ""
    session_id: str = ""
    message_id: str = ""
    text: str = ""
    outcome: str = ""
    part: int = 0
    role: str = ""
    parts: list[Json] = []


class Inner(msgspec.Struct):
    type: str
    payload: Body


class Envelope(msgspec.Struct):
    type: str
    payload: Inner


#: (Position, type, id, session id): the parts of an event that do not depend on when it is read.
Kind = tuple[int, str, str, str]
_decode = msgspec.json.Decoder(Envelope).decode


@dataclass
class Follower:
    """A client that follows one workspace over any number of connections and checks each durable event."""

    workspace: str
    deltas: bool = True
    #: The Last-Event-ID of the next connection. None: from the present.
    position: int | None = None
    client_id: str = field(default_factory=new_client)
    seen: list[Kind] = field(default_factory=list)
    #: Gaps that the server reported.
    gaps: int = 0
    #: Streams that were opened.
    connects: int = 0
    #: Each frame, with its Position or None.
    hook: Callable[[int | None, Envelope], None] | None = None
    _raw: bytes = b""
    _body: bytes = b""
    _in_head: bool = True

    async def follow(
        self,
        address: Address,
        leave: Callable[[Follower], bool] = lambda follower: False,
        *,
        bytes_max: int = 1 << 60,
        how: str = "abort",
    ) -> None:
        """Read until `leave` is true, or `bytes_max` bytes, or until the connection is lost."""
        self._raw, self._body, self._in_head = b"", b"", True
        after = "" if self.position is None else f"Last-Event-ID: {self.position}\r\n"
        path = f"/v1/workspaces/{self.workspace}/events?client_id={self.client_id}&deltas={int(self.deltas)}"
        try:
            reader, writer = await asyncio.open_connection(address.host, address.port)
        except OSError:
            return
        if how == "abort":
            # A reset: the kernel of the server drops this client at once.
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\n{address.head}{after}\r\n".encode())
            while bytes_max > 0 and (data := await reader.read(min(bytes_max, 1 << 16))):
                bytes_max -= len(data)
                self._take(data)
                if leave(self):
                    break
            if how == "half-close":
                # Half-closed: it sends nothing more, and still reads.
                writer.write_eof()
                while data := await reader.read(1 << 16):
                    self._take(data)
        except OSError:
            pass
        finally:
            writer.transport.abort()

    def _take(self, data: bytes) -> None:
        self._raw += data
        if self._in_head:
            head, found, rest = self._raw.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                raise Refused(int(head.split()[1]))
            self._in_head, self._raw = False, rest
        while True:
            length, found, rest = self._raw.partition(b"\r\n")
            if not found or len(rest) < int(length, 16) + 2:
                break
            self._body += rest[: int(length, 16)]
            self._raw = rest[int(length, 16) + 2 :]
        *whole, self._body = self._body.split(b"\n\n")
        for frame in whole:
            self._frame(frame)

    def _frame(self, frame: bytes) -> None:
        first, _, rest = frame.partition(b"\n")
        if first == b": connected":
            self.connects += 1
            start = int(rest.removeprefix(b"id: "))
            assert self.position in (None, 0, start) or self.gaps, f"resumed at {start} instead of {self.position}"
            self.position = start
        elif first.startswith(b"id: "):
            envelope = _decode(rest.removeprefix(b"data: "))
            self._durable(int(first[4:]), envelope)
        elif first.startswith(b"data: "):
            envelope = _decode(first[6:])
            self.gaps += envelope.type == "gap"
            if self.hook is not None:
                self.hook(None, envelope)

    def _durable(self, position: int, envelope: Envelope) -> None:
        body = envelope.payload.payload
        kind = (position, envelope.type, body.run_id or body.id, body.session_id)
        # The Positions of a workspace are consecutive: a hole or a duplicate is detected at once.
        assert position == (self.position or 0) + 1, f"{kind} came after Position {self.position}, {self.seen[-1:]}"
        self.position = position
        self.seen.append(kind)
        if self.hook is not None:
            self.hook(position, envelope)


async def whole_log(address: Address, workspace: str, last: int) -> list[Kind]:
    """Read the log from the beginning up to a Position that it has."""
    reader = Follower(workspace, deltas=False, position=0)
    async with asyncio.timeout(2 * WAIT_S):
        await reader.follow(address, lambda reader: (reader.position or 0) >= last)
    return reader.seen


# --- seeds ------------------------------------------------------------------------------------------------------------


def seeds(ci: int, long: int, each: int) -> list[range]:
    """Return the seeds as `slices` does, or the seed in KEDGE_SEED, to replay a failure."""
    if only := os.environ.get("KEDGE_SEED"):
        return [range(int(only), int(only) + 1)]
    return slices(ci, long, each)


def replay(test: str, seed: int) -> str:
    return f"replay: KEDGE_SEED={seed} .venv/bin/python -m pytest {test}"
