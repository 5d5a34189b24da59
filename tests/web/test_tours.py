"""Tours of a user through several screens, in Chromium on a real server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, ViewportSize, expect

from kedge.testing.hosted import HostedEndpoint
from tests.conformance.harness import unique
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
    async with serving(tmp_path_factory.mktemp("tours"), endpoint, browser) as live:
        yield live


async def send(page: Page, text: str) -> None:
    await page.locator("#prompt").fill(text)
    await page.locator("#prompt").press("Enter")


async def choose(page: Page, item: str) -> None:
    """Choose an item of the session menu."""
    await page.get_by_label("Session menu").click()
    await page.get_by_role("menuitem", name=item).click()


async def test_from_a_directory_to_a_fork_and_an_undo(live: Live, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("anchor\n")
    change = json.dumps({"path": "notes.txt", "old_string": "anchor", "new_string": "hook"})
    async with live.page() as page:
        await page.get_by_role("button", name="New session in a directory").first.click()
        directory = page.get_by_label("Directory on the machine of the server")
        await directory.fill(str(tmp_path / "nowhere"))
        await directory.press("Enter")
        await expect(page.locator(".directory-form [role=alert]")).to_contain_text("nowhere")
        await directory.fill(str(tmp_path))
        await directory.press("Enter")
        await expect(page.locator("#prompt")).to_be_editable()
        await expect(page.get_by_role("region", name=str(tmp_path))).to_be_visible()

        await page.get_by_role("button", name="Choose the model").click()
        effort = page.get_by_label("Effort: how much the model thinks")
        await effort.select_option("high")
        await expect(page.locator(".side-choice")).to_contain_text("high")
        await expect(effort).to_have_value("high")
        await page.get_by_label("Search models").fill("narrow")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Choose the model")).to_contain_text("local/fake-narrow")
        await page.get_by_label("Mode: what passes").select_option("edits")
        tool = 'tool view {"path": "notes.txt"} | step | tool edit ' + change
        await send(page, f"script: {tool} | say Replaced the barnacle | usage 600 2300")
        await expect(page.locator(".answer").last).to_contain_text("barnacle")
        assert (tmp_path / "notes.txt").read_text() == "hook\n"
        await expect(page.locator(".context")).to_contain_text("%")
        await expect(page.locator(".side")).to_contain_text("$0.01")

        await choose(page, "Rename")
        await page.get_by_label("Session title").fill("Anchors and hooks")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Anchors and hooks")
        original = page.url
        await choose(page, "Undo the file changes")
        await expect(page.locator(".reversal")).to_contain_text("undo: done")
        assert (tmp_path / "notes.txt").read_text() == "anchor\n"
        await choose(page, "Redo")
        await expect(page.locator(".reversal").last).to_contain_text("redo: done")
        assert (tmp_path / "notes.txt").read_text() == "hook\n"

        await choose(page, "Fork")
        await page.wait_for_url(lambda url: url.partition("#")[0] != original)
        await expect(page.locator(".answer").last).to_contain_text("barnacle")
        await send(page, "script: say only in the copy")
        await expect(page.locator(".answer").last).to_contain_text("only in the copy")
        await page.goto(original)
        await expect(page.locator(".answer").last).to_contain_text("barnacle")
        await expect(page.get_by_text("only in the copy")).to_have_count(0)


async def test_search_finds_messages_as_they_arrive(live: Live) -> None:
    word = unique("wreck")
    session = await live.peer.session("Searched")
    await live.run(session, f"script: say found the {word} here")
    async with live.page() as page:
        field = page.get_by_label("Search messages in all workspaces")
        await field.press_sequentially(word)
        hit = page.locator(".search-hit", has_text="found the").first
        await expect(hit).to_contain_text("Searched")
        await hit.click()
        await expect(page.locator(".list-item.is-marked")).to_contain_text(word)
        await field.fill(f"{word}-missing")
        await expect(page.get_by_text("Nothing found.")).to_be_visible()
        await field.fill("")
        await expect(page.locator(".session-row", has_text="Searched")).to_be_visible()


async def test_names_are_completed_and_files_are_dropped(live: Live) -> None:
    commands = live.peer.directory / ".claude" / "commands"
    commands.mkdir(parents=True)
    (commands / "moor.md").write_text("script: say moored at $ARGUMENTS\n")
    session = await live.peer.session("Names")
    await live.peer.set_mode(session, "edits")
    made = json.dumps({"path": "lighthouse.md", "content": "light\n"})
    await live.run(session, f"script: tool write {made} | say made")  # files that the session changed are offered
    async with live.page(session) as page:
        prompt, offers = page.locator("#prompt"), page.locator(".offers").get_by_role("option")
        await prompt.press_sequentially("/mo")
        await expect(offers.filter(has_text="moor")).to_be_visible()
        await prompt.press("Tab")
        await expect(prompt).to_have_value("/moor ")
        await prompt.press_sequentially("the pier")
        await prompt.press("Enter")
        await expect(page.locator(".answer").last).to_contain_text("moored at the pier")
        await expect(page.locator(".user-text").last).to_have_text("/moor the pier")

        await prompt.press_sequentially("script: say seen @lighth")
        await expect(offers.filter(has_text="lighthouse.md")).to_be_visible()
        await prompt.press("Enter")
        await expect(offers).to_have_count(0)
        await expect(prompt).to_have_value("script: say seen @lighthouse.md ")
        await page.locator(".transcript, .list").first.evaluate(
            """(element) => {
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File(["dropped"], "dropped.txt", { type: "text/plain" }));
            for (const type of ["dragover", "drop"])
                element.dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true }));
            }"""
        )
        await expect(page.locator(".attachment-name")).to_have_text("dropped.txt")
        await prompt.press("Enter")
        await expect(page.locator(".attached-file", has_text="dropped.txt")).to_be_visible()
        await expect(page.locator(".answer").last).to_contain_text("seen")


async def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until the element has the focus, which must be visible."""
    for _ in range(80):
        if await target.evaluate("(element) => element === document.activeElement"):
            break
        await page.keyboard.press("Tab")
    await expect(target).to_be_focused()
    await expect(target).to_be_in_viewport()
    assert await target.evaluate("(element) => element.matches(':focus-visible')")


