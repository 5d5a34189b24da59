"""Pictures of the main screens, at two sizes and in two themes: their appearance changes only on purpose.

The README shows some of them. `KEDGE_PICTURES=write .venv/bin/python -m pytest tests/tui/test_pictures.py` writes them
after a change; check them before committing.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from itertools import product
from pathlib import Path

import pytest
from textual.pilot import Pilot

from kedge.tui.app import KedgeApp
from kedge.tui.panels.approval_panel import ApprovalPanel
from kedge.tui.render.themes import ThemeName
from tests.client.standin import StandIn
from tests.tui.stage import NOON_MS, Stage

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SIZES = {"80x24": (80, 24), "140x40": (140, 40)}
THEMES: tuple[ThemeName, ...] = ("dark", "light")

Preparation = Callable[[Pilot[int]], Awaitable[None]]


async def nothing(pilot: Pilot[int]) -> None: ...


async def wait_for_keys(pilot: Pilot[int]) -> None:
    """Wait until the keys of the approval take effect: before, they are dimmed."""
    app = pilot.app
    assert isinstance(app, KedgeApp)
    while not app.part(ApprovalPanel).answerable("allow"):
        await pilot.pause(0.05)


async def open_rules(pilot: Pilot[int]) -> None:
    await wait_for_keys(pilot)
    await pilot.press("f5")


async def open_sessions(pilot: Pilot[int]) -> None:
    """Open the list. On a wide screen, wait until the preview is loaded."""
    await pilot.press("ctrl+s")
    while pilot.app.size.width >= 140 and "Why do all clients" not in shown(pilot):
        await pilot.pause(0.05)


def shown(pilot: Pilot[int]) -> str:
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def open_palette(pilot: Pilot[int]) -> None:
    await pilot.press("ctrl+k")


async def open_help(pilot: Pilot[int]) -> None:
    await pilot.press("f1")


#: By name of the picture: the server, and the preparation of the screen.
SCREENS: dict[str, tuple[Stage, Preparation]] = {
    "work": (Stage(), nothing),
    "approval": (Stage(asks=True), wait_for_keys),
    "rule": (Stage(asks=True), open_rules),
    "welcome": (Stage(is_empty=True), nothing),
    "sessions": (Stage(), open_sessions),
    "commands": (Stage(), open_palette),
    "help": (Stage(), open_help),
}


#: The other two themes differ only in colours: a sample suffices.
OTHER_THEMES: tuple[tuple[str, str, ThemeName], ...] = (
    ("approval", "80x24", "contrast"),
    ("approval", "80x24", "plain"),
    ("sessions", "80x24", "contrast"),
    ("sessions", "80x24", "plain"),
)


async def wait_while(app: KedgeApp, pilot: Pilot[int], holds: Callable[[], bool]) -> None:
    while holds():
        assert app.is_running, f"the app has ended: {app._exit_renderables or app.failure}"
        await pilot.pause(0.01)


@pytest.mark.parametrize(("name", "size", "theme"), [*product(SCREENS, SIZES, THEMES), *OTHER_THEMES])
async def test_screen_matches_its_picture(name: str, size: str, theme: ThemeName, tmp_path: Path) -> None:
    stage, prepare = SCREENS[name]
    async with StandIn(stage) as server:
        app = KedgeApp("/w", server.host, theme=theme)
        app.now_ms = lambda: NOON_MS
        async with app.run_test(size=SIZES[size]) as pilot:
            await wait_while(app, pilot, lambda: not app.is_following or app.is_busy)
            await prepare(pilot)
            await app.workers.wait_for_complete()
            await wait_while(app, pilot, lambda: app.is_busy)
            await pilot.pause()
            taken = app.export_screenshot(title="kedge")
    picture = PICTURES / f"{name}-{size}-{theme}.svg"
    if os.environ.get("KEDGE_PICTURES") == "write":
        PICTURES.mkdir(exist_ok=True)
        picture.write_text(taken)
    seen = tmp_path / picture.name
    seen.write_text(taken)
    assert picture.exists(), "no picture yet: write it with KEDGE_PICTURES=write"
    assert taken == picture.read_text(), (
        f"the screen has changed: compare {seen}; KEDGE_PICTURES=write replaces the picture"
    )
