"""HTTP requests to one server: its address, the token, and typed errors."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
from msgspec import Struct

from kedge import paths
from kedge.client.peer_credentials import peer_check
from kedge.client.safe_text import one_line
from kedge.errors import BY_CODE, Invalid, KedgeError, NotFound, TooLarge, Unauthorized, Unreachable
from kedge.wire.models import ErrorBody

#: The server answers from memory or its store. After this long without a byte, it is considered hung. Seconds.
ANSWER_S_MAX = 30.0
#: Local addresses connect at once or never. Remote ones need longer, and so does the event loop of a client that waits
#: for a processor: an app that draws its first screen on a busy machine did not connect within 5 s. Seconds.
CONNECT_S_MAX = 15.0
#: The largest reply is a page of messages with attachments. Bytes.
REPLY_BYTES_MAX = 256 * 1024 * 1024
#: The server sends a heartbeat every 15 s; after three missed ones the connection is dead. Seconds.
SILENCE_S_MAX = 45.0

_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")
_HEADER_TEXT = re.compile(r"[\x21-\x7e]+")

R = TypeVar("R")


def quoted_path(*parts: str) -> str:
    """Join the parts into a path, each one quoted."""
    for part in parts:
        if part in ("", ".", ".."):
            raise Invalid(f"{part!r} is not a valid id.")
    return "/" + "/".join(quote(part, safe="") for part in parts)


def decode_reply(method: str, path: str, body: bytes, kind: type[R]) -> R:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KedgeError(
            f"Cannot decode the reply to {method} {path} ({error}). Is the server another version of kedge?"
        ) from error


class NotConnected(Unreachable):
    """No connection could be made, so no server received the request."""


class Address(Struct, frozen=True):
    """The address of a server. `host` is what the user writes, `base_url` is for the HTTP library."""

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
        f"{one_line(host)!r} is not a valid server address. Use unix:///path.sock, tcp://127.0.0.1:PORT or http://..."
    )


def decode_error(status: int, body: bytes) -> KedgeError:
    """Return the error of a reply. For a foreign body (a proxy's page) its message quotes the start."""
    try:
        error = msgspec.json.decode(body, type=ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        start = one_line(body[:800].decode("utf-8", "replace"), 200)
        return _by_status(status)(f"The server returned status {status}: {start or '(empty body)'}")
    kind = BY_CODE.get(error.code) or _by_status(status)
    return kind(one_line(error.message, 2000) or f"The server returned status {status} ({one_line(error.code)}).")


def _by_status(status: int) -> type[KedgeError]:
    """Return the most general error with this status. 502 and 504 are those of a gateway without a server, not errors
    of models or stores."""
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
        """`network` replaces the sockets, for example by a simulated network."""
        self.address = parse_host(host or paths.default_host())
        self._explicit_token = token or os.environ.get("KEDGE_TOKEN")
        if self._explicit_token and not _HEADER_TEXT.fullmatch(self._explicit_token):
            raise Invalid("The token must be printable ASCII without spaces, as in the server's token file.")
        self._token = self._explicit_token or self._token_from_file()
        self._http = httpx2.AsyncClient(
            # Certificates are only loaded (30 ms) for https. Proxies are ignored: they cannot reach a socket or this
            # machine's loopback, and would see the token.
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
        """Return the body of the reply, or raise the error it contains."""
        try:
            content = None if body is None else msgspec.json.encode(body)
        except UnicodeEncodeError:
            raise Invalid("The text contains a lone surrogate, which is not valid UTF-8.") from None
        request = self._http.build_request(
            method,
            path,
            params=_without_none(params),
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
        """Return the reply with its body unread. The caller closes it."""
        request = self._http.build_request(
            "GET",
            path,
            params=_without_none(params),
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
        raise KedgeError(f"The server returned status {response.status_code} instead of a stream.")

    async def pieces(self, response: httpx2.Response) -> AsyncIterator[bytes]:
        """Yield the body of a reply as it arrives, and close the reply. Raise Unreachable if the body is incomplete."""
        try:
            async for piece in response.aiter_raw():
                yield piece
        except httpx2.TransportError as error:
            raise Unreachable(
                f"The server at {self.address.host} aborted its reply. See its log, and try again."
            ) from error
        finally:
            await response.aclose()

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._send_once(request)
        if response.status_code == 401 and self._has_new_token():
            # The server was restarted and has a new token.
            await response.aclose()
            response = await self._send_once(request)
        return response

    async def _send_once(self, request: httpx2.Request) -> httpx2.Response:
        if self._token:
            request.headers["authorization"] = f"Bearer {self._token}"
        loop = asyncio.get_running_loop()
        if self.address.socket is not None:
            request.extensions["trace"] = peer_check(self.address.socket)
            if loop.get_exception_handler() is None:
                loop.set_exception_handler(_ignore_late_wakeup)
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
                    raise TooLarge(f"The server's reply is larger than {REPLY_BYTES_MAX} bytes. Request fewer items.")
        except httpx2.TransportError as error:
            raise self.unreachable(error) from error
        body = b"".join(pieces)
        if response.is_success:
            return body
        refusal = decode_error(response.status_code, body)
        if isinstance(refusal, Unauthorized) and not self._explicit_token:
            raise Unauthorized(
                f"{refusal.message} (Set KEDGE_TOKEN to the token of the server at {self.address.host}.)"
            )
        if type(refusal) is NotFound:
            raise NotFound(f"{refusal.message} (Is {self.address.host} a kedge server?)")
        raise refusal

    def unreachable(self, error: httpx2.TransportError) -> Unreachable:
        host = self.address.host
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            advice = "Start one with: kedge serve" if self.address.is_local else "Check the address and the network."
            return NotConnected(f"No server is listening at {host}. {advice}")
        if isinstance(error, httpx2.TimeoutException):
            return Unreachable(f"The server at {host} does not answer. See its log, and: kedge doctor")
        return Unreachable(
            f"The server at {host} closed the connection before answering. See its log, and: kedge doctor"
        )

    def _token_from_file(self) -> str | None:
        """Return the token of this machine's server. It is not sent to other machines."""
        if self.address.socket or not self.address.is_local:
            return None
        try:
            token = paths.token_file().read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return token if _HEADER_TEXT.fullmatch(token) else None

    def _has_new_token(self) -> bool:
        if self._explicit_token:
            return False
        before, self._token = self._token, self._token_from_file()
        return self._token is not None and self._token != before


def _ignore_late_wakeup(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore InvalidStateError of a wake-up whose read was cancelled in the same pass of the loop.

    The HTTP library has the loop call `set_result` of a future when a socket becomes readable. That is harmless then,
    and no reason to print a traceback."""
    callback = getattr(context.get("handle"), "_callback", None)
    is_late = isinstance(context.get("exception"), asyncio.InvalidStateError)
    if not (is_late and getattr(callback, "__name__", "") == "set_result"):
        loop.default_exception_handler(context)


def _without_none(params: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (params or {}).items() if value is not None}
