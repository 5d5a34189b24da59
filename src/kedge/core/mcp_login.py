"""A login to a remote MCP server by OAuth. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from msgspec import Struct


class McpLogin(Struct, frozen=True):
    """The tokens of a login, and all that is needed to renew them."""

    #: The exact URL of the server. The tokens are sent to no other.
    url: str
    access_token: str
    #: The address of the authorization server that renews the tokens.
    token_url: str
    client_id: str
    client_secret: str = ""
    #: The way in which the client proves who it is: client_secret_basic, client_secret_post or none.
    client_auth: str = ""
    #: Empty: the login ends with its access token.
    refresh_token: str = ""
    #: The end of the access token. Unix time in seconds; 0: not known.
    expires_at: float = 0
    #: The resource that the tokens are for (RFC 8707). Empty: not sent.
    resource: str = ""

    def is_expired(self, now: float) -> bool:
        return 0 < self.expires_at <= now

    def __repr__(self) -> str:
        return f"McpLogin({self.url!r})"  # the tokens must not reach a log


def has_own_credentials(url: str, headers: Iterable[str]) -> bool:
    """Return True if the configuration of a server has credentials: a header, or a user in its URL. Then no login is
    used."""
    return any(name.lower() == "authorization" for name in headers) or "@" in urlsplit(url).netloc
