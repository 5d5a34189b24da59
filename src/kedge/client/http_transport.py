"""One HTTP request to one server: addresses, the token, and errors as the typed errors they are."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
from msgspec import Struct

from kedge import paths
from kedge.client.peer_credentials import checked
from kedge.client.safe_text import one_line
from kedge.errors import BY_CODE, Invalid, KedgeError, NotFound, TooLarge, Unauthorized, Unreachable
from kedge.wire.models import ErrorBody

#: The server answers from memory or its store; this long without a byte means that it hangs. Seconds.
ANSWER_S_MAX = 30.0
#: Local addresses connect at once or never; this leaves room for a remote one. Seconds.
CONNECT_S_MAX = 5.0
#: The largest body is a page of messages with attachments. More is no answer of ours. Bytes.
REPLY_BYTES_MAX = 256 * 1024 * 1024
#: The server sends a heartbeat each 15 s; after three missed ones the connection is dead. Seconds.
SILENCE_S_MAX = 45.0

_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")
_HEADER_TEXT = re.compile(r"[\x21-\x7e]+")


class NotConnected(Unreachable):
    """No connection could be made: the request was certainly not seen by any server."""


class Address(Struct, frozen=True):
    """Where a server listens. `host` is what people write, `base_url` what HTTP wants."""

    host: str
    base_url: str
    socket: str | None = None
    is_local: bool = False


def parse_host(host: str) -> Address:
    if host.startswith("unix:///"):
        return Address(host, "http://localhost", socket=host.removeprefix("unix://"), is_local=True)
    parts = urlsplit(host)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme in ("tcp", "http", "https") and parts.hostname and "@" not in parts.netloc:
        is_local = _LOOPBACK.fullmatch(parts.hostname) is not None
        if parts.scheme == "tcp" and port and parts.path in ("", "/"):
            return Address(host, f"http://{parts.netloc}", is_local=is_local)
        if parts.scheme != "tcp" and not parts.query and not parts.fragment:
            return Address(host, host.rstrip("/"), is_local=is_local)
    raise Invalid(
        f"{one_line(host)!r} is no address of a server: write unix:///path.sock, tcp://127.0.0.1:PORT or http://..."
    )


def decode_error(status: int, body: bytes) -> KedgeError:
    """The error that a reply stands for. Of a body that is not ours (a proxy's page) the start is shown."""
    try:
        given = msgspec.json.decode(body, type=ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        start = one_line(body[:800].decode("utf-8", "replace"), 200)
        return _by_status(status)(f"the server answered with status {status}: {start or 'an empty body'}")
    kind = BY_CODE.get(given.code) or _by_status(status)
    return kind(one_line(given.message, 2000) or f"the server answered with status {status} ({one_line(given.code)})")


def _by_status(status: int) -> type[KedgeError]:
    """The widest error with this status. A gateway's own say nothing about models or stores: 502 and 504 are those of
    one that does not reach its server."""
    if status in (502, 504):
        return Unreachable
    if status == 500:
        return KedgeError
    return next((kind for kind in BY_CODE.values() if kind.status == status), KedgeError)


class Transport:
    """The connections of one client to one server."""

    def __init__(
        self, host: str | None = None, token: str | None = None, network: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        """`network`: another way to the server than sockets; a simulated one, for example."""
        self.address = parse_host(host or paths.default_host())
        self._given_token = token or os.environ.get("KEDGE_TOKEN")
        if self._given_token and not _HEADER_TEXT.fullmatch(self._given_token):
            raise Invalid("the token must be printable ASCII without spaces, as in the server's token file")
        self._token = self._given_token or self._token_from_file()
        self._http = httpx2.AsyncClient(
            # Certificates are only read (30 ms) where they are used. No proxy is asked: it could not reach a socket or
            # this machine's loopback, and would see the token.
            transport=network
            or httpx2.AsyncHTTPTransport(
                uds=self.address.socket, verify=self.address.base_url.startswith("https:"), trust_env=False
            ),
            base_url=self.address.base_url + "/v1",
            headers={"accept-encoding": "identity", "user-agent": "kedge"},
            trust_env=False,
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        answer_s_max: float = ANSWER_S_MAX,
    ) -> bytes:
        """The body of the reply, or the error it stands for."""
        try:
            content = None if body is None else msgspec.json.encode(body)
        except UnicodeEncodeError:
            raise Invalid("the text holds half a character (a lone surrogate), which is not valid UTF-8") from None
        request = self._http.build_request(
            method,
            path,
            params=_given(params),
            content=content,
            headers={} if content is None else {"content-type": "application/json"},
            timeout=httpx2.Timeout(answer_s_max, connect=CONNECT_S_MAX),
        )
        response = await self._send(request)
        try:
            return await self._read(response)
        finally:
            await response.aclose()

    async def open_stream(self, path: str, params: Mapping[str, Any], headers: dict[str, str]) -> httpx2.Response:
        """The reply with its body still to be read. Whoever asks closes it."""
        request = self._http.build_request(
            "GET",
            path,
            params=_given(params),
            headers={"accept": "text/event-stream", "cache-control": "no-store", **headers},
            timeout=httpx2.Timeout(ANSWER_S_MAX, connect=CONNECT_S_MAX, read=SILENCE_S_MAX),
        )
        response = await self._send(request)
        if response.status_code == 200:
            return response
        try:
            await self._read(response)
        finally:
            await response.aclose()
        raise KedgeError(f"the server answered with status {response.status_code} where a stream was asked for")

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._send_once(request)
        if response.status_code == 401 and self._has_new_token():
            # The server was started again since, and made a new token.
            await response.aclose()
            response = await self._send_once(request)
        return response

    async def _send_once(self, request: httpx2.Request) -> httpx2.Response:
        if self._token:
            request.headers["authorization"] = f"Bearer {self._token}"
        loop = asyncio.get_running_loop()
        if self.address.socket is not None:
            request.extensions["trace"] = checked(self.address.socket)
            if loop.get_exception_handler() is None:
                loop.set_exception_handler(_forgive_a_late_wake)
        try:
            return await self._http.send(request, stream=True)
        except httpx2.TransportError as error:
            raise self.unreachable(error) from error

    async def _read(self, response: httpx2.Response) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            async for piece in response.aiter_raw():
                pieces.append(piece)
                size += len(piece)
                if size > REPLY_BYTES_MAX:
                    raise TooLarge(f"the server's reply is larger than {REPLY_BYTES_MAX} bytes; ask for less at once")
        except httpx2.TransportError as error:
            raise self.unreachable(error) from error
        body = b"".join(pieces)
        if response.is_success:
            return body
        refusal = decode_error(response.status_code, body)
        if isinstance(refusal, Unauthorized) and not self._given_token:
            raise Unauthorized(f"{refusal.message} (set KEDGE_TOKEN to the token of the server at {self.address.host})")
        if type(refusal) is NotFound:
            raise NotFound(f"{refusal.message} (is {self.address.host} a kedge server?)")
        raise refusal

    def unreachable(self, error: httpx2.TransportError) -> Unreachable:
        host = self.address.host
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            wayout = "start one with `kedge serve`" if self.address.is_local else "check the address and the network"
            return NotConnected(f"no server answers at {host}: {wayout}")
        if isinstance(error, httpx2.TimeoutException):
            return Unreachable(f"the server at {host} does not answer: see `kedge doctor` and its log")
        return Unreachable(f"the server at {host} went away before it had answered: see `kedge doctor` and its log")

    def _token_from_file(self) -> str | None:
        """The token of this machine's server. It is shown to no other machine."""
        if self.address.socket or not self.address.is_local:
            return None
        try:
            found = paths.token_file().read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return found if _HEADER_TEXT.fullmatch(found) else None

    def _has_new_token(self) -> bool:
        if self._given_token:
            return False
        before, self._token = self._token, self._token_from_file()
        return self._token is not None and self._token != before


def _forgive_a_late_wake(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The library below has the loop call `set_result` of a future when a socket can be read. If the read is cancelled
    in the very pass in which something arrives, that is one too many, and harmless: people need not see a traceback."""
    callback = getattr(context.get("handle"), "_callback", None)
    is_late = isinstance(context.get("exception"), asyncio.InvalidStateError)
    if not (is_late and getattr(callback, "__name__", "") == "set_result"):
        loop.default_exception_handler(context)


def _given(params: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (params or {}).items() if value is not None}
