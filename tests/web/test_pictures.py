"""Pictures of the page for the README, at two sizes and in two themes.

`KEDGE_PICTURES=write .venv/bin/python -m pytest tests/web/test_pictures.py` writes them; check them before committing.
Fonts differ between machines, so that other runs only make them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.source import ROOT
from tests.web.small_png import reduced
from tests.web.stage import Stage, staged

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("web_page")]

PICTURES = ROOT / "docs" / "pictures"
#: A README with pictures must load quickly on a phone, too. Bytes.
PICTURE_BYTES_MAX = 80_000
PICTURES_BYTES_MAX = 1_000_000
#: A picture with fewer colours is blank or broken.
COLOURS_MIN = 100
DEVICES: dict[str, dict[str, Any]] = {
    "desktop": {"screen": {"width": 1280, "height": 800}},
    "phone": {"screen": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True},
}
THEMES = ("light", "dark")
#: The temporary directory of the test, as a user would see a path.
RENAME = """([path, shown]) => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) walker.currentNode.data = walker.currentNode.data.replaceAll(path, shown);
}"""


async def session(page: Page, stage: Stage) -> None:
    await page.goto(stage.address("retries"))
    await expect(page.get_by_text("Clients now wait")).to_be_in_viewport()


async def approval(page: Page, stage: Stage) -> None:
    await page.goto(stage.address("approval"))
    await expect(page.get_by_role("button", name="Allow once")).to_be_enabled()
    directory = str(stage.peer.directory)
    await page.evaluate(RENAME, [directory, f"/home/you/{stage.peer.directory.name}"])
    assert directory not in await page.locator("body").inner_text()


async def lane(page: Page, stage: Stage) -> None:
    await page.goto(stage.address("lane", "/lane"))
    await expect(page.locator(".lane-row")).to_have_count(7)
    await page.get_by_role("button", name="Fit").click()
    await expect(page.locator("[data-cancel]")).to_have_count(1)


async def statistics(page: Page, stage: Stage) -> None:
    await page.goto(f"{stage.server.url}/stats")
    await page.locator("canvas").nth(5).wait_for()
    await expect(page.locator(".session-row", has_text="waits for you")).to_have_count(2)


#: By name of the picture: the way to the screen.
SCREENS: dict[str, Callable[[Page, Stage], Awaitable[None]]] = {
    "session": session,
    "approval": approval,
    "lane": lane,
    "statistics": statistics,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(tmp_path_factory.mktemp("stage"), browser) as stage:
        yield stage


@pytest.mark.parametrize("device", DEVICES)
async def test_pictures_show_each_screen_in_both_themes(device: str, stage: Stage, tmp_path: Path) -> None:
    directory = PICTURES if os.environ.get("KEDGE_PICTURES") == "write" else tmp_path
    small: list[bytes] = []
    async with await stage.browser.new_page() as easel, stage.page(**DEVICES[device]) as page:
        for name, show in SCREENS.items():
            for theme in THEMES:
                await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
                await show(page, stage)
                await expect(page.locator("html")).to_have_attribute("data-theme", theme)
                png, colours = await reduced(easel, await page.screenshot())
                (directory / f"web-{name}-{device}-{theme}.png").write_bytes(png)
                assert colours >= COLOURS_MIN, f"{name} on a {device} ({theme}) is blank"
                assert len(png) <= PICTURE_BYTES_MAX, f"{name} on a {device} ({theme}) has {len(png)} bytes"
                small.append(png)
    assert len(set(small)) == len(SCREENS) * len(THEMES), "two pictures are the same"
    assert sum(map(len, small)) <= PICTURES_BYTES_MAX / len(DEVICES)
