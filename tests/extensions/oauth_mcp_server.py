"""A remote MCP server that requires OAuth, with its authorization server, in the loop of a test. Uses the SDK."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

#: In every secret, so that a search finds all of them.
CANARY = "oauth-canary-"


class Provider(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Accepts every user. A refresh token works once; its second use ends the login, as strict servers do it."""

    def __init__(self, origin: str, path: str) -> None:
        self.url = f"{origin}{path}"
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.used: set[str] = set()
        self.renewals = 0
        #: The token endpoint: whether it fails, and whether it answers.
        self.is_down = False
        self.is_open = asyncio.Event()
        self.is_open.set()
        self._count = 0
        #: The paths and Authorization headers of all requests.
        self.received: list[tuple[str, str]] = []

    def _secret(self, kind: str) -> str:
        self._count += 1
        return f"{CANARY}{kind}-{self._count}"

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = self._secret("code")
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue(client.client_id, authorization_code.resource)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        if refresh_token in self.used:
            self.end_logins()
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if self.refresh.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant")
        self.used.add(refresh_token.token)
        self.renewals += 1
        self.access.clear()
        return self._issue(client.client_id, self.url)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.end_logins()

    def _issue(self, client_id: str, resource: str | None) -> OAuthToken:
        access, refresh = self._secret("access"), self._secret("refresh")
        self.access[access] = AccessToken(token=access, client_id=client_id, scopes=[], resource=resource)
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=[])
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=3600)

    def end_logins(self) -> None:
        self.access.clear()
        self.refresh.clear()


@asynccontextmanager
async def oauth_server(path: str = "/mcp") -> AsyncIterator[Provider]:
    """Serve on a free port. `path` of the MCP server: /mcp, or /sse for the older transport."""
    sock = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    provider = Provider(url, path)
    server: MCPServer[Any] = MCPServer(
        "oauth",
        auth_server_provider=provider,
        auth=AuthSettings(
            issuer_url=url,  # type: ignore[arg-type]
            resource_server_url=provider.url,  # type: ignore[arg-type]
            validate_token_resource=True,
            client_registration_options=ClientRegistrationOptions(enabled=True),
        ),
    )

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    app = server.sse_app() if path == "/sse" else server.streamable_http_app()

    async def recorded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            provider.received.append((scope["path"], headers.get(b"authorization", b"").decode()))
            if scope["path"] == "/token":
                await provider.is_open.wait()
            if provider.is_down and scope["path"] == "/token":
                await send({"type": "http.response.start", "status": 503, "headers": []})
                await send({"type": "http.response.body"})
                return
        await app(scope, receive, send)

    config = uvicorn.Config(recorded, log_level="critical", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    serving = asyncio.create_task(running.serve([sock]))
    try:
        yield provider
    finally:
        running.should_exit = True
        await serving
