"""Authentication of requests: Host, Origin and token, checked before anything else."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets

from msgspec import Struct

from kedge import paths
from kedge.errors import BadConfig, BadHost, BadOrigin, Invalid, Unauthorized

Headers = list[tuple[bytes, bytes]]


class Gate(Struct, frozen=True):
    """The checks of one server."""

    token: str
    #: Further host names of this server, besides the loopback ones.
    names: frozenset[str] = frozenset()
    #: Other machines can reach this server: then any literal address is accepted as Host.
    remote: bool = False

    def check(self, headers: Headers, *, local_socket: bool, needs_token: bool) -> None:
        host = self._check_host(headers)
        _check_origin(headers, host)
        if needs_token and not local_socket:
            self._check_token(headers)

    def _check_host(self, headers: Headers) -> str:
        """Refuse foreign names: in a DNS rebinding attack, the browser sends the name of the attacker's page."""
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1:
            raise Invalid(f"The request has {len(hosts)} Host headers; send exactly one.")
        host = hosts[0].decode("latin-1").lower()
        name = _name_of(host)
        if name in ("localhost", "kedge") or name.endswith(".localhost") or name in self.names:
            return host
        address = _address(name)
        if address is not None and (address.is_loopback or self.remote):
            return host
        raise BadHost("Unknown Host; use localhost or the address that the server listens on.")

    def _check_token(self, headers: Headers) -> None:
        values = [value for name, value in headers if name == b"authorization"]
        expected = b"Bearer " + self.token.encode()
        if len(values) != 1 or not hmac.compare_digest(values[0], expected):
            raise Unauthorized("Missing or wrong token; send Authorization: Bearer with the content of the token file.")


def _check_origin(headers: Headers, host: str) -> None:
    """Refuse web pages of other origins. Programs send no Origin."""
    origins = [value.decode("latin-1").lower() for name, value in headers if name == b"origin"]
    if any(origin not in (f"http://{host}", f"https://{host}") for origin in origins):
        raise BadOrigin("Requests from pages of another origin are refused.")
    sites = [value for name, value in headers if name == b"sec-fetch-site"]
    if any(site not in (b"same-origin", b"none") for site in sites):
        raise BadOrigin("Requests from pages of another site are refused.")


#: A name or an address, optionally with a port.
_HOST = re.compile(r"(?:\[([\da-f:.]+)\]|([^:\[\]]+))(?::\d{0,5})?")


def _name_of(host: str) -> str:
    match = _HOST.fullmatch(host)
    return (match[1] or match[2]) if match is not None else ""


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def make_token() -> str:
    """Return the token of KEDGE_TOKEN, or a new one."""
    token = os.environ.get("KEDGE_TOKEN") or secrets.token_urlsafe(32)
    if not token.isascii() or not token.isprintable() or len(token) < 16:
        raise BadConfig("KEDGE_TOKEN must have at least 16 printable ASCII characters.")
    return token


def write_token(token: str) -> None:
    path = paths.token_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A new file, then renamed: never readable by others, never incomplete.
    new = path.with_name(f".token-{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w") as file:
        file.write(token + "\n")
    os.replace(new, path)
