"""A login to a remote MCP server: OAuth's authorization code flow with PKCE, by the SDK. Runs in `kedge mcp login`."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2
from mcp.client.auth import (
    AuthorizationCodeResult,
    OAuthClientProvider,
    OAuthFlowError,
    OAuthRegistrationError,
    OAuthTokenError,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from kedge.bridge.mcp_http import BoundedTransport
from kedge.core.mcp_login import McpLogin
from kedge.core.untrusted_text import one_line
from kedge.errors import Invalid

#: Time for the whole login: the user signs in at a website. Seconds.
LOGIN_S = 300.0
#: Time for one request of a browser to the listener. Seconds.
REQUEST_S = 5.0
#: Open connections to the listener: a browser opens some ahead of time. Items.
CONNECTIONS_MAX = 20
#: Time for a reply of the server or its authorization server. Seconds.
REPLY_S = 30.0
#: The address that the user opens: browsers take more, servers often not. Characters.
URL_CHARS_MAX = 8000
#: Limit of a reason in a message. Characters.
REASON_CHARS_MAX = 300
CALLBACK = "/callback"
#: The revision of the protocol in which logins are as they are now: the tokens are bound to the server (RFC 8707).
PROTOCOL = "2025-06-18"
_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": PROTOCOL,
        "capabilities": {},
        "clientInfo": {"name": "kedge", "version": "0.1"},
    },
}


async def authorize(url: str, headers: dict[str, str], *, is_sse: bool, show: Callable[[str, int], None]) -> McpLogin:
    """Log in to the server with this URL. Raises Invalid if that fails.

    `show` presents an address that the user must open; the port is that of the listener for the answer."""
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs each failure with a traceback
    try:
        async with asyncio.timeout(LOGIN_S):
            return await _authorize(url, headers, is_sse, show)
    except TimeoutError:
        raise Invalid(f"There was no answer within {LOGIN_S / 60:g} minutes. Run the command again.") from None
    except OAuthRegistrationError:
        raise Invalid(
            "Its authorization server does not let kedge register itself. Set a token in the headers of the server."
        ) from None
    except OAuthTokenError:  # its text is a reply of the authorization server, which may contain anything
        raise Invalid("Its authorization server did not issue a token.") from None
    except OAuthFlowError as error:
        raise Invalid(f"The login failed: {one_line(str(error), REASON_CHARS_MAX)}") from None
    except ValueError:  # also of pydantic; its text quotes the answer
        raise Invalid("The login failed: its authorization server sent an answer that is not valid.") from None
    except httpx2.HTTPError as error:
        reason = one_line(str(error) or type(error).__name__, REASON_CHARS_MAX)
        raise Invalid(f"The login failed: {reason}") from None


async def _authorize(url: str, headers: dict[str, str], is_sse: bool, show: Callable[[str, int], None]) -> McpLogin:
    transport = _SecureTransport(is_local=_is_loopback(urlsplit(url).hostname or ""))
    answer = _Answer()
    async with await asyncio.start_server(answer.receive, "127.0.0.1", 0) as listener:
        port: int = listener.sockets[0].getsockname()[1]

        async def present(address: str) -> None:
            transport.check(address)
            if len(address) > URL_CHARS_MAX or not address.isascii() or not address.isprintable() or " " in address:
                raise Invalid("The login failed: the address of the authorization server is not valid.")
            answer.state = parse_qs(urlsplit(address).query).get("state", [""])[-1]
            show(address, port)

        metadata = OAuthClientMetadata(
            client_name="kedge", redirect_uris=[AnyUrl(f"http://127.0.0.1:{port}{CALLBACK}")]
        )
        provider = OAuthClientProvider(url, metadata, _NoStorage(), present, answer.wait)
        method, content = ("GET", None) if is_sse else ("POST", _INITIALIZE)
        headers = {**headers, "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": PROTOCOL}
        timeout = httpx2.Timeout(REPLY_S)
        async with (
            httpx2.AsyncClient(transport=transport, auth=provider, timeout=timeout) as http,
            http.stream(method, url, headers=headers, json=content) as response,
        ):
            status = response.status_code
    if provider.context.current_tokens is None:
        if status in (301, 302, 303, 307, 308):
            raise Invalid("The server redirects to another address. Set that address as its url.")
        reason = "needs no login" if status < 400 else f"asks for no login; it answered with HTTP status {status}"
        raise Invalid(f"The server {reason}.")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise Invalid(f"The server refused the new token (HTTP status {status}).")
    return _login(url, provider)


def _login(url: str, provider: OAuthClientProvider) -> McpLogin:
    context = provider.context
    tokens, client, metadata = context.current_tokens, context.client_info, context.oauth_metadata
    assert tokens is not None
    assert client is not None
    own = urljoin(url, "/token")  # what the SDK uses for a server without metadata
    return McpLogin(
        url=url,
        access_token=tokens.access_token,
        token_url=str(metadata.token_endpoint) if metadata is not None else own,
        client_id=client.client_id,
        client_secret=client.client_secret or "",
        client_auth=client.token_endpoint_auth_method or "",
        refresh_token=tokens.refresh_token or "",
        expires_at=context.token_expiry_time or 0,
        resource=context.get_resource_url(),
    )


class _NoStorage:
    """A login begins without tokens and registers a new client: the port of the listener is part of its registration.
    What the SDK stores is in its context as well."""

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        pass

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        pass


class _SecureTransport(BoundedTransport):
    """Refuses addresses without encryption, which the server chooses. Loopback ones are for loopback servers only: a
    remote server must not reach services of this machine."""

    def __init__(self, *, is_local: bool) -> None:
        super().__init__()
        self._is_local = is_local

    def check(self, address: str) -> None:
        parts = urlsplit(address)
        host = parts.hostname or ""
        if parts.scheme == "https" or (parts.scheme == "http" and self._is_local and _is_loopback(host)):
            return
        raise Invalid(f"A login needs https, and {one_line(f'{parts.scheme}://{host}', REASON_CHARS_MAX)} has none.")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.check(str(request.url))
        return await super().handle_async_request(request)


class _Answer:
    """The answer of the authorization server, which the user's browser brings to a loopback port."""

    def __init__(self) -> None:
        #: Part of the address that the user opens; only an answer with it is accepted. Empty: not known yet.
        self.state = ""
        self._result: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()
        self._connections = 0

    async def wait(self) -> AuthorizationCodeResult:
        return await self._result

    async def receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    async with asyncio.timeout(REQUEST_S):
                        head = await reader.readuntil(b"\r\n\r\n")
                        await self._reply(head.partition(b"\r\n")[0].decode("latin-1"), writer)
        finally:
            self._connections -= 1
            writer.close()

    async def _reply(self, line: str, writer: asyncio.StreamWriter) -> None:
        method, _, target = line.partition(" ")
        parts = urlsplit(target.partition(" ")[0])
        values = {name: texts[-1] for name, texts in parse_qs(parts.query).items()}
        state = values.get("state", "")
        is_ours = bool(self.state) and secrets.compare_digest(state.encode(), self.state.encode())
        if method != "GET" or parts.path != CALLBACK or not is_ours or self._result.done():
            await _send(writer, HTTPStatus.BAD_REQUEST, "This is not the answer to a login of kedge.")
            return
        if error := values.get("error"):
            await _send(writer, HTTPStatus.OK, "kedge was not authorized. You can close this page.")
            reason = one_line(f"{error} {values.get('error_description', '')}".strip(), REASON_CHARS_MAX)
            self._result.set_exception(Invalid(f"The authorization server refused the login: {reason}"))
            return
        await _send(writer, HTTPStatus.OK, "kedge has received the answer. You can close this page.")
        self._result.set_result(
            AuthorizationCodeResult(code=values.get("code", ""), state=state, iss=values.get("iss"))
        )


async def _send(writer: asyncio.StreamWriter, status: HTTPStatus, text: str) -> None:
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(text)}",
        "Cache-Control: no-store",
        "Referrer-Policy: no-referrer",
        "Connection: close",
    ]
    writer.write("\r\n".join([*head, "", text]).encode())
    await writer.drain()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
