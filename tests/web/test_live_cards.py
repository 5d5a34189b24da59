"""Cards of the transcript and the list of sessions in Chromium, while a Run changes them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

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
    async with serving(tmp_path_factory.mktemp("live"), endpoint, browser) as live:
        yield live


def tool(name: str, **fields: object) -> str:
    # A bar would end the directive.
    return f"tool {name} {json.dumps(fields)}".replace("|", "\\u007c")


async def test_card_shows_output_while_it_runs_then_its_end(live: Live) -> None:
    session = await live.peer.session("Output")
    await live.peer.set_mode(session, "yolo")
    command = "echo tick; until [ -e go ]; do sleep 0.05; done; echo tock"
    async with live.page(session) as page:
        run = await live.peer.submit(session, f"script: {tool('bash', command=command)} | say done")
        card = page.locator(".card")
        await expect(card.locator(".mark-running")).to_be_visible()
        await expect(card.locator(".tool-output")).to_have_text("tick")
        (live.peer.directory / "go").touch()
        await expect(card.locator(".tool-output")).to_contain_text("tock")
        await expect(card.locator(".mark-done")).to_be_visible()
        await live.peer.wait(run["run_id"])


async def test_card_shows_the_diff_of_an_approved_edit(live: Live) -> None:
    session = await live.peer.session("Approval")
    edit = tool("write", path="made.txt", content="a new line\n")
    async with live.page(session) as page:
        row = page.locator(".session-row", has_text="Approval")
        await expect(row).to_be_visible()
        run = await live.peer.submit(session, f"script: say first | {edit} | say done")
        await expect(page.locator(".card .card-summary")).to_have_text("waits for you")
        await expect(row).to_contain_text("waits for you")
        async with live.page() as other:
            for path in ("", "stats", "lanes"):
                await other.goto(f"{live.server.url}/{path}")
                await expect(other.locator(".session-row", has_text="Approval")).to_contain_text("waits for you")
            await other.get_by_role("link", name="kedge").click()
            await expect(other.locator(".run-card", has_text="first")).to_contain_text("waits for you")
        await page.get_by_role("button", name="Allow once").click()
        await expect(page.locator(".card .diff")).to_contain_text("a new line")
        await expect(page.locator(".card .mark-done")).to_be_visible()
        await live.peer.wait(run["run_id"])
        await expect(row).not_to_contain_text("waits for you")
        await expect(row).not_to_contain_text("running")


async def test_reasoning_grows_while_it_streams(live: Live) -> None:
    session = await live.peer.session("Reasoning")
    async with live.page(session) as page:
        run = await live.peer.submit(session, "script: think first | hold t1 | think second | hold t2 | say end")
        await expect(page.locator(".thought-text")).to_have_text("first")
        live.endpoint.release("t1")
        await expect(page.locator(".thought-text")).to_have_text("first second")
        live.endpoint.release("t2")
        await live.peer.wait(run["run_id"])
        await expect(page.locator(".thought-text")).to_have_count(0)
        await expect(page.locator(".thought-head")).to_contain_text("Thought")


async def test_card_of_an_agent_links_to_its_session(live: Live) -> None:
    session = await live.peer.session("Parent")
    await live.peer.set_mode(session, "yolo")
    agent = tool("agent", description="look", prompt="script: say begun | hold child | say the child's answer")
    async with live.page(session) as page:
        run = await live.peer.submit(session, f"script: {agent} | say done")
        link = page.locator(".card-child")
        await expect(link).to_contain_text("step 1")
        live.endpoint.release("child")
        await live.peer.wait(run["run_id"])
        await expect(link).to_contain_text("1 step")
        await link.click()
        await expect(page.locator(".answer")).to_contain_text("the child's answer")


async def test_diff_is_readable_side_by_side_and_on_a_phone(live: Live) -> None:
    (live.peer.directory / "both.txt").write_text("kept\nold line\n")
    session = await live.peer.session("Diff")
    await live.peer.set_mode(session, "yolo")
    view, edit = tool("view", path="both.txt"), tool("write", path="both.txt", content="kept\nnew line\n")
    await live.run(session, f"script: {view} | step | {edit} | say done")
    async with live.page(session) as page:
        await page.get_by_role("button", name="Side by side").click()
        for text in ("old line", "new line"):
            code, number = page.locator(".diff-code", has_text=text), page.locator("td.diff-number").first
            wide, narrow = await code.bounding_box(), await number.bounding_box()
            assert wide
            assert narrow
            assert wide["width"] > 4 * narrow["width"]
        await page.set_viewport_size({"width": 360, "height": 740})
        await expect(page.locator(".diff-split")).to_have_count(0)
        await expect(page.get_by_role("button", name="Unified")).to_have_count(0)
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
