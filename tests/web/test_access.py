"""Links to the page, log-out and revoked access, in Chromium."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

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
    async with serving(tmp_path_factory.mktemp("access"), endpoint, browser) as live:
        yield live


async def stored(page: Page) -> list[str]:
    return sorted(json.loads(await page.evaluate("JSON.stringify(Object.keys(localStorage))")))


async def type_prompts(live: Live, page: Page, session: str) -> None:
    """Send a prompt and leave another one unsent."""
    await page.locator("#prompt").fill("script: say hello")
    await page.locator("#prompt").press("Enter")
    await expect(page.locator(".answer")).to_contain_text("hello")
    await page.locator("#prompt").fill("unsent")
    workspace = live.peer.at.rpartition("/")[2]
    assert {f"kedge.draft.{session}", f"kedge.history.{workspace}"} <= set(await stored(page))


async def test_log_out_removes_what_was_typed(live: Live) -> None:
    session = await live.peer.session("Log-out")
    async with live.page(session) as page:
        await type_prompts(live, page, session)
        await page.goto(f"{live.server.url}/settings")
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("heading", name="This browser no longer has access")).to_be_visible()
        assert await stored(page) == []


async def test_revoke_removes_what_was_typed(live: Live) -> None:
    session = await live.peer.session("Revoke")
    async with live.page(session) as page:
        await type_prompts(live, page, session)
        for granted in await live.peer.call("GET", "/web/browsers"):
            await live.peer.call("DELETE", f"/web/browsers/{granted['id']}")
        await expect(page.get_by_role("heading", name="This browser no longer has access")).to_be_visible()
        assert await stored(page) == []


async def test_link_on_another_site_opens_the_page(live: Live) -> None:
    session = await live.peer.session("Linked")
    await live.run(session, "script: say linked words")
    async with live.page() as page:
        link = f'<a href="{live.address(session)}">the session</a>'
        await page.route("http://other.test/**", lambda route: route.fulfill(body=link, content_type="text/html"))
        await page.goto("http://other.test/")
        await page.get_by_role("link").click()
        await expect(page.locator(".answer")).to_contain_text("linked words")
