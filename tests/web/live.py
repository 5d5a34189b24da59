"""A page in Chromium with a real server and a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Page

from kedge.testing.hosted import HostedEndpoint
from tests.conformance.harness import Peer, Server
from tests.server.web_tab import ticket
from tests.web.conftest import Console


class Live:
    """A server with a workspace, and pages of browsers that have access to it."""

    def __init__(self, server: Server, endpoint: HostedEndpoint, peer: Peer, browser: Browser) -> None:
        self.server, self.endpoint, self.peer, self.browser = server, endpoint, peer, browser

    def address(self, session_id: str) -> str:
        return f"{self.server.url}/w/{self.peer.at.rpartition('/')[2]}/s/{session_id}"

    @asynccontextmanager
    async def page(self, session_id: str = "", **fields: str) -> AsyncIterator[Page]:
        """Open a page in a browser of its own. `fields` are those of its ticket. No error may be in its console."""
        async with await self.browser.new_context() as context:
            page = await context.new_page()
            console = Console(page)
            await page.goto(f"{self.server.url}/#ticket={await ticket(self.peer.http, **fields)}")
            await page.locator(".shell").wait_for()
            if session_id:
                await page.goto(self.address(session_id))
                await page.locator(".session").wait_for()
            yield page
            # A server that a test has stopped leaves such errors.
            errors = [error for error in console.errors if "Failed to load resource" not in error]
            assert errors == []

    async def run(self, session_id: str, prompt: str) -> None:
        """Submit a prompt and wait for its end."""
        await self.peer.wait((await self.peer.submit(session_id, prompt))["run_id"])


@asynccontextmanager
async def serving(home: Path, endpoint: HostedEndpoint, browser: Browser) -> AsyncIterator[Live]:
    server = Server(home / "server", endpoint.url).start()
    server.checks_stalls = False  # Chromium shares the machine with it
    directory = home / "project"
    directory.mkdir()
    try:
        async with server.peer(directory) as peer:
            yield Live(server, endpoint, peer, browser)
    finally:
        server.stop()
