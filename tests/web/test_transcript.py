"""The transcript in Chromium: streaming, reloads, restarts of the server, and output that tries to run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from kedge.core.transcript import FinishPart, Message, Text
from kedge.store.base import Write
from kedge.store.sqlite import SqliteStore
from kedge.testing.hosted import HostedEndpoint
from tests.conformance.harness import text_of
from tests.web.live import Live, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("web_page")]

#: Messages of a long session.
LONG = 10_000
#: Wait until the page has drawn what is there now.
FRAME = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


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


async def answers(page: Page) -> list[str]:
    return await page.locator(".answer .markdown").all_inner_texts()


async def test_answer_streams_to_two_browsers_and_survives_a_reload(live: Live) -> None:
    session = await live.peer.session("Streaming")
    async with live.page(session) as page, live.page(session) as other:
        run = await live.peer.submit(
            session, "script: say first **bold** | hold stream-1 | say words | hold stream-2 | say end"
        )
        for tab in (page, other):
            await expect(tab.locator(".answer strong")).to_have_text("bold")
        await page.reload()
        await expect(page.locator(".answer")).to_contain_text("first bold")
        live.endpoint.release("stream-1")
        for tab in (page, other):
            await expect(tab.locator(".answer")).to_contain_text("first bold words")
            await expect(tab.locator(".answer")).to_have_attribute("aria-busy", "true")
        live.endpoint.release("stream-2")
        await live.peer.wait(run["run_id"])
        for tab in (page, other):
            await expect(tab.locator(".answer .markdown")).to_have_text("first bold words end")
            await expect(tab.locator(".answer")).to_have_attribute("aria-busy", "false")


async def test_page_continues_after_a_restart_of_the_server(live: Live) -> None:
    session = await live.peer.session("Restart")
    await live.run(session, "script: say before")
    async with live.page(session) as page:
        await expect(page.locator(".answer")).to_contain_text("before")
        run = await live.peer.submit(session, "script: say partial text | hold restart | say and its end")
        await expect(page.locator(".answer").last).to_contain_text("partial text")
        port = int(live.server.url.rpartition(":")[2])
        live.server.kill()
        await expect(page.locator(".banner")).to_be_visible()
        live.server.start(port, live.server.token)
        await expect(page.locator(".banner")).to_have_count(0, timeout=15_000)
        await live.peer.open()
        live.endpoint.release("restart")
        await live.peer.wait(run["run_id"])
        await live.run(session, "script: say after")
        await expect(page.locator(".answer").last).to_contain_text("after")
        # Nothing is lost and nothing is there twice: the page shows what the server has.
        stored = [text_of(message) for message in await live.peer.messages(session) if message["role"] == "assistant"]
        assert [text.strip() for text in await answers(page)] == [text for text in stored if text]
        assert any("and its end" in text for text in stored)


async def test_long_session_opens_at_its_end_and_loads_the_rest(live: Live) -> None:
    session = await live.peer.session("Long")
    await live.run(session, "script: say the first answer")
    port = int(live.server.url.rpartition(":")[2])
    live.server.terminate()
    now = time.time_ns() // 1_000_000
    store = SqliteStore(live.server.data_dir)
    await store.open()
    texts = (f"message {number}\n\n{'word ' * (number % 70)}" for number in range(LONG))
    messages = [
        Message(
            f"long-{number}",
            session,
            "assistant",
            (Text(text), FinishPart("end_turn", now)),
            now + number,
            now + number,
        )
        for number, text in enumerate(texts)
    ]
    for start in range(0, LONG, 1_000):
        await store.append(Write(live.peer.at.rpartition("/")[2], messages=tuple(messages[start : start + 1_000])))
    await store.close()
    live.server.start(port, live.server.token)
    await live.peer.open()
    async with live.page(session) as page:
        await expect(page.locator("[data-key='long-9999']")).to_be_in_viewport()
        assert await page.locator("[data-key]").count() < 100
        # Earlier messages are loaded above the view, which keeps its place.
        measured = asyncio.Event()

        async def delay(route: Route) -> None:
            await measured.wait()
            await route.continue_()

        await page.route("**/messages?before=long-*", delay)
        async with page.expect_request("**/messages?before=long-*"):
            await page.locator(".list").evaluate("(list) => { list.scrollTop = 300 }")
        await page.evaluate(FRAME)
        first = page.locator("[data-key]").nth(3)
        key, place = await first.get_attribute("data-key"), await first.bounding_box()
        height = await page.locator(".list").evaluate("(list) => list.scrollHeight")
        measured.set()
        await page.wait_for_function(
            "(height) => document.querySelector('.list').scrollHeight > height + 500", arg=height
        )
        after = await page.locator(f"[data-key='{key}']").bounding_box()
        assert place is not None
        assert after is not None
        assert abs(place["y"] - after["y"]) <= 1
        await page.get_by_role("button", name="To the end").click()
        await expect(page.locator("[data-key='long-9999']")).to_be_in_viewport()
        # A link to a message far above loads what is between.
        await page.goto(f"{live.address(session)}#long-9017")
        await page.reload()
        await expect(page.locator("[data-key='long-9017']")).to_be_in_viewport()
        assert await page.locator("[data-key]").count() < 100
        await live.run(session, "script: say unseen")
        await page.get_by_role("button", name="New messages").click()
        await expect(page.get_by_text("unseen", exact=True)).to_be_in_viewport()
