"""Sessions and workspaces that do not exist any more, in Chromium."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from kedge.testing.hosted import HostedEndpoint
from tests.web.live import Live, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("web_page")]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[HostedEndpoint]:
    with HostedEndpoint() as endpoint:
        yield endpoint


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    endpoint: HostedEndpoint, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Live]:
    async with serving(tmp_path_factory.mktemp("ended"), endpoint, browser) as live:
        yield live


async def expect_end(page: Page, text: str) -> None:
    await expect(page.locator(".ended p")).to_have_text(text)
    await expect(page.locator("#prompt")).to_have_count(0)
    await expect(page.get_by_text("Loading …")).to_have_count(0)


async def test_session_that_is_deleted_elsewhere_keeps_the_draft(live: Live) -> None:
    session = await live.peer.session("Deleted")
    await live.run(session, "script: say an answer")
    async with live.page(session) as page:
        await expect(page.locator(".answer")).to_be_visible()
        await page.locator("#prompt").fill("typed before")
        await live.peer.call("DELETE", f"{live.peer.at}/sessions/{session}")
        await expect_end(page, "This session was deleted.")
        await expect(page.get_by_label("Your prompt, which was not sent")).to_have_value("typed before")
        await page.reload()
        await expect_end(page, "This session does not exist, or was deleted.")
        await expect(page.get_by_label("Your prompt, which was not sent")).to_have_value("typed before")


async def test_unknown_workspace_is_one_sentence(live: Live) -> None:
    async with live.page() as page:
        await page.goto(f"{live.server.url}/w/unknown/s/unknown")
        await expect_end(page, "This workspace does not exist any more.")


async def test_session_deleted_in_another_browser_ends_here(live: Live) -> None:
    session, kept = await live.peer.session("Short-lived"), await live.peer.session("Kept")
    async with live.page(session) as page, live.page(session) as other:
        await page.locator("#prompt").fill("half a thought")
        await other.get_by_label("Session menu").click()
        await other.get_by_role("menuitem", name="Delete").click()
        await other.get_by_role("button", name="Delete", exact=True).click()
        await expect(other.get_by_role("link", name="Short-lived")).to_have_count(0)
        await expect_end(page, "This session was deleted.")
        await expect(page.get_by_label("Your prompt, which was not sent")).to_have_value("half a thought")
        await expect(page.get_by_role("link", name="Short-lived")).to_have_count(0)
        await page.get_by_role("link", name="Kept").click()
        await expect(page.locator("#prompt")).to_have_value("")
        assert page.url == live.address(kept)


async def test_workspace_removed_while_the_page_was_away(live: Live, tmp_path: Path) -> None:
    async with live.server.peer(tmp_path) as peer:
        session = await peer.session("In a removed workspace")
    async with live.page() as page:
        await page.goto(f"{live.server.url}/w/{peer.workspace}/s/{session}")
        await page.locator("#prompt").fill("typed before")
        # The server refuses to remove a workspace that a client has open: the page loses its connection first.
        await page.context.set_offline(True)
        port = int(live.server.url.rpartition(":")[2])
        await asyncio.to_thread(live.server.kill)
        await asyncio.to_thread(live.server.start, port, live.server.token)
        await live.peer.open()
        await live.peer.call("DELETE", f"/known-workspaces/{peer.workspace}")
        await page.context.set_offline(False)
        await expect(page.locator(".ended p")).to_have_text("This workspace does not exist any more.", timeout=15_000)
        await expect(page.locator(".banner")).to_have_count(0)
        await expect(page.get_by_label("Your prompt, which was not sent")).to_have_value("typed before")
        await page.reload()
        await expect(page.locator(".ended p")).to_have_text("This workspace does not exist any more.")
        await expect(page.get_by_role("region", name=str(tmp_path))).to_have_count(0)
