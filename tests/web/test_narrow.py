"""The page on a phone, in Chromium."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ViewportSize, expect

from kedge.testing.hosted import HostedEndpoint
from tests.web.live import Live, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("web_page")]

PHONE: ViewportSize = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[HostedEndpoint]:
    with HostedEndpoint() as endpoint:
        yield endpoint


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    endpoint: HostedEndpoint, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Live]:
    async with serving(tmp_path_factory.mktemp("narrow"), endpoint, browser) as live:
        yield live


async def test_details_close_by_button_shade_and_escape(live: Live) -> None:
    session = await live.peer.session("Details")
    async with live.page(session) as page:
        await page.set_viewport_size(PHONE)
        panel, opener = page.locator(".session-side"), page.get_by_role("button", name="Details", exact=True)
        for close in ("button", "shade", "Escape"):
            await opener.click()
            await expect(panel).to_be_in_viewport()
            await expect(panel).to_be_focused()
            if close == "button":
                await page.get_by_role("button", name="Close details").click()
            elif close == "shade":
                await page.mouse.click(20, 300)
            else:
                await page.keyboard.press("Escape")
            await expect(panel).not_to_be_visible()
            if close != "shade":
                await expect(opener).to_be_focused()


async def test_list_of_sessions_closes_with_escape(live: Live) -> None:
    session = await live.peer.session("List")
    async with live.page(session) as page:
        await page.set_viewport_size(PHONE)
        await page.get_by_role("button", name="Show sessions").click()
        await expect(page.locator(".sessions")).to_be_in_viewport()
        await page.keyboard.press("Escape")
        await expect(page.locator(".sessions")).not_to_be_visible()


async def test_answers_of_an_approval_are_in_view(live: Live) -> None:
    (live.peer.directory / "long.md").write_text("".join(f"line {number}\n" for number in range(60)))
    content = "".join(f"new {number}\n" for number in range(60))
    session = await live.peer.session("Approval")
    steps = [("view", {"path": "long.md"}), ("write", {"path": "long.md", "content": content})]
    script = " | step | ".join(f"tool {name} {json.dumps(fields)}" for name, fields in steps)
    run = await live.peer.submit(session, f"script: {script} | say done")
    async with live.page(session) as page:
        deny = page.get_by_role("button", name="Deny")
        for width, height in ((1280, 740), (360, 640)):
            await page.set_viewport_size({"width": width, "height": height})
            await expect(page.get_by_role("button", name="Allow once")).to_be_in_viewport(ratio=1)
            await expect(deny).to_be_in_viewport(ratio=1)
            box, prompt = await deny.bounding_box(), await page.locator(".composer").bounding_box()
            assert box
            assert prompt
            assert box["y"] + box["height"] <= prompt["y"]
        await deny.click()
        await live.peer.wait(run["run_id"])


async def test_prompt_cancelled_in_the_queue_is_noted_once(live: Live) -> None:
    session = await live.peer.session("Cancel")
    await live.peer.submit(session, "script: say words | hang")
    queued = await live.peer.submit(session, "queued", when_busy="queue")
    async with live.page(session) as page:
        await expect(page.locator(".queue-row")).to_have_count(1)
        await live.peer.cancel(session)
        await live.peer.wait(queued["run_id"])
        await expect(page.locator(".note")).to_have_text(["Cancelled", "Cancelled before it started"])


async def test_lane_explains_its_shapes_on_a_phone(live: Live) -> None:
    session = await live.peer.session("Legend")
    await live.run(session, "script: say words")
    async with live.page() as page:
        await page.set_viewport_size(PHONE)
        await page.goto(f"{live.address(session)}/lane")
        await expect(page.locator(".lane-legend")).to_be_in_viewport(ratio=1)
        await expect(page.locator(".lane-label")).to_contain_text("#1 completed")


async def test_first_screen_lists_the_sessions_on_a_phone(live: Live) -> None:
    session = await live.peer.session("Listed session")
    async with live.page() as page:
        await page.set_viewport_size(PHONE)
        await page.locator(".session-row", has_text="Listed session").click()
        await expect(page.locator("#prompt")).to_be_visible()
        assert page.url == live.address(session)
        await expect(page.locator(".sessions")).not_to_be_visible()
