"""The addresses on which browsers reach the server. They are opened while it runs, on request of its owner.

A port of this machine is remembered and opened again by the next server, so that open pages find it. An address that
other machines can reach never is."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
import ssl
from collections.abc import Awaitable, Callable

from msgspec import Struct

from kedge.errors import Busy, Invalid, Starting
from kedge.server.auth import Gate
from kedge.server.sockets import bind_tcp
from kedge.wire.web_models import ListenForWeb, WebAddress

log = logging.getLogger("kedge.server")

#: Addresses of one server. Items.
LISTENERS_MAX = 8
#: Accepted host names. Items.
NAMES_MAX = 100
_LOOPBACK = "127.0.0.1"
_NAME = re.compile(r"[\w-]+(?:\.[\w-]+)*|[\da-f:.]+", re.ASCII)

#: Serves requests of a bound socket from now on.
Serve = Callable[[socket.socket, ssl.SSLContext | None], Awaitable[None]]


class _Listener(Struct, frozen=True):
    address: str
    port: int
    certificate: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}"

    @property
    def is_remote(self) -> bool:
        return not ipaddress.ip_address(self.address).is_loopback


class WebListeners:
    def __init__(self, gate: Gate, sockets: list[socket.socket]) -> None:
        """`sockets` are those that the server was started with."""
        self._gate = gate
        self._browsers = gate.browsers
        self._sockets = sockets
        self._opened: list[_Listener] = []
        self._serve: Serve | None = None
        #: Two requests for the same address get the same one.
        self._opening = asyncio.Lock()

    @property
    def is_needed(self) -> bool:
        """True while browsers use a port that was opened for them: an idle server must not exit then."""
        return bool(self._opened) and self._browsers.has_any

    async def start(self, serve: Serve) -> None:
        """Listen again on the port of the last server, if browsers have access."""
        self._serve = serve
        request = ListenForWeb(port=self._browsers.port)
        if not request.port or not self._browsers.has_any:
            return
        try:
            await self.listen(request)
        except Invalid as error:
            log.warning("the web page is not served: %s Get a new link with: kedge web", error)

    async def listen(self, request: ListenForWeb) -> WebAddress:
        if self._serve is None:
            raise Starting("The server is starting; try again in a moment.")
        names = [name.lower() for name in request.names]
        if wrong := [name for name in names if _NAME.fullmatch(name) is None]:
            raise Invalid(f"{wrong[0]!r} is not a valid host name.")
        if len(self._gate.names | set(names)) > NAMES_MAX:
            raise Busy(f"{NAMES_MAX} host names are accepted, the limit of this server. Restart it with: kedge stop")
        async with self._opening:
            listener = self._found(request) or await self._open(request, self._serve)
        # The Host of a request to this address; nothing else is accepted in addition.
        self._gate.names.update(names, [listener.address] if listener.is_remote else [])
        return WebAddress(url=listener.url, is_remote=listener.is_remote)

    def _found(self, request: ListenForWeb) -> _Listener | None:
        own = [sock.getsockname()[:2] for sock in self._sockets if sock.family != socket.AF_UNIX]
        listeners = [*self._opened, *(_Listener(address, port) for address, port in own)]
        return next(
            (
                one
                for one in listeners
                if one.address == (request.address or _LOOPBACK)
                and request.port in (0, one.port)
                and one.certificate == request.certificate
            ),
            None,
        )

    async def _open(self, request: ListenForWeb, serve: Serve) -> _Listener:
        if len(self._opened) >= LISTENERS_MAX:
            raise Busy(f"The server listens on {LISTENERS_MAX} addresses, its limit. Restart it with: kedge stop")
        tls = await asyncio.to_thread(_tls, request) if request.certificate else None
        sock = self._bind(request)
        address, port = sock.getsockname()[:2]
        await serve(sock, tls)
        listener = _Listener(address, port, request.certificate)
        self._opened.append(listener)
        log.info("serving the web page on %s", listener.url)
        if not listener.is_remote and not request.certificate:
            await self._browsers.remember_port(port)
        return listener

    def _bind(self, request: ListenForWeb) -> socket.socket:
        address, last = request.address or _LOOPBACK, self._browsers.port
        if address == _LOOPBACK and not request.port and last and not request.certificate:
            try:
                return bind_tcp(address, last, allow_remote=False)
            except Invalid:
                pass  # another program has the port now
        return bind_tcp(address, request.port, request.allow_remote)


def _tls(request: ListenForWeb) -> ssl.SSLContext:
    """Blocking."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(request.certificate, request.certificate_key or None, password=_no_password)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise Invalid(f"The certificate {request.certificate} or its key cannot be used: {reason}.") from None
    return context


def _no_password() -> str:
    """Refuse an encrypted key: otherwise OpenSSL would ask for its password on the terminal."""
    raise ValueError("the key is encrypted")
