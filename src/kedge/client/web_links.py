"""Links to the web page, with the address that the user chose."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from msgspec import Struct

from kedge.errors import Invalid
from kedge.wire.web_models import ListenForWeb

PLAIN_HTTP = """\
Plain HTTP: everyone who can read the traffic of this network sees your sessions and can take over the access of the
phone, and with it run commands on this machine. Use it only in a network that you trust, or that is encrypted itself
(Tailscale, WireGuard). With a certificate the connection is encrypted: kedge web --certificate FILE --key FILE"""

#: An address of the documentation range: connecting a datagram socket to it sends nothing, and selects the address of
#: this machine that other machines see.
_ELSEWHERE = ("192.0.2.1", 9)


class WebTarget(Struct, frozen=True):
    """The address that the user chose for a browser."""

    #: What the server must listen on.
    request: ListenForWeb
    #: The start of the link; empty: the address that the server reports.
    url: str = ""
    #: The name in the link, if it is not the address that the server listens on.
    name: str = ""

    @property
    def is_plain_remote(self) -> bool:
        """True if other machines would send plain HTTP to this one."""
        request = self.request
        is_remote = bool(request.address) and not ipaddress.ip_address(request.address).is_loopback
        return is_remote and request.allow_remote and not request.certificate

    def link(self, server_url: str, ticket: str) -> str:
        url = self.url or server_url
        if self.name:
            parts = urlsplit(server_url)
            url = f"{parts.scheme}://{self.name}:{parts.port}"
        return f"{url}/#ticket={ticket}"


def choose_target(
    address: str | None, port: int, *, allow_remote: bool, certificate: str = "", certificate_key: str = ""
) -> WebTarget:
    """Return the target for an address of the command line: none, an IP address, a name, or the URL of a tunnel."""
    if address is None:
        return WebTarget(ListenForWeb(port=port, certificate=certificate, certificate_key=certificate_key))
    if "://" in address:
        return _tunnel(address, port)
    ip = _ip(address) or _resolved(address)
    if ip.is_unspecified:
        raise Invalid(f"{address} means all addresses. Choose one, such as --address {own_address() or '192.168.1.2'}")
    request = ListenForWeb(
        address=str(ip),
        port=port,
        allow_remote=allow_remote,
        names=[] if _ip(address) else [address],
        certificate=certificate,
        certificate_key=certificate_key,
    )
    return WebTarget(request, name="" if _ip(address) else address)


def _tunnel(url: str, port: int) -> WebTarget:
    """Return the target for a proxy or a tunnel, which leads to the port of this machine."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise Invalid(f"{url!r} is not a valid address of a tunnel. Use https://NAME or https://NAME:PORT.")
    return WebTarget(ListenForWeb(port=port, names=[parts.hostname]), url=f"{parts.scheme}://{parts.netloc}")


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _resolved(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        results = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Invalid(f"The name {name!r} has no address. Use a name or an IP address of this machine.") from None
    return ipaddress.ip_address(results[0][4][0])


def own_address() -> str:
    """Return the address of this machine that other machines see; empty if no network is up."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_ELSEWHERE)
            return str(probe.getsockname()[0])
    except OSError:
        return ""
