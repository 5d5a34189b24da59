"""Hostile text neither runs nor loads anything, wherever the page shows it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from kedge.testing.hosted import HostedEndpoint
from tests.web.hostile import HOSTILE, INSPECT
from tests.web.live import Live, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("web_page")]

#: The payloads of one text each, where a text may have 400 characters.
GROUPS: list[str] = []
for payload in HOSTILE:
    if GROUPS and len(GROUPS[-1]) + len(payload) < 400:
        GROUPS[-1] += f" {payload}"
    else:
        GROUPS.append(payload)
ALL = "\n".join(HOSTILE)
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


@asynccontextmanager
async def guarded(live: Live, session: str) -> AsyncIterator[Page]:
    """A page that shows the session, and that may send requests to its own server only."""
    async with live.page(session) as page:
        foreign: list[str] = []
        page.on("request", lambda sent: None if sent.url.startswith(live.server.url) else foreign.append(sent.url))
        yield page
        assert await page.evaluate(INSPECT) == [None, []]
        assert foreign == []
        assert len(page.context.pages) == 1


def call(name: str, **arguments: Any) -> str:
    """Return the directive of a tool call. The bar separates directives."""
    text = json.dumps(arguments).replace(" | ", " \\u007c ")
    return f"tool {name} {text}"


async def inspect_transcript(page: Page) -> set[str]:
    """Inspect the transcript from its end to its start, with all cards open. Return the keys of its messages."""
    seen: set[str] = set()
    for _ in range(200):
        await page.locator(".card-head[aria-expanded=false]").evaluate_all(
            "(buttons) => buttons.forEach((button) => button.click())"
        )
        await page.evaluate(FRAME)
        assert await page.evaluate(INSPECT) == [None, []]
        keys, is_start = await page.evaluate(
            """() => {
            const list = document.querySelector('.list');
            const isStart = list.scrollTop === 0;
            list.scrollTop -= 700;
            return [[...document.querySelectorAll('[data-key]')].map((item) => item.dataset.key), isStart];
            }"""
        )
        seen.update(keys)
        if is_start:
            break
        await page.evaluate(FRAME)
    return seen


async def test_hostile_answers_and_prompts_stay_text(live: Live) -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) >= 60
    session = await live.peer.session("Hostile")
    async with guarded(live, session) as page:
        for payload in HOSTILE:
            await live.run(session, f"\n\n{payload}\n\nend of payload")
        assert await page.evaluate(INSPECT) == [None, []]
        await page.reload()
        await page.locator("[data-key]").first.wait_for()
        assert len(await inspect_transcript(page)) == 2 * len(HOSTILE)
        for link in await page.locator(".markdown a[href]").all():
            assert await link.get_attribute("rel") == "noopener noreferrer"
        # The labels of the Lane, and the details of each Run.
        await page.get_by_role("link", name="Lane", exact=True).click()
        await expect(page.locator(".lane-row").first).to_be_visible()
        assert await page.evaluate(INSPECT) == [None, []]
        await page.get_by_role("button", name="Table").click()
        await expect(page.locator("tr[data-run]").first).to_be_visible()
        assert await page.evaluate(INSPECT) == [None, []]
        await page.get_by_label("Search messages").fill("payload")
        await expect(page.locator(".search-hit").first).to_contain_text("payload")


async def test_hostile_output_diffs_names_and_todos_stay_text(live: Live) -> None:
    session = await live.peer.session("Tools")
    await live.peer.set_mode(session, "yolo")
    names = [payload for payload in HOSTILE if "\n" not in payload and "\x01" not in payload and ".." not in payload]
    (live.peer.directory / "source.txt").write_text(ALL)
    todos = [{"content": text, "status": "in_progress", "active_form": text} for text in GROUPS[:1]]
    todos += [{"content": text, "status": "pending", "active_form": ""} for text in GROUPS[1:]]
    steps = [
        call("view", path="source.txt"),
        call("bash", command="cat source.txt", description=GROUPS[0]),
        call("write", path="made.html", content=ALL),
        call("todos", todos=todos),
        call("agent", description=GROUPS[1], prompt=ALL),
        *(call("write", path=f"{name} x", content="x\n") for name in names[::4]),
        call(GROUPS[2][:60]),
    ]
    async with guarded(live, session) as page:
        await live.run(session, f"script: {' | step | '.join(steps)} | say done")
        await expect(page.get_by_text("done", exact=True)).to_be_visible()
        assert await page.evaluate(INSPECT) == [None, []]
        await expect(page.locator(".todos li")).to_have_count(len(GROUPS))
        await inspect_transcript(page)
        await page.locator(".side").get_by_role("button", name="made.html").click()
        await expect(page.get_by_role("dialog").locator(".diff")).to_be_visible()


async def test_hostile_asks_titles_queue_and_notices_stay_text(live: Live) -> None:
    asking, asked, ruled = [await live.peer.session(title) for title in ("Approval", "Question", "Rule")]
    for payload in HOSTILE:
        await live.peer.session(payload.replace("\n", " ")[:200])
    command = "echo " + " ".join(
        f"'{text.replace(chr(39), '')}'" for text in HOSTILE if "\n" not in text and "\x01" not in text
    )
    await live.peer.submit(asking, f"script: {call('bash', command=command, description=GROUPS[0])} | say done")
    for text in (*HOSTILE[:8], ALL):
        await live.peer.submit(asking, text, when_busy="queue")
    touch = call("bash", command="touch '<img src=x onerror=window.hit=1>'")
    await live.peer.submit(ruled, f"script: {touch} | say done")
    questions = [
        {"question": text, "options": [{"label": one, "description": one} for one in GROUPS[number::4][:8]]}
        for number, text in enumerate((ALL[:2000], *GROUPS[:3]))
    ]
    await live.peer.submit(asked, f"script: {call('question', questions=questions)} | say done")
    async with guarded(live, asking) as page:
        await expect(page.get_by_label("Approval", exact=True)).to_contain_text("<script>window.hit=1</script>")
        await expect(page.locator(".queue-row")).to_have_count(9)
        await expect(page.locator(".session-title").filter(has_text="window.hit")).not_to_have_count(0)
        assert await page.evaluate(INSPECT) == [None, []]
        files = page.locator("input[type=file]")
        for payload in HOSTILE:
            await files.set_input_files({"name": payload, "mimeType": "", "buffer": b"PK\x03\x04\0"})
            await expect(page.locator(".notice-error").last).to_contain_text("was not attached")
            assert await page.evaluate(INSPECT) == [None, []]
        await page.goto(live.address(ruled))
        await page.locator(".ask-keys").get_by_role("button", name="rule").last.click()
        await expect(page.get_by_role("dialog")).to_contain_text("onerror")
        assert await page.evaluate(INSPECT) == [None, []]
        await page.goto(live.address(asked))
        await expect(page.get_by_label("Question", exact=True)).to_contain_text("<script>window.hit=1</script>")
        assert await page.evaluate(INSPECT) == [None, []]
        for path in ("/", "/lanes"):
            await page.goto(live.server.url + path)
            await expect(page.locator(".run-card, [data-session]").first).to_be_visible()
            assert await page.evaluate(INSPECT) == [None, []]
    for session in (asking, asked, ruled):
        await live.peer.cancel(session)