async def test_phone_is_used_by_keyboard_alone(live: Live) -> None:
    await live.peer.session("By keyboard")
    async with live.page() as page:
        await page.set_viewport_size(PHONE)
        await tab_to(page, page.get_by_role("link", name="By keyboard").last)
        await page.keyboard.press("Enter")
        await tab_to(page, page.locator("#prompt"))
        command = json.dumps({"command": "touch by-keyboard"})
        await page.keyboard.insert_text(f"script: tool bash {command} | say typed | hang")
        await page.keyboard.press("Enter")
        allow = page.get_by_role("button", name="Allow once")
        await expect(allow).to_be_enabled()
        await tab_to(page, allow)
        await page.keyboard.press("Enter")
        await expect(page.locator(".answer").last).to_contain_text("typed")
        assert (live.peer.directory / "by-keyboard").exists()
        await tab_to(page, page.get_by_role("button", name="Stop this run"))
        await page.keyboard.press("Space")
        await expect(page.locator(".run-line")).to_have_count(0)
        menu = page.get_by_label("Session menu")
        await tab_to(page, menu)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("menuitem").first).to_be_focused()
        await page.keyboard.press("ArrowDown")
        await expect(page.get_by_role("menuitem").nth(1)).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(menu).to_be_focused()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360


async def test_nothing_moves_if_motion_is_to_be_reduced(live: Live) -> None:
    session = await live.peer.session("Motion")
    key = unique("motion")
    run = await live.peer.submit(session, f"script: say words | hold {key}")
    moving = "document.getAnimations().filter((one) => one.effect.getComputedTiming().duration > 10).length"
    async with live.page(session) as page:
        await expect(page.locator(".answer")).to_contain_text("words")
        assert await page.evaluate(moving) > 0, "an active run is animated"
        await page.emulate_media(reduced_motion="reduce")
        for path in (live.address(session), f"{live.address(session)}/lane", f"{live.server.url}/lanes"):
            await page.goto(path)
            await expect(page.locator(".answer, .lane-row, [data-session]").first).to_be_visible()
            assert await page.evaluate(moving) == 0
    live.endpoint.release(key)
    await live.peer.wait(run["run_id"])


async def test_desktop_and_phone_steer_one_session(live: Live) -> None:
    session = await live.peer.session("Two devices")
    async with live.page(session) as desktop, live.page(session) as phone:
        await phone.set_viewport_size(PHONE)
        command = json.dumps({"command": "touch from-phone"})
        await send(desktop, f"script: say started | tool bash {command} | say finished | hang")
        await expect(phone.locator(".answer")).to_contain_text("started")
        await phone.get_by_role("button", name="Allow once").click()
        await expect(desktop.get_by_label("Approval", exact=True)).to_have_count(0)
        await expect(desktop.locator(".answer").last).to_contain_text("finished")
        await send(phone, "from the phone")
        await expect(desktop.locator(".queue-text")).to_have_text("from the phone")
        await desktop.locator(".queue-row").focus()
        await desktop.keyboard.press("e")
        await desktop.locator("#prompt").fill("script: say changed on the desktop")
        await desktop.locator("#prompt").press("Enter")
        await expect(phone.locator(".queue-text")).to_have_text("script: say changed on the desktop")
        await phone.get_by_role("button", name="Details", exact=True).click()
        await phone.get_by_label("Mode: what passes").select_option("plan")
        await expect(desktop.get_by_label("Mode: what passes")).to_have_value("plan")
        await phone.keyboard.press("Escape")
        await phone.get_by_role("button", name="Stop this run").click()
        for page in (desktop, phone):
            await expect(page.locator(".answer").last).to_contain_text("changed on the desktop")
            await expect(page.locator(".run-line")).to_have_count(0)
