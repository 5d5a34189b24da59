"""Who may ask: checked for every request before anything else is looked at, the route included."""

from __future__ import annotations

import hmac
import ipaddress
import re

from msgspec import Struct

from kedge.errors import BadHost, BadOrigin, Invalid, Unauthorized

Headers = list[tuple[bytes, bytes]]


class Gate(Struct, frozen=True):
    """The checks of one server."""

    token: str
    #: Host names that mean this server besides the loopback ones; bound addresses of a remote server are among them.
    names: frozenset[str] = frozenset()
    #: Served beyond this machine: then any literal address is a name of it.
    remote: bool = False

    def check(self, headers: Headers, *, local_socket: bool, needs_token: bool) -> None:
        host = self._check_host(headers)
        _check_origin(headers, host)
        if needs_token and not local_socket:
            self._check_token(headers)

    def _check_host(self, headers: Headers) -> str:
        """A page whose name was re-pointed at this machine says its own name here: that is how rebinding is seen."""
        given = [value for name, value in headers if name == b"host"]
        if len(given) != 1:
            raise Invalid("exactly one Host header is needed")
        host = given[0].decode("latin-1").lower()
        name = _name_of(host)
        if name in ("localhost", "kedge") or name.endswith(".localhost") or name in self.names:
            return host
        address = _address(name)
        if address is not None and (address.is_loopback or self.remote):
            return host
        raise BadHost("this server does not answer to that Host; use localhost or the address it listens on")

    def _check_token(self, headers: Headers) -> None:
        given = [value for name, value in headers if name == b"authorization"]
        wanted = b"Bearer " + self.token.encode()
        if len(given) != 1 or not hmac.compare_digest(given[0], wanted):
            raise Unauthorized("a token is needed: send Authorization: Bearer with the content of the token file")


def _check_origin(headers: Headers, host: str) -> None:
    """Only pages of this very server may call it; programs send no Origin."""
    origins = [value.decode("latin-1").lower() for name, value in headers if name == b"origin"]
    if any(origin not in (f"http://{host}", f"https://{host}") for origin in origins):
        raise BadOrigin("requests from pages of another origin are refused")
    sites = [value for name, value in headers if name == b"sec-fetch-site"]
    if any(site not in (b"same-origin", b"none") for site in sites):
        raise BadOrigin("requests from pages of another site are refused")


#: A name or an address, and perhaps a port; nothing may stand behind them.
_HOST = re.compile(r"(?:\[([\da-f:.]+)\]|([^:\[\]]+))(?::\d{0,5})?")


def _name_of(host: str) -> str:
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]) if found is not None else ""


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
