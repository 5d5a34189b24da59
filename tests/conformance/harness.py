"""A black-box view of a kedge server: plain HTTP, an SSE reader of its own, a process that can be killed.

Of the product, only the scripted model endpoint is imported, so that these tests see what any client sees. With
`KEDGE_URL` (and `KEDGE_TOKEN`) the same tests run against another server. Its model must be `local/fake-large` of an
OpenAI-compatible provider at port `KEDGE_TEST_ENDPOINT_PORT` (9001) of this machine, with the models `fake-large` and
`fake-small`: `Server` below writes the complete configuration.

With `KEDGE_CONFORMANCE=cluster` they run against two nodes on one PostgreSQL, and each request goes to the other node.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx2

from kedge.testing.endpoint import EndpointRequest
from kedge.testing.hosted import HostedEndpoint
from tests.stalls import assert_no_stall

Json = dict[str, Any]
#: Longer than anything here takes on a loaded machine; only a hang reaches it. Seconds.
WAIT_S = 30.0
IS_CLUSTER = os.environ.get("KEDGE_CONFORMANCE") == "cluster"


class Endpoint:
    """The scripted model endpoint, for tests that run in an event loop. A tag identifies the requests of one test."""

    def __init__(self, hosted: HostedEndpoint) -> None:
        self.hosted = hosted

    def release(self, key: str) -> None:
        self.hosted.release(key)

    def requests(self, tag: str) -> list[EndpointRequest]:
        return [request for request in self.hosted.requests if request.tag == tag]

    def open(self, tag: str) -> int:
        return int(self.hosted.stats()["open_by_tag"].get(tag, 0))

    def open_max(self, tag: str) -> int:
        return int(self.hosted.stats()["open_max_by_tag"].get(tag, 0))

    async def wait_open(self, tag: str, count: int = 1) -> None:
        """Wait until `count` streams with this tag are open."""
        await asyncio.to_thread(self.hosted.wait_until, lambda endpoint: endpoint.open_by_tag[tag] == count)

    async def wait_requests(self, tag: str, count: int) -> None:
        """Wait for `count` requests with this tag."""
        await asyncio.to_thread(
            self.hosted.wait_until,
            lambda endpoint: sum(request.tag == tag for request in endpoint.requests) >= count,
        )


@dataclass
class Frame:
    """One frame of the stream. `position` is None for Deltas and snapshots."""

    type: str
    change: str
    payload: Json
    position: int | None


class Stream:
    """An open event stream. `frames` has everything received."""

    def __init__(self, peer: Peer, path: str, params: Json, headers: dict[str, str]) -> None:
        self._peer = peer
        self._path, self._params, self._headers = path, params, headers
        self.frames: list[Frame] = []
        self.comments: list[str] = []
        self.bytes = 0
        self.ended = False
        self._changed = asyncio.Event()
        self._connected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read())
        connected = asyncio.create_task(self._connected.wait())
        await asyncio.wait({connected, self._task}, return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_S)
        if not self._connected.is_set():
            connected.cancel()
            await self._task
            raise AssertionError("the stream did not open")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            # Errors of the connection are expected here; an assertion about a frame is raised.
            with contextlib.suppress(asyncio.CancelledError, httpx2.TransportError):
                await self._task

    async def _read(self) -> None:
        try:
            await self._read_frames()
            self.ended = True
        finally:
            self._changed.set()  # wake the waiters, also after an error

    async def _read_frames(self) -> None:
        http = self._peer.http
        async with http.stream("GET", self._path, params=self._params, headers=self._headers, timeout=None) as reply:
            assert reply.status_code == 200, (await reply.aread()).decode()
            buffer = b""
            async for data in reply.aiter_raw():
                self.bytes += len(data)
                buffer += data
                *whole, buffer = buffer.split(b"\n\n")
                for frame in whole:
                    self._take(frame.decode())
                self._changed.set()

    def _take(self, text: str) -> None:
        position, data = None, None
        for line in text.split("\n"):
            if line.startswith(":"):
                self.comments.append(line[1:].strip())
                self._connected.set()
            elif line.startswith("id: "):
                position = int(line[4:])
            elif line.startswith("data: "):
                assert data is None, "more than one data line in a frame"
                data = json.loads(line[6:])
            else:
                raise AssertionError(f"unexpected line in a frame: {line!r}")
        if data is not None:
            assert set(data) == {"type", "payload"}, f"unexpected keys in a frame: {sorted(data)}"
            self.frames.append(Frame(data["type"], data["payload"]["type"], data["payload"]["payload"], position))

    # --- waiting -------------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[Stream], Any], wait_s: float = WAIT_S) -> Any:
        """Wait until the condition is true for this stream, and return its value."""
        async with asyncio.timeout(wait_s):
            while not (value := condition(self)):
                await self._change()
        return value

    async def until_end(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while not self.ended:
                await self._change()

    async def _change(self) -> None:
        """Wait for the next data. Raises the error of the reader, or AssertionError if the stream has ended."""
        assert self._task is not None, "the stream was never opened"
        if self._task.done():
            assert not self._task.cancelled(), "the stream was closed before the condition held"
            self._task.result()
            raise AssertionError("the stream ended before the condition held")
        self._changed.clear()
        await self._changed.wait()

    async def until_complete(self, *run_ids: str) -> list[Json]:
        """Wait for the `run_complete` of each Run, and return them in the order of the arguments."""
        await self.until(lambda stream: all(stream.completes(run_id) for run_id in run_ids))
        return [self.completes(run_id)[0] for run_id in run_ids]

    # --- reading -------------------------------------------------------------------------------------------------

    def of(self, kind: str) -> list[Frame]:
        return [frame for frame in self.frames if frame.type == kind]

    def completes(self, run_id: str) -> list[Json]:
        return [frame.payload for frame in self.of("run_complete") if frame.payload["run_id"] == run_id]

    @property
    def durable(self) -> list[Frame]:
        return [frame for frame in self.frames if frame.position is not None]

    @property
    def positions(self) -> list[int]:
        return [frame.position for frame in self.frames if frame.position is not None]

    def text(self, message_id: str) -> str:
        """The text of a message as a client builds it: a `message` replaces it, a `delta` adds to it."""
        parts: dict[int, str] = {}
        for frame in self.frames:
            if frame.type == "message" and frame.payload["id"] == message_id:
                numbered = enumerate(frame.payload["parts"])
                parts = {index: part["data"]["text"] for index, part in numbered if part["type"] == "text"}
            elif frame.type == "delta" and frame.payload["message_id"] == message_id:
                part = frame.payload["part"]
                parts[part] = parts.get(part, "") + frame.payload["text"]
        return "".join(parts[index] for index in sorted(parts))


@dataclass
class Peer:
    """One client of a server, in one workspace."""

    http: httpx2.AsyncClient
    directory: Path
    client_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    workspace: str = ""

    async def call(self, method: str, path: str, body: Any = None, *, expect: int = 200, **params: Any) -> Any:
        """Send a request below /v1, check the status, and return the body."""
        reply = await self.reply(method, path, body, **params)
        assert reply.status_code == expect, f"{method} {path}: {reply.status_code} {reply.text[:500]}"
        if reply.status_code >= 400:
            error = reply.json()
            assert set(error) == {"message", "code"}, error
            assert error["message"], error
            assert error["code"], error
        return reply.json()

    async def reply(self, method: str, path: str, body: Any = None, **params: Any) -> httpx2.Response:
        content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if content is not None else {}
        return await self.http.request(method, f"/v1{path}", content=content, headers=headers, params=params)

    async def open(self) -> Self:
        body = {"path": str(self.directory), "client_id": self.client_id}
        self.workspace = (await self.call("POST", "/workspaces", body))["id"]
        return self

    @property
    def at(self) -> str:
        return f"/workspaces/{self.workspace}"

    async def session(self, title: str = "") -> str:
        return str((await self.call("POST", f"{self.at}/sessions", {"title": title}))["id"])

    async def submit(self, session_id: str, prompt: str, *, expect: int = 202, **fields: Any) -> Json:
        body = {"session_id": session_id, "prompt": prompt, **fields}
        reply: Json = await self.call("POST", f"{self.at}/agent", body, expect=expect)
        return reply

    async def cancel(self, session_id: str) -> Json:
        reply: Json = await self.call("POST", f"{self.at}/agent/sessions/{session_id}/cancel")
        return reply

    async def cancel_run(self, run_id: str, *, expect: int = 200) -> Json:
        reply: Json = await self.call("POST", f"{self.at}/agent/runs/{run_id}/cancel", expect=expect)
        return reply

    async def run(self, run_id: str, *, expect: int = 200) -> Json:
        reply: Json = await self.call("GET", f"{self.at}/agent/runs/{run_id}", expect=expect)
        return reply

    async def wait(self, run_id: str) -> Json:
        """Wait for the end of a Run, and return the Run."""
        run: Json = await self.call("GET", f"{self.at}/agent/runs/{run_id}/wait", timeout_s=WAIT_S)
        assert run["state"] == "ended", run
        return run

    async def runs(self, session_id: str) -> list[Json]:
        runs: list[Json] = await self.call("GET", f"{self.at}/agent/sessions/{session_id}/runs")
        return runs

    async def messages(self, session_id: str) -> list[Json]:
        """Return the transcript, page by page: a page ends at a size, too."""
        messages: list[Json] = []
        path = f"{self.at}/sessions/{session_id}/messages"
        while page := await self.call("GET", path, **({"after": messages[-1]["id"]} if messages else {})):
            messages += page
        return messages

    async def answer(self, ask_id: str, action: str, *, expect: int = 200, message: str = "") -> Json:
        body = {"id": ask_id, "action": action, "message": message}
        path = f"{self.at}/permissions/grant"
        reply: Json = await self.call("POST", path, body, expect=expect, client_id=self.client_id)
        return reply

    async def set_mode(self, session_id: str, mode: str, *, expect: int = 200) -> None:
        path = f"{self.at}/sessions/{session_id}"
        await self.call("PUT", path, {"mode": mode}, expect=expect, client_id=self.client_id)

    async def mode(self, session_id: str) -> str:
        return str((await self.call("GET", f"{self.at}/sessions/{session_id}"))["mode"])

    def stream(self, *, last_event_id: int | str | None = None, **params: Any) -> Stream:
        """`async with peer.stream(deltas=1, session_id=..., after=...) as stream:`"""
        headers = {} if last_event_id is None else {"last-event-id": str(last_event_id)}
        return Stream(self, f"/v1{self.at}/events", {"client_id": self.client_id, **params}, headers)


def unique(prefix: str = "x") -> str:
    """A tag, hold key or run id that no other test uses."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def text_of(message: Json) -> str:
    return "".join(part["data"]["text"] for part in message["parts"] if part["type"] == "text")


