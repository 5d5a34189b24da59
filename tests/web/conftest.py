"""Chromium for the tests of the web page. Where it is missing they are skipped, but never in CI.

A module that uses it has one event loop: `pytestmark = pytest.mark.asyncio(loop_scope="module")`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from tests.source import ROOT

#: The names that scripts/chromium looks for.
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def web_page() -> Path:
    """The directory of the built page."""
    subprocess.run([ROOT / "scripts" / "web"], check=True)
    return ROOT / "src" / "kedge" / "web_page"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    path = next((path for path in map(shutil.which, NAMES) if path), None)
    if path is None:
        reason = "Chromium is missing; scripts/chromium installs it"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    # The sandbox of Chromium refuses to run as root; the pages are our own.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        await browser.close()


class Console:
    """The errors that a page logged, with those of its Content-Security-Policy. A test removes those it expects."""

    def __init__(self, page: Page) -> None:
        self.errors: list[str] = []
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def expect(self, text: str) -> None:
        """Remove the errors that contain this text; there must be one."""
        expected = [error for error in self.errors if text in error]
        assert expected, f"no error has {text!r}: {self.errors}"
        self.errors = [error for error in self.errors if error not in expected]


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A tab with its own storage."""
    async with await browser.new_context() as context:
        yield await context.new_page()


@pytest_asyncio.fixture(loop_scope="module")
async def console(page: Page) -> AsyncIterator[Console]:
    """The errors of the page, of which none may be left at the end of the test."""
    console = Console(page)
    yield console
    assert console.errors == []
