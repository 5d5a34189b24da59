"""axe-core finds nothing serious on the screens of the page, at two widths and in two themes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, ViewportSize, expect

from tests.source import ROOT
from tests.web.stage import Stage, staged

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("web_page")]

AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
WIDE: ViewportSize = {"width": 1280, "height": 800}
NARROW: ViewportSize = {"width": 360, "height": 740}
#: All rules, and only those whose result depends on the theme: the second theme has the same elements.
RULES: dict[Literal["light", "dark"], dict[str, Any]] = {
    "light": {},
    "dark": {"runOnly": ["color-contrast", "link-in-text-block"]},
}
FIND = """async (options) => {
    const result = await axe.run(document, { resultTypes: ["violations"], ...options });
    const checked = result.passes.length;
    const grave = result.violations.filter(({ impact }) => impact === "serious" || impact === "critical");
    const text = ({ id, impact, nodes }) =>
        `${id} (${impact}): ${nodes.map(({ html }) => html.slice(0, 200)).join(" ")}`;
    return [checked, grave.map(text)];
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(tmp_path_factory.mktemp("stage"), browser) as stage:
        yield stage


class Checker:
    """axe in a page, and what it finds."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.found: list[str] = []

    async def open(self, address: str, ready: str) -> None:
        await self.page.goto(address)
        await self.page.locator(ready).first.wait_for()
        await self.page.add_script_tag(path=AXE)

    async def check(self, name: str, *screens: ViewportSize) -> None:
        """Check what is on the screen, in both themes and in these sizes, by default both."""
        for screen in screens or (WIDE, NARROW):
            await self.page.set_viewport_size(screen)
            for theme, options in RULES.items():
                await self.page.emulate_media(color_scheme=theme)
                await expect(self.page.locator("html")).to_have_attribute("data-theme", theme)
                checked, grave = await self.page.evaluate(FIND, options)
                assert checked, "axe has checked nothing"
                self.found += [f"{name}, {screen['width']} px, {theme}: {one}" for one in grave]


@pytest.mark.timeout(120)
async def test_axe_finds_nothing_serious(stage: Stage) -> None:
    # The Content-Security-Policy of the page forbids other scripts, and so axe.
    async with stage.page(WIDE, bypass_csp=True) as page:
        checker = Checker(page)
        check = checker.check
        for name, address, ready in (
            ("home", f"{stage.server.url}/", ".run-card"),
            ("question", stage.address("question"), ".ask-keys button:enabled"),
            ("queue", stage.address("lane"), ".queue-row"),
            ("lane", stage.address("lane", "/lane"), ".lane-row"),
            ("lanes", f"{stage.server.url}/lanes", "[data-session]"),
            ("statistics", f"{stage.server.url}/stats", "canvas"),
            ("settings", f"{stage.server.url}/settings", ".settings"),
            ("session", stage.address("retries"), ".diff"),
        ):
            await checker.open(address, ready)
            await check(name)
        await page.get_by_label("Show sessions").click()
        await check("list of sessions", NARROW)
        await checker.open(stage.address("retries"), ".diff")
        await page.get_by_label("Details", exact=True).click()
        await check("details", NARROW)
        await checker.open(stage.address("approval"), ".ask-keys button:enabled")
        await check("approval")
        await page.get_by_label("Session menu").click()
        await check("menu", NARROW)
        await page.keyboard.press("Escape")
        await page.locator(".ask-keys").get_by_role("button", name="rule …").click()
        await check("rule", NARROW)
        await page.keyboard.press("Escape")
        await page.set_viewport_size(WIDE)
        await page.get_by_role("button", name="Choose the model").click()
        await check("models", WIDE)
        await page.evaluate("localStorage.clear()")
        await checker.open(f"{stage.server.url}/?later#ticket=used", "h1")
        await check("login", NARROW)
    assert checker.found == [], "\n".join(checker.found)