def finish_of(message: Json) -> str | None:
    return next((part["data"]["reason"] for part in message["parts"] if part["type"] == "finish"), None)


def results_of(messages: list[Json]) -> list[Json]:
    """The tool results of a transcript, in order."""
    parts = [part for message in messages for part in message["parts"]]
    return [part["data"] for part in parts if part["type"] == "tool_result"]


def outline(messages: list[Json]) -> list[tuple[str, str, str | None]]:
    """Return (role, text, finish reason) of each message."""
    return [(message["role"], text_of(message), finish_of(message)) for message in messages]


class Server:
    """A real `kedge serve` process with a data directory of its own."""

    def __init__(self, home: Path, endpoint_url: str, config: str = "", *, titles: bool = False) -> None:
        self.home = home
        self.data_dir = home / "data"
        self.socket = home / "s.sock"
        home.mkdir(parents=True, exist_ok=True)
        # Titles have their own tests; elsewhere a second model request would only disturb.
        runs = f"[runs]\ntitles = {str(titles).lower()}\nretry_s = 0.01\nretries_max = 2\n"
        config = config.replace("[runs]\n", runs) if "[runs]\n" in config else f"{config}\n{runs}"
        (home / "config.toml").write_text(
            f'model = "local/fake-large"\n[providers.local]\nbase_url = "{endpoint_url}"\napi_key = "a-key"\n'
            f'models = [{{ id = "fake-large" }}, {{ id = "fake-small" }}, '
            '{ id = "fake-narrow", context_window = 4000, images = false, input_price = 1, output_price = 2 }]\n'
            f'[providers.claude]\ntype = "anthropic"\nbase_url = "{endpoint_url}"\napi_key = "a-key"\n'
            f'models = [{{ id = "fake-large" }}]\n{config}\n'
        )
        #: The arguments of Python that run the command `kedge`.
        self.program: tuple[str, ...] = ("-m", "kedge")
        #: Further options of `kedge serve`, and variables of its environment.
        self.options: tuple[str, ...] = ()
        self.variables: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self.token = ""
        #: False for a test whose load alone delays the event loop: hundreds of callbacks that are ready at once.
        self.checks_stalls = True

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("KEDGE_")},
            "KEDGE_DATA_DIR": str(self.data_dir),
            "KEDGE_CONFIG": str(self.home / "config.toml"),
            "HOME": str(self.home),
            **self.variables,
        }

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, port: int = 0, token: str = "", files_max: int = 0) -> Self:
        """Start the server. It chooses a port and a token unless these are passed. `files` limits its open files."""
        log = (self.home / "server.log").open("a")
        few_files = ["sh", "-c", f'ulimit -n {files_max} && exec "$@"', "sh"] if files_max else []
        command = [*few_files, sys.executable, *self.program, "serve", "--host", f"tcp://127.0.0.1:{port}"]
        self.process = subprocess.Popen(
            [*command, "--host", f"unix://{self.socket}", *self.options],
            env={**self.environment, **({"KEDGE_TOKEN": token} if token else {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline().strip() for _ in range(2)]
        assert lines[0].startswith("listening on tcp://"), f"{lines} {self.log[-2000:]}"
        self.url = lines[0].removeprefix("listening on ").replace("tcp://", "http://")
        self.token = (self.data_dir / "token").read_text().strip()
        return self

    @property
    def log(self) -> str:
        return (self.home / "server.log").read_text()

    @property
    def exit_code(self) -> int | None:
        """None if the server runs, or if the test has ended it."""
        return self.process.poll() if self.process is not None else None

    def signal(self, number: signal.Signals) -> int:
        """Send a signal, wait for the process to exit, and return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        if self.checks_stalls:
            assert_no_stall(self.log)
        return code

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def terminate(self) -> int:
        return self.signal(signal.SIGTERM)

    def stop(self) -> None:
        if self.process is not None:
            self.kill()

    def kedge(self, *arguments: str, cwd: Path) -> str:
        """Run a command of the same user and return its output."""
        command = [sys.executable, "-m", "kedge", *arguments]
        done = subprocess.run(command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextlib.asynccontextmanager
    async def http(self, *, unix: bool = False) -> AsyncIterator[httpx2.AsyncClient]:
        async with open_http(self.url, self.token, self.socket if unix else None) as client:
            yield client

    @contextlib.asynccontextmanager
    async def peer(self, directory: Path) -> AsyncIterator[Peer]:
        async with self.http() as http:
            yield await Peer(http, directory).open()


def open_http(url: str, token: str, socket: Path | None = None) -> httpx2.AsyncClient:
    # With `verify`, each client loads all certificates of the machine (30 ms), even for plain HTTP.
    # The balancer of a cluster chooses another node for each connection.
    kept = 0 if IS_CLUSTER else 20
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=kept)
    if socket is not None:
        transport = httpx2.AsyncHTTPTransport(uds=str(socket), limits=limits, verify=False)
        return httpx2.AsyncClient(base_url="http://localhost", transport=transport, timeout=WAIT_S + 10)
    headers, is_tls = {"authorization": f"Bearer {token}"}, url.startswith("https:")
    return httpx2.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=WAIT_S + 10, verify=is_tls)
