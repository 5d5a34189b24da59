"""Logins to MCP servers, as data."""

from __future__ import annotations

import pytest

from kedge.core.mcp_login import McpLogin, has_own_credentials

LOGIN = McpLogin(
    "https://mcp.example/x", "secret-a", "https://login.example/token", "client", "secret-b", expires_at=100
)


def test_tokens_are_not_shown() -> None:
    assert repr(LOGIN) == "McpLogin('https://mcp.example/x')"


@pytest.mark.parametrize(("expires_at", "now", "is_expired"), [(100, 99, False), (100, 100, True), (0, 100, False)])
def test_end_of_a_token(expires_at: float, now: float, is_expired: bool) -> None:
    login = McpLogin("https://mcp.example/x", "a", "https://login.example/token", "client", expires_at=expires_at)
    assert login.is_expired(now) == is_expired


@pytest.mark.parametrize(
    ("url", "headers", "has_own"),
    [
        ("https://mcp.example/x", [], False),
        ("https://mcp.example/@x", ["Accept"], False),
        ("https://mcp.example/x", ["Accept", "AUTHORIZATION"], True),
        ("https://user:word@mcp.example/x", [], True),
    ],
)
def test_own_credentials(url: str, headers: list[str], has_own: bool) -> None:
    assert has_own_credentials(url, headers) == has_own
