"""The web page in headless Chromium: bytes and time of the first view, and the frames while an answer streams."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from bench.report import Line, median, p95
from bench.server import ROOT, WAIT_S, Address
from bench.setting import Setting

#: The names that scripts/chromium looks for.
NAMES = ("chromium", "chromium-browser", "google-chrome")
#: Words of one answer, and the pause before each: faster than any model. Items, milliseconds.
WORDS, PAUSE_MS = 5_000, 1
#: A frame that a user notices. Milliseconds.
LONG_FRAME_MS = 50
#: Collect the time between frames.
FOLLOW_FRAMES = """() => {
    window.frames_ms = [];
    let last = performance.now();
    const next = () => {
        const now = performance.now();
        window.frames_ms.push(now - last);
        last = now;
        requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
}"""


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser | None]:
    """Chromium, or None if it is missing."""
    path = next((path for path in map(shutil.which, NAMES) if path), None)
    if path is None:
        print("page: Chromium is missing; scripts/chromium installs it", file=sys.stderr)
        yield None
        return
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        await browser.close()


def ticket(server: Address) -> str:
    """Return the secret of a link that works once."""
    headers = {"authorization": f"Bearer {server.token}", "content-type": "application/json"}
    url = f"http://{server.host}:{server.port}/v1/web/tickets"
    with urllib.request.urlopen(urllib.request.Request(url, b"{}", headers), timeout=WAIT_S) as reply:
        return str(json.load(reply)["ticket"])


async def opened(context: BrowserContext, address: str, ready: str) -> tuple[Page, int, float]:
    """Open a page. Return it, the bytes that it received, and the milliseconds until `ready` was there."""
    page = await context.new_page()
    network = await context.new_cdp_session(page)
    received: list[int] = []

    def finished(event: dict[str, Any]) -> None:
        received.append(int(event["encodedDataLength"]))

    network.on("Network.loadingFinished", finished)
    await network.send("Network.enable")
    await page.goto(address, wait_until="commit")
    # Polled for each frame, in the page: no message to this process is included.
    ready_ms = await page.wait_for_function(
        "(ready) => document.querySelector(ready) && performance.now()", arg=ready, polling="raf"
    )
    ms = float(await ready_ms.json_value())
    await page.wait_for_load_state("load")
    return page, sum(received), ms


async def page_costs(setting: Setting) -> list[Line]:
    subprocess.run([ROOT / "scripts" / "web"], check=True)  # noqa: ASYNC221 -- no other task is running
    async with chromium() as browser, setting.client() as client:
        if browser is None:
            return []
        session = await client.session()
        server = setting.running.address
        path = f"http://{server.host}:{server.port}/w/{client.workspace_id}/s/{session}"
        first: list[tuple[int, float]] = []
        for _ in range(setting.count(10, 3)):
            async with await browser.new_context() as context:
                address = f"{path}#ticket={ticket(server)}"
                _, size, ms = await opened(context, address, "#prompt")
                first.append((size, ms))
        async with await browser.new_context() as context:
            page, _, _ = await opened(context, f"{path}#ticket={ticket(server)}", "#prompt")
            await page.evaluate(FOLLOW_FRAMES)
            await client.submit(session, f"script: pause {PAUSE_MS} | words {WORDS}")
            # As a function: the page forbids the evaluation of strings.
            done = "(word) => document.querySelector('.answer:last-of-type')?.textContent.includes(word)"
            await page.wait_for_function(done, arg=f"w{WORDS}", timeout=1000 * 5 * WAIT_S)
            frames = (await page.evaluate("window.frames_ms"))[1:]
    times = [ms for _, ms in first]
    late = sum(ms > LONG_FRAME_MS for ms in frames)
    return [
        Line("web page, bytes of the first view", max(size for size, _ in first) / 1000, "kB", "compressed, no cache"),
        Line("web page, time to interactive", median(times), "ms", f"p95 {p95(times):.0f} ms, {len(times)} samples"),
        Line(
            "web page, longest frame of 5,000 deltas",
            max(frames),
            "ms",
            f"{late} of {len(frames)} frames above {LONG_FRAME_MS} ms",
        ),
    ]
