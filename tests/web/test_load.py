"""The costs of the page that do not depend on the machine; `bench/page.py` measures those in seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from kedge.testing.hosted import HostedEndpoint
from tests.server.web_tab import ticket
from tests.web.live import Live, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("web_page")]

#: The goal for the first view, over the wire. Bytes.
FIRST_VIEW_BYTES_MAX = 150_000
WORDS = 5_000
#: Keep back the frames of the browser, and count the changes of the transcript: all changes of one task are one.
HOLD_FRAMES = """() => {
    window.renders = 0;
    const held = [];
    window.requestFrame = window.requestAnimationFrame;
    window.requestAnimationFrame = (work) => held.push(work);
    window.releaseFrames = () => {
        window.requestAnimationFrame = window.requestFrame;
        held.forEach((work) => requestAnimationFrame(work));
    };
    const observer = new MutationObserver(() => window.renders++);
    observer.observe(document.querySelector(".list"), { subtree: true, childList: true, characterData: true });
}"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[HostedEndpoint]:
    with HostedEndpoint() as endpoint:
        yield endpoint


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    endpoint: HostedEndpoint, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Live]:
    async with serving(tmp_path_factory.mktemp("load"), endpoint, browser) as live:
        yield live


async def test_first_view_is_small_and_compressed(live: Live) -> None:
    session = await live.peer.session("First")
    sizes: list[int] = []
    encodings: dict[str, str] = {}

    def started(event: dict[str, Any]) -> None:
        response = event["response"]
        headers = {name.lower(): value for name, value in response["headers"].items()}
        encodings[response["url"].removeprefix(live.server.url).partition("?")[0]] = headers.get("content-encoding", "")

    def finished(event: dict[str, Any]) -> None:
        sizes.append(int(event["encodedDataLength"]))

    async with await live.browser.new_context() as context:
        page = await context.new_page()
        network = await context.new_cdp_session(page)
        network.on("Network.responseReceived", started)
        network.on("Network.loadingFinished", finished)
        await network.send("Network.enable")
        await page.goto(f"{live.address(session)}#ticket={await ticket(live.peer.http)}")
        await expect(page.locator("#prompt")).to_be_editable()
        await expect(page.locator(".session-row")).to_have_count(1)
    large = {path: encoding for path, encoding in encodings.items() if path.endswith((".js", ".css"))}
    assert set(large.values()) == {"br"}, large
    assert sum(sizes) < FIRST_VIEW_BYTES_MAX
    assert sum(sizes) > 50_000, "some responses were not counted"


async def test_deltas_wait_for_a_frame_and_keep_their_order(live: Live) -> None:
    session = await live.peer.session("Deltas")
    async with live.page(session) as page:
        await live.run(session, "script: say ready")
        await expect(page.locator(".answer")).to_contain_text("ready")
        await page.evaluate(HOLD_FRAMES)
        async with live.peer.stream(deltas=1, session_id=session) as stream:
            run = await live.peer.submit(session, f"script: pause 1 | words {WORDS}")
            await live.peer.wait(run["run_id"])
            await stream.until_complete(run["run_id"])
            deltas = len(stream.of("delta"))
        # Without frames, a timer draws what has arrived, twice a second.
        renders = await page.evaluate("window.renders")
        assert renders < deltas / 2, "each delta was drawn"
        await page.evaluate("window.releaseFrames()")
        answer = page.locator(".answer").last
        await expect(answer).to_have_attribute("aria-busy", "false")
        text = await answer.locator(".markdown").text_content() or ""
        assert text.split() == [f"w{number + 1}" for number in range(WORDS)]
