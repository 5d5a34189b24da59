"""The controls of a session in Chromium, on the page of a real server with the scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from kedge.testing.hosted import HostedEndpoint
from tests.conformance.harness import Server, results_of, unique
from tests.web.live_page import LiveSession

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[HostedEndpoint]:
    with HostedEndpoint() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def server(endpoint: HostedEndpoint, web_page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("web"), endpoint.url).start()
    yield server
    server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def live(server: Server, tmp_path: Path) -> AsyncIterator[LiveSession]:
    async with server.peer(tmp_path) as peer:
        yield LiveSession(server, peer, await peer.session("A session"))


def bash(command: str) -> str:
    return f"script: tool bash {json.dumps({'command': command})} | say done"


async def queue_of(live: LiveSession) -> list[str]:
    runs = [run for run in await live.peer.runs(live.session_id) if run["state"] == "queued"]
    return [run["prompt"] for run in sorted(runs, key=lambda run: run["queue_order"])]


async def test_approval_closes_in_every_browser(browser: Browser, live: LiveSession) -> None:
    async with (
        live.page(browser) as first,
        live.page(browser) as second,
        live.page(browser, rights="read_only") as spectator,
    ):
        await first.locator("#prompt").fill(bash("touch made"))
        await first.locator("#prompt").press("Enter")
        for page in (first, second, spectator):
            await expect(page.get_by_label("Approval", exact=True)).to_contain_text("touch made")
        await expect(spectator.locator(".ask-keys, form, .run-stops")).to_have_count(0)
        await expect(spectator.get_by_text("You are watching")).to_be_visible()
        await first.get_by_role("button", name="Allow once").click()
        for page in (first, second, spectator):
            await expect(page.get_by_label("Approval", exact=True)).to_have_count(0)
        await expect(second.locator(".ask-result")).to_contain_text("bash: allowed by another client")
        await expect(first.locator(".ask-result")).to_have_count(0)
    [run] = await live.peer.runs(live.session_id)
    assert (await live.peer.wait(run["run_id"]))["outcome"] == "completed"
    assert (live.peer.directory / "made").exists()


async def test_ask_that_arrives_while_the_page_loads_is_shown(browser: Browser, live: LiveSession) -> None:
    """The response that lists the pending approvals is older than the event of this one."""

    async def late(route: Route) -> None:
        response = await route.fetch()
        assert await response.json() == []
        async with live.peer.stream() as stream:
            await live.peer.submit(live.session_id, bash("touch late"))
            await stream.until(lambda stream: stream.of("permission_request"))
        await route.fulfill(response=response)

    async with live.page(browser) as page:
        await page.route("**/permissions", late, times=1)
        await page.reload()
        await expect(page.get_by_label("Approval", exact=True)).to_contain_text("touch late")
        await page.get_by_label("Reason to deny").fill("not now")
        await page.get_by_role("button", name="Deny").click()
        await expect(page.get_by_label("Approval", exact=True)).to_have_count(0)
    [run] = await live.peer.runs(live.session_id)
    await live.peer.wait(run["run_id"])
    assert "not now" in results_of(await live.peer.messages(live.session_id))[0]["content"]


async def test_edited_rule_is_checked_and_stored(browser: Browser, live: LiveSession) -> None:
    async with live.page(browser) as page:
        await live.peer.submit(live.session_id, bash("touch one"))
        await page.locator(".ask-keys").get_by_role("button", name="rule").last.click()
        rule = page.get_by_label("Rule to store")
        await rule.fill("no rule ((")
        await page.get_by_role("button", name="Allow", exact=True).click()
        await expect(page.get_by_role("alert").filter(has_text="rule")).to_be_visible()
        await rule.fill("bash(touch *)")
        await page.get_by_role("button", name="Allow", exact=True).click()
        await expect(page.get_by_role("dialog")).to_have_count(0)
    grants = await live.peer.call("GET", f"{live.peer.at}/permissions/grants")
    assert [(grant["rule"], grant["session_id"]) for grant in grants] == [("bash(touch *)", live.session_id)]


async def test_questions_of_a_batch_are_answered_together(browser: Browser, live: LiveSession) -> None:
    questions = [
        {"question": "Which colour?", "options": [{"label": "red"}, {"label": "blue"}]},
        {"question": "Which name?"},
    ]
    prompt = f"script: tool question {json.dumps({'questions': questions})} | say done"
    async with live.page(browser) as page:
        run = await live.peer.submit(live.session_id, prompt)
        form = page.get_by_label("Question", exact=True)
        await form.get_by_label("blue").check()
        await form.get_by_label("Your answer").fill("Ada")
        await form.get_by_role("button", name="Answer", exact=True).click()
        await expect(form).to_have_count(0)
    await live.peer.wait(run["run_id"])
    content = results_of(await live.peer.messages(live.session_id))[0]["content"]
    assert "blue" in content
    assert "Ada" in content


async def test_queue_is_changed_by_keyboard(browser: Browser, live: LiveSession, endpoint: HostedEndpoint) -> None:
    key = unique("hold")
    await live.peer.submit(live.session_id, f"script: say working | hold {key}")
    async with live.page(browser) as page:
        prompt = page.locator("#prompt")
        for text in ("one", "two", "three"):
            await prompt.fill(text)
            await prompt.press("Enter")
        rows = page.locator(".queue-row")
        await expect(rows).to_have_count(3)
        await rows.nth(2).focus()
        for order in (["one", "three", "two"], ["three", "one", "two"]):
            await page.keyboard.press("Shift+ArrowUp")
            await expect(page.locator(".queue-text")).to_have_text(order)
            await expect(rows.nth(order.index("three"))).to_be_focused()
        assert await queue_of(live) == ["three", "one", "two"]

        await prompt.fill("my draft")
        await rows.nth(1).focus()
        await page.keyboard.press("e")
        await expect(prompt).to_have_value("one")
        await prompt.fill("one, changed")
        await prompt.press("Enter")
        await expect(prompt).to_have_value("my draft")
        await expect(page.locator(".queue-text")).to_have_text(["three", "one, changed", "two"])

        await rows.nth(0).focus()
        await page.keyboard.press("Delete")
        await expect(prompt).to_have_value("three\n\nmy draft")
        await expect(page.locator(".queue-text")).to_have_text(["one, changed", "two"])
        await rows.nth(1).drag_to(rows.nth(0))
        await expect(page.locator(".queue-text")).to_have_text(["two", "one, changed"])
    endpoint.release(key)


async def test_stop_everything_so_far_spares_what_comes_after(browser: Browser, live: LiveSession) -> None:
    await live.peer.submit(live.session_id, "script: say working | hang")
    async with live.page(browser) as page:
        prompt = page.locator("#prompt")
        for text in ("one", "two"):
            await prompt.fill(text)
            await prompt.press("Enter")
        await expect(page.get_by_role("button", name="Stop this run")).to_be_visible()
        await page.get_by_role("button", name="Stop everything so far (3)").click()
        await expect(prompt).to_have_value("one\n\ntwo")
        await expect(page.locator(".run-line")).to_have_count(0)
        await prompt.fill("script: say still here")
        await prompt.press("Enter")
        await expect(page.get_by_text("still here").last).to_be_visible()
        await prompt.press("ArrowUp")
        await expect(prompt).to_have_value("script: say still here")
    runs = await live.peer.runs(live.session_id)
    assert sorted(run["outcome"] for run in runs[:3]) == ["cancelled"] * 3
    assert (await live.peer.wait(runs[3]["run_id"]))["outcome"] == "completed"


async def test_draft_survives_reload_and_restart(
    browser: Browser, tmp_path: Path, endpoint: HostedEndpoint, web_page: Path
) -> None:
    server = Server(tmp_path / "home", endpoint.url).start()
    work = tmp_path / "work"
    work.mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        port = int(server.url.rpartition(":")[2])
        async with server.peer(work) as peer:
            live = LiveSession(server, peer, await peer.session("A session"))
            async with live.page(browser) as page:
                prompt = page.locator("#prompt")
                await prompt.fill("half a thought")
                await page.reload()
                await expect(prompt).to_have_value("half a thought")
                server.kill()
                await expect(page.get_by_text("The server does not answer")).to_be_visible()
                await prompt.fill("script: say back again")
                await prompt.press("Enter")
                await expect(page.get_by_label("The active run")).to_contain_text("sending")
                await asyncio.to_thread(server.start, port)
                await expect(page.get_by_text("back again").last).to_be_visible(timeout=20_000)
                await expect(prompt).to_have_value("")
        async with server.peer(work) as peer:
            assert [run["prompt"] for run in await peer.runs(live.session_id)] == ["script: say back again"]


async def paste(page: Page, text: str, count: int) -> None:
    """Paste the text this many times at once."""
    await page.locator("#prompt").evaluate(
        """(element, [text, count]) => {
            const clipboardData = new DataTransfer();
            clipboardData.setData("text/plain", text.repeat(count));
            const paste = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
            if (element.dispatchEvent(paste)) throw new Error("the text would go into the prompt");
        }""",
        [text, count],
    )


async def test_large_paste_and_unsupported_files(browser: Browser, live: LiveSession) -> None:
    async with live.page(browser) as page:
        prompt, attached = page.locator("#prompt"), page.locator(".attachment-name")
        await prompt.fill("script: say read it")
        await paste(page, "0123456789", 1_000_000)
        await expect(page.locator(".notice-card")).to_contain_text("it is attached as pasted-1.txt")
        await paste(page, "0123456789", 1_000_000)
        await expect(page.locator(".notice-error")).to_contain_text("was not attached: the files of a prompt may total")
        files = page.locator("input[type=file]")
        await files.set_input_files({"name": "a.zip", "mimeType": "application/zip", "buffer": b"PK\x03\x04\0"})
        await expect(page.locator(".notice-error").last).to_contain_text("a.zip was not attached: it is neither text")
        await files.set_input_files({"name": "a.txt", "mimeType": "", "buffer": b"hello"})
        await expect(attached).to_have_text(["pasted-1.txt", "a.txt"])
        await expect(prompt).to_have_value("script: say read it")
        await prompt.press("Enter")
        await expect(attached).to_have_count(0)
        await expect(page.locator(".run-line")).to_have_count(0)
    sent = (await live.peer.messages(live.session_id))[0]["parts"]
    assert [(part["data"]["path"], part["data"]["size"]) for part in sent if part["type"] == "file"] == [
        ("pasted-1.txt", 10_000_000),
        ("a.txt", 5),
    ]


async def test_files_of_the_workspace_are_completed_and_attached(browser: Browser, live: LiveSession) -> None:
    (live.peer.directory / "docs").mkdir()
    (live.peer.directory / "docs" / "never changed.md").write_text("text of the file")
    async with live.page(browser) as page:
        prompt = page.locator("#prompt")
        assert await prompt.get_attribute("aria-controls") is None
        await prompt.press_sequentially("script: say read @chang")
        await expect(page.locator(".offers li")).to_have_text(["docs/never changed.md"])
        await expect(prompt).to_have_attribute("aria-controls", "prompt-offers")
        await prompt.press("Tab")
        await expect(prompt).to_have_value('script: say read @"docs/never changed.md" ')
        await prompt.press("Enter")
        await expect(page.locator(".answer")).to_contain_text("read")
    sent = (await live.peer.messages(live.session_id))[0]["parts"]
    assert [Path(part["data"]["path"]).name for part in sent if part["type"] == "file"] == ["never changed.md"]


async def test_yolo_needs_a_confirmation(browser: Browser, live: LiveSession) -> None:
    async with live.page(browser) as page:
        mode = page.get_by_label("Mode: what passes without asking")
        await mode.select_option("yolo")
        await page.get_by_role("button", name="Keep the present mode").click()
        await expect(mode).to_have_value("ask")
        assert await live.peer.mode(live.session_id) == "ask"
        await mode.select_option("yolo")
        await page.get_by_role("button", name="Ask nothing").click()
        await expect(mode).to_have_value("yolo")
        await mode.select_option("plan")
        await expect(mode).to_have_value("plan")


async def test_rewind_returns_the_prompt_and_the_file(browser: Browser, live: LiveSession) -> None:
    await live.peer.set_mode(live.session_id, "edits")
    change = json.dumps({"path": "a.txt", "content": "new"})
    run = await live.peer.submit(live.session_id, f"script: tool write {change} | say done")
    await live.peer.wait(run["run_id"])
    made = live.peer.directory / "a.txt"
    assert made.exists()
    async with live.page(browser) as page:
        await page.locator(".side").get_by_role("button", name="a.txt").click()
        await expect(page.get_by_role("dialog")).to_contain_text("new")
        await page.keyboard.press("Escape")
        await page.get_by_label("Session menu").click()
        await page.get_by_role("menuitem", name="Rewind").click()
        await page.get_by_role("button", name="Rewind", exact=True).click()
        await expect(page.locator("#prompt")).to_have_value(f"script: tool write {change} | say done")
        assert not made.exists()
        await page.get_by_label("Session menu").click()
        async with page.expect_download() as download:
            await page.get_by_role("menuitem", name="Export as Markdown").click()
        assert (await download.value).suggested_filename == f"session-{live.session_id}.md"
