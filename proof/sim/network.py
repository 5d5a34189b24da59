"""A network in memory between real clients (httpx) and real servers (ASGI), with faults.

Requests and replies take time to arrive. A connection can be cut at any time: before the request arrives, after the
server has acted and before its reply arrives, in the middle of a frame. A stopped server refuses connections; a killed
server leaves its connections broken. A client that does not read makes the server wait, as a full socket does.
"""

from __future__ import annotations

import asyncio
import codecs
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import httpx2
import msgspec

from kedge.client.http_transport import ANSWER_S_MAX, SILENCE_S_MAX, Transport, decode_error, parse_host
from proof.sim.loop import SimLoop, SimProcess

App = Callable[[Any, Any, Any], Awaitable[None]]
Message = MutableMapping[str, Any]
Head = tuple[int, list[tuple[bytes, bytes]]]

#: The capacity of the sockets between two machines: then a sender has to wait. Bytes.
IN_FLIGHT_BYTES = 16_384
#: The time after which a connection drops a client that reads nothing. Seconds.
STALL_S = 20.0
_CONNECTED = re.compile(rb": connected\nid: (\d+)\n\n")
#: The longest latency of a packet. Seconds.
LATENCY_S = 0.05


class Network:
    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self._loop = loop
        self._rng = rng
        #: By address: "" if there is one server only.
        self._servers: dict[str, tuple[SimProcess, App]] = {}
        self._connections: list[Connection] = []
        #: Returns the address that a client connects to.
        self.choose: Callable[[], str] = lambda: ""
        #: Pairs of nodes, the sender first, and the time until which nothing reaches the second one.
        self._down_until: dict[tuple[str, str], float] = {}
        #: The probability of a cut, for each piece of data that is sent.
        self.cut_rate = 0.0
        self.cuts = 0

    def listen(self, process: SimProcess, app: App, address: str = "") -> None:
        self._servers[address] = (process, app)

    def refuse_connections(self, address: str = "") -> None:
        """Refuse new connections; existing ones continue."""
        self._servers.pop(address, None)

    def stop_listening(self, address: str = "") -> None:
        """Refuse new connections, and break all existing ones: also those that this server has opened."""
        self.refuse_connections(address)
        for connection in self._connections:
            if address in (connection.server, connection.client):
                connection.cut()
        self._connections = [known for known in self._connections if not known.is_closed]

    def cut_of(self, client: str) -> None:
        for connection in self._connections:
            if connection.client == client:
                self.cuts += not connection.is_closed
                connection.cut()

    def hang_up(self, client: str, address: str | None) -> None:
        """Close the connections of a client, or those of a node to another one."""
        for connection in self._connections:
            if connection.client == client and address in (None, connection.server):
                connection.cut()

    def take_down(self, sender: str, receiver: str, for_s: float) -> None:
        """Break the connections from one node to another, and refuse new ones for this time."""
        until = self._down_until.get((sender, receiver), 0.0)
        self._down_until[sender, receiver] = max(until, self._loop.time() + for_s)
        for connection in self._connections:
            if (connection.client, connection.server) == (sender, receiver):
                connection.cut()

    def repair(self) -> None:
        """Stop all faults of the network."""
        self.cut_rate = 0.0
        self._down_until.clear()

    async def connect(self, scope: Message, body: bytes, client: str, address: str, *, is_local: bool) -> Connection:
        await self.delay()
        server = self._servers.get(address)
        is_down = self._loop.time() < self._down_until.get((client, address), 0.0)
        if server is None or is_down or self._is_cut():
            raise httpx2.ConnectError("connection refused")
        process, app = server
        connection = Connection(self, {**scope, "kedge.local_socket": is_local}, body, client, address)
        self._connections = [known for known in self._connections if not known.is_closed]
        self._connections.append(connection)
        self._loop.spawn(process, connection.serve(app), f"{scope['method']} {scope['path']}")
        return connection

    async def delay(self) -> None:
        await asyncio.sleep(self._rng.random() ** 3 * LATENCY_S)

    def _is_cut(self) -> bool:
        if self.cut_rate and self._rng.random() < self.cut_rate:
            self.cuts += 1
            return True
        return False

    def piece_of(self, data: bytes) -> tuple[bytes, bool]:
        """Return the part of this data that arrives, and whether the connection is cut after it."""
        if not self._is_cut():
            return data, False
        return data[: self._rng.randrange(len(data) + 1)], True


