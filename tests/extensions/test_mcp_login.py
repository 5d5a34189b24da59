"""Logins to remote MCP servers: the flow of `kedge mcp login`, and the tokens in a real bridge."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import pytest_asyncio

from kedge.bridge.mcp_authorization import authorize
from kedge.config.mcp_logins import McpLogins
from kedge.errors import Invalid
from kedge.tools.base import ToolFailed
from tests.extensions.mcp_rig import Rig
from tests.extensions.oauth_mcp_server import CANARY, Provider, oauth_server
from tests.polling import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def provider() -> AsyncIterator[Provider]:
    async with oauth_server() as provider:
        yield provider


async def log_in(provider: Provider, rig: Rig, name: str = "r") -> None:
    """Log in as a user whose browser follows the address."""
    browsers: list[asyncio.Task[str]] = []

    async def browse(address: str) -> str:
        async with httpx2.AsyncClient(follow_redirects=True) as browser:
            return (await browser.get(address)).text

    def show(address: str, port: int) -> None:
        browsers.append(asyncio.create_task(browse(address)))

    login = await authorize(provider.url, {}, is_sse=provider.url.endswith("sse"), show=show)
    assert "kedge has received the answer" in await browsers[0]
    McpLogins(rig.data).write(name, login)


async def test_login_is_used_renewed_and_needed_again(rig: Rig, provider: Provider, tmp_path: Path) -> None:
    await rig.configure(r={"url": provider.url})
    state = await rig.part.start("r")
    assert (state.condition, state.error) == ("needs_login", "needs a login; run: kedge mcp login r")
    for _ in range(4):  # more often than a broken server is started
        with pytest.raises(ToolFailed, match="The MCP server r failed: needs a login; run: kedge mcp login r"):
            await rig.load("r")

    await log_in(provider, rig)
    assert "mcp__r__add" in await rig.load("r")
    provider.access.clear()  # as after its expiry
    assert (await rig.call("mcp__r__add", a=1, b=2)).content == "3"
    assert rig.part.states()[0].condition == "ready"
    assert provider.renewals == 1

    provider.access.clear()
    (tmp_path / "other").mkdir()
    other = Rig(tmp_path / "other", rig.data)
    await other.configure(r={"url": provider.url})
    assert (await other.part.start("r")).condition == "ready"
    before = provider.renewals
    provider.access.clear()
    outputs = await asyncio.gather(*(one.call("mcp__r__add", a=2, b=2) for one in (rig, other, rig, other)))
    assert [output.content for output in outputs] == ["4"] * 4
    assert provider.renewals == before + 1
    await other.part.close()

    provider.access.clear()
    provider.is_open.clear()
    call = asyncio.create_task(rig.call("mcp__r__add", a=1, b=2))
    before = len(provider.received)
    await until(lambda: "/token" in [path for path, _ in provider.received[before:]])
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    provider.is_open.set()  # its renewal is completed and stored
    assert (await rig.call("mcp__r__add", a=1, b=2)).content == "3"

    provider.access.clear()
    provider.is_down = True
    with pytest.raises(ToolFailed, match="its token could not be renewed: HTTP status 503"):
        await rig.call("mcp__r__add", a=1, b=2)
    provider.is_down = False
    assert (await rig.call("mcp__r__add", a=1, b=2)).content == "3"

    provider.end_logins()
    with pytest.raises(ToolFailed, match="run: kedge mcp login r"):
        await rig.call("mcp__r__add", a=1, b=2)
    assert rig.part.states()[0].condition == "needs_login"
    await log_in(provider, rig)
    assert (await rig.call("mcp__r__add", a=1, b=2)).content == "3"
    assert rig.part.states()[0].condition == "ready"
    assert CANARY not in repr((rig.states, rig.host, McpLogins(rig.data).read("r", provider.url)))


async def test_login_with_the_older_transport(rig: Rig) -> None:
    async with oauth_server("/sse") as provider:
        await rig.configure(r={"url": provider.url, "type": "sse"})
        await log_in(provider, rig)
        assert "mcp__r__add" in await rig.load("r")
        provider.access.clear()
        assert (await rig.call("mcp__r__add", a=1, b=2)).content == "3"
        provider.end_logins()
        with pytest.raises(ToolFailed, match="run: kedge mcp login r"):
            await rig.call("mcp__r__add", a=1, b=2)
        assert rig.part.states()[0].condition == "needs_login"


async def test_token_is_sent_only_to_its_url(rig: Rig, provider: Provider) -> None:
    await log_in(provider, rig)
    file = McpLogins(rig.data).file("r", provider.url)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    async with oauth_server() as other:
        servers: dict[str, dict[str, Any]] = {
            "r": {"url": other.url},
            "same": {"url": provider.url},
            "own": {"url": provider.url, "headers": {"authorization": "Bearer mine"}},
        }
        for name, server in servers.items():
            await rig.configure(**{name: server})
            assert (await rig.part.start(name)).condition == "needs_login"
        assert rig.part.states()[0].error == "it refuses the credentials of its configuration"
        assert {header for _, header in other.received} == {""}
    sent = {header for path, header in provider.received[-10:] if path == "/mcp"}
    assert "Bearer mine" in sent
    # A file that was moved in place of another is not used.
    os.replace(file, McpLogins(rig.data).file("r", f"{provider.url}2"))
    assert McpLogins(rig.data).read("r", f"{provider.url}2") is None


async def test_only_the_answer_with_the_state_is_accepted(provider: Provider) -> None:
    replies: list[tuple[int, str]] = []

    async def browse(address: str, port: int) -> None:
        query = parse_qs(urlsplit(address).query)
        assert (query["code_challenge_method"], query["resource"]) == (["S256"], [provider.url])
        async with httpx2.AsyncClient() as browser:
            for target in ("?code=x", "?code=x&state=guess", "?code=x&state=", f"x?code=x&state={query['state'][0]}"):
                response = await browser.get(f"http://127.0.0.1:{port}/callback{target}")
                replies.append((response.status_code, response.text))
            denied = f"/callback?error=access_denied&error_description=%1b[2Jno&state={query['state'][0]}"
            await browser.get(f"http://127.0.0.1:{port}{denied}")

    browsers: list[asyncio.Task[None]] = []

    def show(address: str, port: int) -> None:
        browsers.append(asyncio.create_task(browse(address, port)))

    with pytest.raises(Invalid, match="refused the login: access_denied") as caught:
        await authorize(provider.url, {}, is_sse=False, show=show)
    await browsers[0]
    assert "\x1b" not in caught.value.message
    assert replies == [(400, "This is not the answer to a login of kedge.")] * 4
    assert [path for path, _ in provider.received if path == "/token"] == []


async def test_addresses_without_encryption_are_refused() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if "oauth-protected-resource" in head:
            body = f'{{"resource": "{url}", "authorization_servers": ["http://192.0.2.1/as"]}}'
            reply = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        else:
            reply = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
        writer.write(reply.encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        for address, refused in ((url, "http://192.0.2.1"), ("http://192.0.2.2/mcp", "http://192.0.2.2")):
            with pytest.raises(Invalid, match=f"A login needs https, and {refused} has none"):
                await authorize(address, {}, is_sse=False, show=lambda address, port: None)
