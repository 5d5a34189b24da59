"""Links of `kedge web` and the installed page, in Chromium on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from kedge.testing.hosted import HostedEndpoint
from tests.conformance.harness import Server
from tests.server.web_tab import ticket
from tests.web.live import Live, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("web_page")]

USED = "This link has expired or was already used"
#: `kedge`, whose links expire at once.
IMPATIENT = """
from kedge.server import browsers
browsers.TICKET_S = 0
from kedge.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[HostedEndpoint]:
    with HostedEndpoint() as endpoint:
        yield endpoint


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    endpoint: HostedEndpoint, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Live]:
    async with serving(tmp_path_factory.mktemp("links"), endpoint, browser) as live:
        yield live


async def test_link_lets_one_browser_in(live: Live) -> None:
    link = f"{live.server.url}/stats#ticket={await ticket(live.peer.http)}"
    async with await live.browser.new_context() as context, await live.browser.new_context() as other:
        page, late = await context.new_page(), await other.new_page()
        await page.goto(link)
        await expect(page.get_by_role("heading", name="Statistics")).to_be_visible()
        assert page.url == f"{live.server.url}/stats"
        assert await page.evaluate("history.length") == 2, "no entry with the ticket"
        await late.goto(link)
        await expect(late.get_by_role("heading")).to_have_text(USED)
        await expect(late.get_by_role("status")).to_contain_text("kedge web")
        assert late.url == f"{live.server.url}/stats"
        assert await late.evaluate("localStorage.length") == 0
        await page.goto("about:blank")
        await page.goto(link)  # the browser that has access keeps it
        await expect(page.get_by_role("heading", name="Statistics")).to_be_visible()


async def test_expired_link_names_the_remedy(browser: Browser, endpoint: HostedEndpoint, tmp_path: Path) -> None:
    server = Server(tmp_path / "server", endpoint.url)
    server.program = ("-c", IMPATIENT)
    server.checks_stalls = False  # Chromium shares the machine with it
    server.start()
    try:
        async with server.http() as owner, await browser.new_context() as context:
            page = await context.new_page()
            await page.goto(f"{server.url}/#ticket={await ticket(owner)}")
            await expect(page.get_by_role("heading")).to_have_text(USED)
            await expect(page.get_by_role("status")).to_contain_text("kedge web")
    finally:
        server.stop()


async def test_page_can_be_installed(live: Live) -> None:
    async with live.page() as page:
        network = await page.context.new_cdp_session(page)
        manifest = await network.send("Page.getAppManifest")
        assert manifest["errors"] == []
        errors = (await network.send("Page.getInstallabilityErrors"))["installabilityErrors"]
        assert [error for error in errors if error["errorId"] != "in-incognito"] == []
        sizes = await page.evaluate(
            """async () => {
            const address = document.querySelector("link[rel=manifest]").href;
            const { icons } = await (await fetch(address)).json();
            return Promise.all(icons.map(async ({ src, sizes }) => {
                const image = new Image();
                image.src = src;
                await image.decode();
                return [sizes, `${image.naturalWidth}x${image.naturalHeight}`];
            }));
            }"""
        )
        assert [size for size in sizes if size[0] != "any"] == [["192x192", "192x192"], ["512x512", "512x512"]]
        assert len(sizes) == 3
