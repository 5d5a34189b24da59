"""A session on the page of a real server, with the scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from playwright.async_api import Browser, Page, ViewportSize

from tests.conformance.harness import Peer, Server
from tests.server.web_tab import ticket
from tests.web.conftest import Console

SCREEN: ViewportSize = {"width": 1280, "height": 800}


@dataclass
class LiveSession:
    """A session of a workspace, with a client of its owner."""

    server: Server
    peer: Peer
    session_id: str

    @property
    def path(self) -> str:
        return f"/w/{self.peer.workspace}/s/{self.session_id}"

    @asynccontextmanager
    async def page(self, browser: Browser, *, screen: ViewportSize = SCREEN, **access: str) -> AsyncIterator[Page]:
        """A browser with its own storage that shows the session. `access`: fields of its ticket. No page may log an
        error, except for requests that fail: a test expects those."""
        async with await browser.new_context(viewport=screen, accept_downloads=True) as context:
            page = await context.new_page()
            console = Console(page)
            secret = await ticket(self.peer.http, **access)
            await page.goto(f"{self.server.url}{self.path}#ticket={secret}")
            await page.locator(".shell-main").wait_for()  # the login is done
            yield page
            assert [error for error in console.errors if "Failed to load resource" not in error] == []
