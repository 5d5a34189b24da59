"""The Lane of a session as a picture, the overview of live Lanes, and the statistics: in Chromium on a real server."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Position, expect

from kedge.testing.hosted import HostedEndpoint
from tests.web.live import Live, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("web_page")]

#: Per row: seq, phase, cancels that cover it, and its parts in the order of drawing.
ROWS = """() => [...document.querySelectorAll(".lane-row")].map((row) => [
    Number(row.dataset.seq), row.dataset.phase, row.dataset.coveredBy,
    [...row.querySelectorAll("[data-part]")].map((part) => part.dataset.part),
])"""
#: The box of an element: left, right, top, bottom.
PLACE = "(element) => { const b = element.getBoundingClientRect(); return [b.left, b.right, b.top, b.bottom]; }"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[HostedEndpoint]:
    with HostedEndpoint() as endpoint:
        yield endpoint


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    endpoint: HostedEndpoint, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Live]:
    async with serving(tmp_path_factory.mktemp("lane"), endpoint, browser) as live:
        yield live


def row(page: Page, run_id: str) -> Any:
    return page.locator(f'.lane-row[data-run="{run_id}"]')


async def cancelled_in_the_middle(live: Live, session: str, page: Page) -> list[str]:
    """A Run that another one joins, a queued one, a cancel of all three, and a Run accepted after it."""
    submit = live.peer.submit
    host = await submit(session, 'script: say working | hold lane-1 | tool view {"path": "x"} | say more | hold lane-2')
    # A prompt that is accepted before the first Step would join that one.
    await expect(row(page, host["run_id"]).locator('[data-part="reply"]')).to_have_count(1)
    joined = await submit(session, "please look at y as well", when_busy="fold")
    queued = await submit(session, "afterwards, write it down", when_busy="queue")
    await expect(row(page, queued["run_id"])).to_have_attribute("data-phase", "queued")
    live.endpoint.release("lane-1")
    await expect(row(page, joined["run_id"])).to_have_attribute("data-phase", "folded")
    await expect(row(page, host["run_id"]).locator('[data-part="reply"]')).to_have_count(2)
    assert (await live.peer.cancel(session))["mark"] == 3
    later = await submit(session, "script: say a fresh start")
    run_ids = [run["run_id"] for run in (host, joined, queued, later)]
    for run_id in run_ids:
        await live.peer.wait(run_id)
    return run_ids


async def test_picture_shows_queue_fold_cancel_and_what_follows(live: Live) -> None:
    session = await live.peer.session("A cancel in the middle")
    (live.peer.directory / "x").write_text("x\n")
    async with live.page(session) as page:
        await page.get_by_role("link", name="Lane", exact=True).click()
        await expect(page.get_by_text("No run yet.")).to_be_visible()
        host, joined, queued, later = await cancelled_in_the_middle(live, session, page)
        await expect(row(page, later)).to_have_attribute("data-phase", "completed")
        await page.get_by_role("button", name="Fit").click()
        seen = await page.evaluate(ROWS)
        assert [(seq, phase, covered) for seq, phase, covered, _ in seen] == [
            (1, "cancelled", "0"),
            (2, "folded", "0"),
            (3, "cancelled", "0"),
            (4, "completed", ""),
        ]
        parts = [set(parts) for *_, parts in seen]
        assert {"active", "reply", "call"} <= parts[0]
        assert parts[1] == {"accepted", "queue", "folded", "join"}
        assert parts[2] == {"accepted", "queue"}, "it never began"
        assert {"active", "reply"} <= parts[3]
        line = page.locator("[data-cancel]")
        await expect(line).to_have_count(1)
        assert await line.get_attribute("data-covers") == f"{host} {joined} {queued}"
        edge = await line.locator(".lane-cancel-line").evaluate(PLACE)
        circle = await row(page, later).locator('[data-part="accepted"]').evaluate(PLACE)
        ground = await row(page, later).locator(".lane-row-ground").evaluate(PLACE)
        assert (circle[0] + circle[1]) / 2 >= edge[0], "accepted after the cancel: right of its line"
        assert edge[3] <= ground[2] + 2, "and below it"

        # The events made the same picture as a page of the server.
        await page.reload()
        await expect(row(page, later)).to_have_attribute("data-phase", "completed")
        assert await page.evaluate(ROWS) == seen

        await page.get_by_role("button", name="Table").click()
        cells = await page.get_by_role("table", name="Cancels").get_by_role("cell").all_inner_texts()
        assert cells[1:] == ["#1 to #3", "runs after #3"]
        states = await page.locator("tr[data-run] td:nth-child(3)").all_inner_texts()
        assert [state.strip() for state in states] == [
            "cancelled",
            "folded into #1, cancelled",
            "cancelled, cancelled in queue",
            "completed",
        ]


async def test_runs_are_reached_by_pointer_and_by_keyboard(live: Live) -> None:
    session = await live.peer.session("Many runs")
    for number in range(3):
        await live.run(session, f"script: say answer {number}")
    address = f"{live.address(session)}/lane"
    async with live.page() as page:
        await page.goto(address)
        picture = page.locator(".lane-box")
        span = int(await picture.get_attribute("data-span") or 0)
        await page.locator('.lane-row[data-seq="2"] [data-part="reply"]').hover()
        await expect(page.locator(".lane-details")).to_contain_text("#2 · reply of the model")
        # Its corner: on a slow machine the bar of the Run covers the middle.
        ground, corner = page.locator('.lane-row[data-seq="2"] .lane-row-ground'), Position(x=4, y=4)
        await ground.hover(position=corner)
        await expect(page.locator(".lane-details")).to_contain_text("#2 completed")
        for delta, expected in ((300, 2 * span), (300, 4 * span), (-300, 2 * span), (-300, span)):
            await page.mouse.wheel(0, delta)
            await expect(picture).to_have_attribute("data-span", str(expected))
        await ground.click(position=corner)
        await expect(page.locator(".list-item.is-marked")).to_contain_text("answer 1")
        assert page.url.startswith(f"{live.address(session)}#")
        await page.go_back()
        label = page.locator(".lane-label")
        await label.last.focus()
        await expect(page.locator(".lane-details")).to_contain_text("#3 completed")
        await page.keyboard.press("ArrowUp")
        await page.keyboard.press("Home")
        await expect(label.first).to_be_focused()
        for _ in range(20):
            await page.keyboard.press("+")
        await expect(picture).to_have_attribute("data-span", "1000")
        for _ in range(20):
            await page.keyboard.press("-")
        await expect(picture).to_have_attribute("data-span", str(24 * 3_600_000))
        await page.keyboard.press("Enter")
        await expect(page.locator(".list-item.is-marked")).to_contain_text("answer 0")


async def test_overview_lists_live_lanes_only(live: Live) -> None:
    session = await live.peer.session("Live one")
    run = await live.peer.submit(session, "script: say begun | hold lanes-1")
    await live.peer.submit(session, "script: say second", when_busy="queue")
    async with live.page() as page:
        await page.get_by_role("link", name="Lanes", exact=True).click()
        card = page.locator(f'[data-session="{session}"]')
        await expect(card).to_contain_text("1 queued")
        live.endpoint.release("lanes-1")
        await live.peer.wait(run["run_id"])
        await expect(card).to_have_count(0)
        await expect(page.get_by_text("Nothing runs on this server.")).to_be_visible()


async def test_statistics_are_those_of_the_command(live: Live, tmp_path: Path) -> None:
    session = await live.peer.session("Counted")
    await live.run(session, 'script: tool view {"path": "gone"} | say x | usage 1000 50')
    await live.run(session, "script: fail 400 broken")
    host = f"unix://{live.server.socket}"
    output = await asyncio.to_thread(
        live.server.kedge, "stats", "--json", "--by", "outcome", "--host", host, cwd=tmp_path
    )
    report = json.loads(output)
    total, groups = report["total"], report["groups"]
    async with live.page() as page:
        await page.get_by_role("link", name="Statistics", exact=True).click()
        await page.get_by_role("combobox", name="By", exact=True).select_option("outcome")
        expected = {
            "Runs": total["runs"],
            "Failed": total["failed"],
            "Cancelled": total["cancelled"],
            "Cost": total["cost_usd"],
            "Tokens": total["input_tokens"] + total["output_tokens"],
            "First token": total["first_token"]["median_ms"],
            "Queue wait": total["queue_wait"]["median_ms"],
            "Duration": total["duration"]["median_ms"],
            "Tool calls": total["tool_calls"],
        }
        for name, value in expected.items():
            await expect(page.locator(f'[data-figure="{name}"]')).to_have_attribute("data-value", f"{value:g}")
        await expect(page.locator("canvas")).to_have_count(7)
        await page.get_by_role("button", name="Tokens as a table").click()
        rows = page.locator('[data-plot="tokens"] tbody tr')
        await expect(rows).to_have_count(len(groups))
        for index, group in enumerate(groups):
            cells = await rows.nth(index).locator("td").all()
            numbers = [int(await cell.get_attribute("data-value") or 0) for cell in cells]
            assert numbers[0] + numbers[1] == group["input_tokens"]
            assert numbers[2] == group["output_tokens"]
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Download Runs by outcome as CSV").click()
        text = (await (await download.value).path()).read_text()
        table = list(csv.reader(text.splitlines()))
        assert table[0] == ["Outcome", "completed", "failed", "cancelled", "interrupted"]
        names = ("completed", "failed", "cancelled", "interrupted")
        assert table[1:] == [[group["key"], *(str(group[name]) for name in names)] for group in groups]
        await page.get_by_role("combobox", name="Workspace", exact=True).select_option(label="project")
        await expect(page.locator('[data-figure="Runs"]')).to_have_attribute("data-value", str(total["runs"]))
