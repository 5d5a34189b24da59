"""Bodies of the access of browsers: tickets, logins, browsers, and the addresses that they use."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

#: What a browser may do: everything that its user may, or read.
Rights = Literal["full", "read_only"]

#: A ticket or a key, in base64: 256 bits and some space. Characters.
SECRET_CHARS_MAX = 100
#: A name or a path of the user. Characters.
_TEXT_CHARS_MAX = 1000
_Text = Annotated[str, Meta(max_length=_TEXT_CHARS_MAX)]


class CreateTicket(Struct, kw_only=True, forbid_unknown_fields=True):
    """Unknown fields are refused: a mistyped one would grant more than was meant."""

    rights: Rights = "full"
    #: Both, or none: with them, the browser reaches this session and nothing else.
    workspace_id: _Text = ""
    session_id: _Text = ""


class TicketBody(Struct, kw_only=True):
    """A single-use ticket: the link is the address of the page with `#ticket=` and this."""

    ticket: str
    expires_at: int


class WebLogin(Struct, kw_only=True):
    ticket: Annotated[str, Meta(max_length=SECRET_CHARS_MAX)]


class BrowserBody(Struct, kw_only=True):
    """A browser that has access."""

    id: str
    #: From the name that it sends, such as "Firefox on Linux".
    label: str
    rights: Rights
    #: Empty: it reaches the whole server.
    workspace_id: str
    session_id: str
    created_at: int
    expires_at: int
    last_used_at: int


class WebLoginReply(Struct, kw_only=True):
    #: Half of the secret: the page sends it as X-Kedge-Key. The other half is in the cookie.
    key: str
    browser: BrowserBody


class WebAccessBody(Struct, kw_only=True):
    """The access of the sender of a request."""

    #: Null: the sender is not a browser.
    browser: BrowserBody | None = None


class OpenWorkspaceAgain(Struct, kw_only=True):
    client_id: str


class ListenForWeb(Struct, kw_only=True, forbid_unknown_fields=True):
    """Listen on a further address. Without `address`: on a port of this machine that only it can reach.

    Unknown fields are refused: a mistyped one would open more than was meant."""

    #: An IP address of this machine. Empty: 127.0.0.1.
    address: _Text = ""
    #: 0: the last one, or any.
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    #: Other machines may reach the address.
    allow_remote: bool = False
    #: Names under which browsers reach this server, which are accepted as Host from now on.
    names: Annotated[list[Annotated[str, Meta(max_length=253)]], Meta(max_length=10)] = []
    #: Paths of a certificate with its chain, and of its key. Empty: plain HTTP.
    certificate: _Text = ""
    certificate_key: _Text = ""


class WebAddress(Struct, kw_only=True):
    #: Such as http://127.0.0.1:8787
    url: str
    is_remote: bool