class Connection:
    """One request and its reply. The server's half runs in the server's process, the client's in the client's."""

    def __init__(self, network: Network, scope: Message, body: bytes, client: str, server: str) -> None:
        self.client = client
        self.server = server
        self._network = network
        self._body: bytes | None = body
        own = {"type": "http", "kedge.abort": self.cut, "kedge.drain": self._drain}
        self._scope = {**scope, **own}
        self._start: Message | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._complete = False
        self.is_broken = False
        self._hung_up = False
        self._changed: list[asyncio.Future[None]] = []
        #: Separate, so that a wait for the end of the connection is not woken by each piece.
        self._ended: list[asyncio.Future[None]] = []

    @property
    def is_closed(self) -> bool:
        return self.is_broken or self._hung_up

    def cut(self) -> None:
        self.is_broken = True
        self._end()

    def hang_up(self) -> None:
        """Close the client's end."""
        self._hung_up = True
        self._end()

    def _end(self) -> None:
        _wake(self._ended)
        _wake(self._changed)

    # --- the server's half ---------------------------------------------------------------------------------------

    async def serve(self, app: App) -> None:
        await app(self._scope, self._receive, self._send)
        self._complete = True
        _wake(self._changed)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self.is_closed:
            await _wait(self._ended)
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.is_closed:
            return  # as with a real server: data written to a lost connection is dropped
        if message["type"] == "http.response.start":
            self._start = message
            return
        data, is_cut = self._network.piece_of(message.get("body", b""))
        if data:
            self._pieces.append(data)
            self._size += len(data)
        if is_cut:
            self.cut()
        else:
            self._complete = not message.get("more_body")
            _wake(self._changed)
        if not message.get("more_body"):
            await self._drain()

    async def _drain(self) -> None:
        """Wait for the client, and drop it if it reads nothing for STALL_S."""
        while self._size > IN_FLIGHT_BYTES and not self.is_closed:
            try:
                async with asyncio.timeout(STALL_S):
                    await _wait(self._changed)
            except TimeoutError:
                self.cut()

    # --- the client's half ---------------------------------------------------------------------------------------

    async def head(self) -> Head:
        while self._start is None or not (self._pieces or self._complete):
            if self.is_closed or self._complete:
                raise httpx2.ReadError("the connection was cut")
            await _wait(self._changed)
        return self._start["status"], self._start["headers"]

    async def next(self) -> bytes:
        """Return the data that arrived since; empty at the end."""
        while not self._pieces:
            if self.is_broken:
                raise httpx2.ReadError("the connection was cut")
            if self._complete:
                return b""
            await _wait(self._changed)
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        _wake(self._changed)
        return data


