"""The page after a restart of the server and after an outage, in the orders of requests that need care."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route, expect

from kedge.testing.hosted import HostedEndpoint
from tests.conformance.harness import Server
from tests.web.live import Live, serving
from tests.web.live_page import LiveSession

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("web_page")]

PROBLEM = "The disk is full."
REFUSAL = json.dumps({"code": "store_full", "message": PROBLEM})


@pytest.fixture(scope="module")
def endpoint() -> Iterator[HostedEndpoint]:
    with HostedEndpoint() as endpoint:
        yield endpoint


@pytest_asyncio.fixture(loop_scope="module")
async def live(endpoint: HostedEndpoint, browser: Browser, tmp_path: Path) -> AsyncIterator[Live]:
    """A server of its own, since the test restarts it."""
    async with serving(tmp_path, endpoint, browser) as live:
        yield live


async def restart(server: Server) -> None:
    """Kill the server, and start it with the same address."""
    port = int(server.url.rpartition(":")[2])
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start, port)


async def answered(live: Live) -> LiveSession:
    session = LiveSession(live.server, live.peer, await live.peer.session("A session"))
    await live.run(session.session_id, "script: say the answer")
    return session


async def test_requests_reach_a_restarted_server_before_the_stream(browser: Browser, live: Live) -> None:
    """The server is killed while the page loads. The stream, which reconnects first otherwise, comes last."""
    session = await answered(live)
    loaded = asyncio.Event()
    streams = 0

    async def restarted(route: Route) -> None:
        """Let the request reach the new server, where the workspace is closed."""
        await restart(live.server)
        response = await route.fetch()
        await route.fulfill(response=response)
        assert response.status == 404
        loaded.set()

    async def late(route: Route) -> None:
        nonlocal streams
        streams += 1
        if streams > 1:
            await loaded.wait()
        await route.continue_()

    async with session.page(browser) as page:
        await expect(page.get_by_text("the answer").last).to_be_visible()
        await page.route("**/permissions", restarted, times=1)
        await page.route("**/events?**", late)
        await page.reload()
        await asyncio.wait_for(loaded.wait(), 60)
        await expect(page.get_by_text("the answer").last).to_be_visible(timeout=20_000)
        await expect(page.locator(".notice-line")).to_have_count(0)


async def refuse(route: Route) -> None:
    await route.fulfill(status=500, content_type="application/json", body=REFUSAL)


@pytest.mark.parametrize(
    ("request_pattern", "screen"), [("**/permissions", ""), ("**/messages?**", ""), ("**/lane?**", "/lane")]
)
async def test_what_failed_to_load_is_loaded_after_a_reconnect(
    browser: Browser, live: Live, request_pattern: str, screen: str
) -> None:
    session = await answered(live)
    async with session.page(browser) as page:
        content = page.locator(".lane-row" if screen else ".list-item").last
        await expect(page.get_by_text("the answer").last).to_be_visible()
        await page.route(request_pattern, refuse, times=1)
        await page.goto(f"{live.server.url}{session.path}{screen}")
        await expect(page.get_by_role("alert").filter(has_text=PROBLEM)).to_be_visible()
        await restart(live.server)
        await expect(content).to_be_visible(timeout=20_000)
        await expect(page.get_by_role("alert").filter(has_text=PROBLEM)).to_have_count(0)


async def test_extensions_are_loaded_again(browser: Browser, live: Live) -> None:
    """The first attempt is lost; the second is refused; a reconnect follows."""
    session = await answered(live)
    async with session.page(browser) as page:
        details = page.locator(".side details").filter(has_text="Extensions")
        await page.route("**/extensions", refuse, times=1)
        await page.route("**/extensions", lambda route: route.abort(), times=1)
        await details.locator("summary").click()
        await expect(details).to_contain_text(PROBLEM)
        await restart(live.server)
        await expect(details).not_to_contain_text(PROBLEM, timeout=20_000)
        await expect(details).not_to_contain_text("loading")


@pytest.mark.parametrize("held", ["**/web/access", "**/open"])
async def test_server_that_is_killed_while_the_page_loads_is_reported(browser: Browser, live: Live, held: str) -> None:
    session = await answered(live)
    killed = asyncio.Event()

    async def kill(route: Route) -> None:
        """Let the server die between its answer and the next request."""
        response = await route.fetch()
        await asyncio.to_thread(live.server.kill)
        await route.fulfill(response=response)
        killed.set()

    port = int(live.server.url.rpartition(":")[2])
    async with session.page(browser) as page:
        await expect(page.get_by_text("the answer").last).to_be_visible()
        await page.route(held, kill, times=1)
        await page.reload()
        await asyncio.wait_for(killed.wait(), 60)
        await expect(page.get_by_text("The server does not answer.")).to_be_visible(timeout=10_000)
        await asyncio.to_thread(live.server.start, port)
        await expect(page.get_by_text("the answer").last).to_be_visible(timeout=20_000)
        await expect(page.locator(".banner")).to_have_count(0)
