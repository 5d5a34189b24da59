"""Browser notifications, in Chromium."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from kedge.testing.hosted import HostedEndpoint
from tests.web.live import Live, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("web_page")]

#: Record what the page shows. `document.hidden` is as the test sets it.
RECORD = """
    window.shown = [];
    window.Notification = class extends Notification {
        constructor(title, options) { super(title, options); window.shown.push([title, options.body]); }
    };
    window.isHidden = false;
    Object.defineProperty(document, 'hidden', { get: () => window.isHidden });
"""
#: As browsers on Android.
REFUSE = """
    window.Notification = class extends Notification {
        constructor() { throw new TypeError('Illegal constructor'); }
    };
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[HostedEndpoint]:
    with HostedEndpoint() as endpoint:
        yield endpoint


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    endpoint: HostedEndpoint, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Live]:
    async with serving(tmp_path_factory.mktemp("notes"), endpoint, browser) as live:
        yield live


async def turn_on(live: Live, page: Page, script: str) -> None:
    await page.context.grant_permissions(["notifications"], origin=live.server.url)
    await page.add_init_script(script)
    await page.goto(f"{live.server.url}/settings")
    await page.get_by_label("When a run ends or asks").click()


async def test_hidden_page_notifies_of_asks_and_ends(live: Live) -> None:
    session = await live.peer.session("My session")
    async with live.page() as page:
        await turn_on(live, page, RECORD)
        await expect(page.get_by_label("When a run ends or asks")).to_be_checked()
        assert await page.evaluate("window.shown") == [["kedge: notifications are on", ""]]
        await page.goto(live.address(session))
        await expect(page.get_by_text("No message yet")).to_be_visible()
        await live.run(session, "script: say seen")
        await expect(page.locator(".answer")).to_contain_text("seen")
        await page.evaluate("window.isHidden = true")
        run = await live.peer.submit(session, 'script: tool bash {"command": "touch made"} | say done')
        await page.wait_for_function("() => window.shown.length === 1")
        await page.get_by_role("button", name="Allow once").click()
        await live.peer.wait(run["run_id"])
        await page.wait_for_function("() => window.shown.length === 2")
        assert await page.evaluate("window.shown") == [
            ["kedge: bash needs your approval", "My session"],
            ["kedge: completed", "My session"],
        ]


async def test_browser_that_refuses_notifications_of_pages_is_named(live: Live) -> None:
    async with live.page() as page:
        await turn_on(live, page, REFUSE)
        await expect(page.get_by_text("This browser does not show notifications of pages")).to_be_visible()
        await expect(page.get_by_label("When a run ends or asks")).not_to_be_checked()