async def _wait(waiting: list[asyncio.Future[None]]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting.append(future)
    await future


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
    waiting.clear()


class SimTransport(httpx2.AsyncBaseTransport):
    """The transport below the HTTP library of a client, or of a node that connects to another one."""

    def __init__(self, network: Network, client: str, address: str | None = None) -> None:
        """`address`: that of the other node; None: a client connects to any node."""
        self._network = network
        self._client = client
        self._address = address
        self._is_closed = False
        #: The client does not read before this time.
        self.paused_until = 0.0
        #: Called with the Position at which a stream begins, which the server sends first, and the server's address.
        self.on_connected: Callable[[int, str], None] = lambda position, address: None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        scope = {
            "method": request.method,
            "path": request.url.path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
        }
        timeout = request.extensions.get("timeout", {}).get("read")
        connection, (status, headers) = await self.send(scope, await request.aread(), timeout)
        return httpx2.Response(status, headers=headers, stream=_Body(self, connection, timeout))

    async def aclose(self) -> None:
        """Close all connections, as a pool of connections does; also those that are being made."""
        self._is_closed = True
        self._network.hang_up(self._client, self._address)

    async def send(self, scope: Message, body: bytes, timeout: float | None) -> tuple[Connection, Head]:
        connection = None
        try:
            async with asyncio.timeout(timeout):
                address = self._network.choose() if self._address is None else self._address
                is_local = self._address is None
                connection = await self._network.connect(scope, body, self._client, address, is_local=is_local)
                if self._is_closed:
                    connection.cut()
                head = await connection.head()
        except BaseException as error:
            if connection is not None:
                connection.hang_up()
            if isinstance(error, TimeoutError):
                raise httpx2.ReadTimeout("no answer") from None
            raise
        return connection, head


class ShortTransport(Transport):
    """The client's transport without the HTTP library, which would cost half of a simulation and finds little. Some
    plans use the library (`uses_http_library`)."""

    def __init__(self, host: str, token: str, network: SimTransport) -> None:
        # Without super().__init__: creating the HTTP library's client costs more than a request.
        self.address = parse_host(host)
        self._network = network

    async def aclose(self) -> None: ...

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        answer_s_max: float = ANSWER_S_MAX,
    ) -> bytes:
        content = b"" if body is None else msgspec.json.encode(body)
        scope = _scope(method, path, params, {"content-type": "application/json"} if content else {})
        pieces: list[bytes] = []
        try:
            connection, (status, _) = await self._network.send(scope, content, answer_s_max)
            while piece := await connection.next():
                pieces.append(piece)
        except httpx2.TransportError as error:
            raise self.unreachable(error) from error
        if status < 300:
            return b"".join(pieces)
        raise decode_error(status, b"".join(pieces))

    async def open_stream(self, path: str, params: Mapping[str, Any], headers: dict[str, str]) -> Any:
        try:
            connection, (status, response_headers) = await self._network.send(
                _scope("GET", path, params, headers), b"", ANSWER_S_MAX
            )
            body = _Body(self._network, connection, SILENCE_S_MAX)
            if status == 200:
                return _ShortResponse(body, response_headers)
            pieces = [piece async for piece in body]
        except httpx2.TransportError as error:
            raise self.unreachable(error) from error
        raise decode_error(status, b"".join(pieces))


class _ShortResponse:
    """The part of a response that the parser of events uses."""

    request = httpx2.Request("GET", "http://localhost:1/")

    def __init__(self, body: _Body, headers: list[tuple[bytes, bytes]]) -> None:
        self._body = body
        self.headers = {name.decode(): value.decode() for name, value in headers}

    async def aiter_text(self) -> AsyncIterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        async for data in self._body:
            yield decoder.decode(data)

    async def aclose(self) -> None:
        await self._body.aclose()


def _scope(method: str, path: str, params: Mapping[str, Any] | None, headers: dict[str, str]) -> Message:
    query = {name: value for name, value in (params or {}).items() if value is not None}
    return {
        "method": method,
        "path": f"/v1{path}",
        "query_string": urlencode(query).encode(),
        "headers": [(b"host", b"localhost:1"), *((name.encode(), value.encode()) for name, value in headers.items())],
    }


class _Body(httpx2.AsyncByteStream):
    def __init__(self, transport: SimTransport, connection: Connection, timeout: float | None) -> None:
        self._transport = transport
        self._connection = connection
        self._timeout = timeout

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while True:
            if (pause := self._transport.paused_until - loop.time()) > 0:
                await asyncio.sleep(pause)
            try:
                async with asyncio.timeout(self._timeout):
                    data = await self._connection.next()
            except TimeoutError:
                raise httpx2.ReadTimeout("silence") from None
            if not data:
                return
            if (began := _CONNECTED.search(data)) is not None:
                self._transport.on_connected(int(began[1]), self._connection.server)
            yield data

    async def aclose(self) -> None:
        with suppress(RuntimeError):
            self._connection.hang_up()
