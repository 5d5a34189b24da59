"""The login of a connection: its token in each request, and its renewal."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from urllib.parse import quote

import httpx2
from mcp.shared.auth import OAuthToken
from msgspec.structs import replace
from pydantic import ValidationError

from kedge.bridge.bridge_peer import CallFailed
from kedge.bridge.mcp_http import HTTP_UNAUTHORIZED, BoundedTransport
from kedge.core.mcp_login import McpLogin

#: Time for a renewal. Seconds.
RENEW_S = 30.0
#: Tokens that one request tries: its own, the stored one of another workspace, and a renewed one. Items.
TOKENS_MAX = 3
#: Replies that do not mean that the login has ended: request timeout, too many requests.
_TEMPORARY = (408, 429)


class LoginAuth(httpx2.Auth):
    """Sends the token of a login. `current` returns the stored login, renewed if the given token is still its own; the
    server stores it, since several workspaces may use one login.

    The SDK's own class cannot be used here: it keeps neither the expiry nor the token endpoint across processes, and
    asks the user where a connection must fail. `on_refused` is called when the server accepts no token."""

    def __init__(
        self,
        login: McpLogin | None,
        transport: BoundedTransport,
        current: Callable[[str], Awaitable[McpLogin | None]],
        on_refused: Callable[[], None],
    ) -> None:
        self._login = login
        self._transport = transport
        self._current = current
        self._on_refused = on_refused

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        for _ in range(TOKENS_MAX):
            token = self._put_token(request)
            response = yield request
            if response.status_code != HTTP_UNAUTHORIZED:
                return
            try:
                self._login = await self._current(token)
            except CallFailed as error:
                # The login may still be good. Raised here, the error would end the connection.
                self._transport.problem = str(error)
                break
            if self._login is None or self._login.access_token == token:
                break
        self._on_refused()

    def _put_token(self, request: httpx2.Request) -> str:
        if self._login is None:
            request.headers.pop("Authorization", None)
            return ""
        request.headers["Authorization"] = f"Bearer {self._login.access_token}"
        return self._login.access_token


async def renewed(login: McpLogin) -> McpLogin | None:
    """Return the login with new tokens; None: the authorization server refuses it. CallFailed if it does not answer.

    No text of the reply is used in an error: it can contain tokens."""
    data = {"grant_type": "refresh_token", "refresh_token": login.refresh_token, "client_id": login.client_id}
    headers = {"Accept": "application/json"}
    if login.resource:
        data["resource"] = login.resource
    if login.client_auth == "client_secret_post":
        data["client_secret"] = login.client_secret
    elif login.client_auth == "client_secret_basic":
        pair = f"{quote(login.client_id, safe='')}:{quote(login.client_secret, safe='')}"  # RFC 6749, section 2.3.1
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    try:
        async with (
            asyncio.timeout(RENEW_S),
            httpx2.AsyncClient(transport=BoundedTransport(), timeout=RENEW_S) as http,
        ):
            response = await http.post(login.token_url, data=data, headers=headers)
    except TimeoutError:
        raise CallFailed(f"its token could not be renewed within {RENEW_S:g} s") from None
    except httpx2.HTTPError as error:
        raise CallFailed(f"its token could not be renewed: {type(error).__name__}") from None
    status = response.status_code
    if 400 <= status < 500 and status not in _TEMPORARY:
        return None
    if status != 200:
        raise CallFailed(f"its token could not be renewed: HTTP status {status}")
    try:
        token = OAuthToken.model_validate_json(response.content)
    except ValidationError:
        raise CallFailed("its token could not be renewed: the answer is not valid") from None
    return replace(
        login,
        access_token=token.access_token,
        refresh_token=token.refresh_token or login.refresh_token,
        expires_at=time.time() + token.expires_in if token.expires_in else 0,
    )
