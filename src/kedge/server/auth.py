"""Authentication of requests: Host, Origin, and token or browser, checked before anything else."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

from msgspec import Struct

from kedge import paths
from kedge.core.users import Role, UserRecord
from kedge.errors import BadConfig, BadHost, BadOrigin, Forbidden, Invalid, Unauthorized
from kedge.server.browsers import Browser, Browsers
from kedge.server.known_users import KnownUsers
from kedge.wire.openapi import Access, RouteSpec

Headers = list[tuple[bytes, bytes]]

#: The header of a browser's key.
KEY_HEADER = b"x-kedge-key"
#: Cookies of one name that are tried. Items.
COOKIES_MAX = 5
NO_TOKEN = (
    "Missing or wrong token; send Authorization: Bearer with the content of the token file, or with a user's token."
)
ONE_SESSION = "This browser has access to one session only."


class Asker(Struct, frozen=True):
    """The sender of a request: a browser, a user, or the owner, who has the local socket or the server's token."""

    browser: Browser | None = None
    #: The name of the user whose token came with the request; empty: the owner or a browser.
    user: str = ""
    #: The node of the cluster that has checked the request and forwards it; empty: the request comes from a client.
    node: str = ""


OWNER = Asker()


#: The access to routes that each role permits; see RouteSpec.access.
_PERMITTED: dict[Role, tuple[Access, ...]] = {
    "owner": ("read", "act", "owner"),
    "collaborator": ("read", "act"),
    "spectator": ("read",),
}
#: Returns the node that signed a request, and the name of its user, from its Authorization, method and target.
VerifyNode = Callable[[str, str, str], tuple[str, str]]
#: The scheme of such an Authorization.
NODE_SCHEME = b"Kedge-Node "


class Gate:
    """The checks of one server. They alone decide who may use a route (`RouteSpec.access`, `RouteSpec.session`)."""

    def __init__(
        self,
        token: str,
        names: Iterable[str] = (),
        *,
        remote: bool = False,
        browsers: Browsers | None = None,
        users: KnownUsers | None = None,
    ) -> None:
        """`remote`: other machines can reach this server, so any literal address is accepted as Host. `users` is None
        for a simulated server, which has only its owner."""
        #: None: the server is not a node of a cluster.
        self.verify_node: VerifyNode | None = None
        self._token = token
        #: Further host names of this server, besides the loopback ones.
        self.names = set(names)
        self._remote = remote
        self.browsers = browsers or Browsers()
        self.users = users

    async def check(
        self, headers: Headers, *, local_socket: bool, spec: RouteSpec | None, method: str = "", target: str = ""
    ) -> Asker:
        """Return the sender of the request. `spec` is None for a path that is not in the API."""
        host = self.check_source(headers)
        signatures = [value for name, value in headers if name == b"authorization" and value.startswith(NODE_SCHEME)]
        if len(signatures) == 1 and self.verify_node is not None:
            node, user = self.verify_node(signatures[0].decode("latin-1"), method, target)
            return Asker(user=user, node=node)  # that node has checked the rights
        if local_socket or (spec is not None and not spec.needs_token):
            return OWNER
        if any(name == b"authorization" for name, _ in headers):
            return await self._token_holder(headers, spec)
        if not any(name in (b"cookie", KEY_HEADER) for name, _ in headers):
            raise Unauthorized(NO_TOKEN)
        browser = self.browser(headers, host)
        if browser is None:
            raise Unauthorized("This browser has no access, or no longer. Get a new link with: kedge web")
        if spec is not None:
            _check_rights(spec, browser)
        return Asker(browser)

    def while_allowed(self, asker: Asker, end: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `end` if the sender's access ends within this block."""
        if asker.browser is not None:
            return self.browsers.in_use(asker.browser, end)
        if asker.user and self.users is not None:
            return self.users.in_use(asker.user, end)
        return nullcontext()

    def check_source(self, headers: Headers) -> str:
        """Refuse foreign hosts and pages of other origins, and return the host."""
        host = self._check_host(headers)
        _check_origin(headers, host)
        return host

    def check_page_source(self, headers: Headers) -> None:
        """Check the source of a request for a file of the page. A link on another site may lead to the page: its files
        contain no secret, and no site can read them or show them in a frame."""
        if _is_navigation(headers):
            headers = [(name, value) for name, value in headers if name != b"sec-fetch-site"]
        self.check_source(headers)

    def browser(self, headers: Headers, host: str) -> Browser | None:
        """Return the browser that has sent both its cookie and its key."""
        keys = [value.decode("latin-1") for name, value in headers if name == KEY_HEADER]
        if len(keys) != 1:
            return None
        cookies = _cookies(headers, cookie_name(host))
        return next((browser for cookie in cookies if (browser := self.browsers.find(cookie, keys[0]))), None)

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
        if address is not None and (address.is_loopback or self._remote):
            return host
        raise BadHost("Unknown Host; use localhost or the address that the server listens on.")

    async def _token_holder(self, headers: Headers, spec: RouteSpec | None) -> Asker:
        """Return the owner or the user whose token was sent."""
        values = [value for name, value in headers if name == b"authorization"]
        if len(values) == 1 and hmac.compare_digest(values[0], b"Bearer " + self._token.encode()):
            return OWNER
        user = None
        if len(values) == 1 and values[0].startswith(b"Bearer ") and self.users is not None:
            user = await self.users.find(values[0].removeprefix(b"Bearer ").decode("latin-1"))
        if user is None:
            raise Unauthorized(NO_TOKEN)
        if spec is not None:
            _check_rights(spec, user)
        return Asker(user=user.name)


def _check_rights(spec: RouteSpec, sender: Browser | UserRecord) -> None:
    """Raise Forbidden unless the browser or user may use the route. Rights are checked only here."""
    if isinstance(sender, UserRecord):
        if spec.access not in _PERMITTED[sender.role]:
            limit = "may only read" if sender.role == "spectator" else "may not do this"
            raise Forbidden(f"User {sender.name} has the role {sender.role} and {limit}. Ask the owner of the server.")
        return
    if spec.access == "owner":
        raise Forbidden("No browser may do this. Use the command kedge on the machine of the server.")
    if spec.access == "act" and sender.rights == "read_only":
        raise Forbidden("This browser may only watch. Get a link with more rights with: kedge web")
    if spec.session is None and sender.session_id:
        raise Forbidden(ONE_SESSION)


def cookie_name(host: str) -> str:
    """Return the name of the cookie. Servers on several ports of one host share its cookies."""
    match = _HOST.fullmatch(host)
    return f"kedge_web_{match[3]}" if match is not None and match[3] else "kedge_web"


def _cookies(headers: Headers, name: str) -> list[str]:
    """Return the cookies of this name. A page on another port or path may have added some."""
    lines = b";".join(value for header, value in headers if header == b"cookie").decode("latin-1").split(";")
    pairs = (line.strip().partition("=") for line in lines)
    return [value for key, _, value in pairs if key == name][:COOKIES_MAX]


def _check_origin(headers: Headers, host: str) -> None:
    """Refuse web pages of other origins. Programs send no Origin."""
    origins = [value.decode("latin-1").lower() for name, value in headers if name == b"origin"]
    if any(origin not in (f"http://{host}", f"https://{host}") for origin in origins):
        raise BadOrigin("Requests from pages of another origin are refused.")
    sites = [value for name, value in headers if name == b"sec-fetch-site"]
    if any(site not in (b"same-origin", b"none") for site in sites):
        raise BadOrigin("Requests from pages of another site are refused.")


def _is_navigation(headers: Headers) -> bool:
    """Return whether the browser opens a page in a tab, not in a frame and not for a script."""
    purpose = [(name, value) for name, value in headers if name in (b"sec-fetch-mode", b"sec-fetch-dest")]
    return sorted(purpose) == [(b"sec-fetch-dest", b"document"), (b"sec-fetch-mode", b"navigate")]


#: A name or an address, optionally with a port.
_HOST = re.compile(r"(?:\[([\da-f:.]+)\]|([^:\[\]]+))(?::(\d{0,5}))?")


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
