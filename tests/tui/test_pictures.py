"""Pictures of the main screens, at two sizes and in two themes: what people see stays as it was looked at.

The README shows some of them. `KEDGE_PICTURES=write .venv/bin/python -m pytest tests/tui/test_pictures.py` makes them
anew after a change; look at them before committing.
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

QueueAction = Callable[[Pilot[int]], Awaitable[None]]


async def nothing(pilot: Pilot[int]) -> None: ...


async def look_at_the_keys(pilot: Pilot[int]) -> None:
    """They are dimmed for a moment, so that nobody answers what came a moment ago."""
    app = pilot.app
    assert isinstance(app, KedgeApp)
    while not app.part(ApprovalPanel).answerable("allow"):
        await pilot.pause(0.05)


async def open_sessions(pilot: Pilot[int]) -> None:
    """On a wide screen with a look into the first of them, which takes a moment to be read."""
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


#: Name of the picture -> what the server says, and what is done before it is taken.
SCREENS: dict[str, tuple[Stage, QueueAction]] = {
    "work": (Stage(), nothing),
    "approval": (Stage(asks=True), look_at_the_keys),
    "welcome": (Stage(is_empty=True), nothing),
    "sessions": (Stage(), open_sessions),
    "commands": (Stage(), open_palette),
    "help": (Stage(), open_help),
}


#: The other two looks have the same places for everything: a look at what their shades are.
SHADES: tuple[tuple[str, str, ThemeName], ...] = (
    *(("approval", "80x24", "contrast"), ("approval", "80x24", "plain")),
    *(("sessions", "80x24", "contrast"), ("sessions", "80x24", "plain")),
)


@pytest.mark.parametrize(("name", "size", "look"), [*product(SCREENS, SIZES, THEMES), *SHADES])
async def test_screen_matches_its_picture(name: str, size: str, look: ThemeName, tmp_path: Path) -> None:
    stage, deed = SCREENS[name]
    async with StandIn(stage) as server:
        app = KedgeApp("/w", server.host, theme=look)
        app.now_ms = lambda: NOON_MS
        async with app.run_test(size=SIZES[size]) as pilot:
            while not app.is_following or app.is_busy:
                await pilot.pause(0.01)
            await deed(pilot)
            await app.workers.wait_for_complete()
            while app.is_busy:
                await pilot.pause(0.01)
            await pilot.pause()
            taken = app.export_screenshot(title="kedge")
    picture = PICTURES / f"{name}-{size}-{look}.svg"
    if os.environ.get("KEDGE_PICTURES") == "write":
        PICTURES.mkdir(exist_ok=True)
        picture.write_text(taken)
    seen = tmp_path / picture.name
    seen.write_text(taken)
    assert picture.exists(), "there is no picture yet: make it with KEDGE_PICTURES=write"
    assert taken == picture.read_text(), f"it looks different now: compare {seen}; KEDGE_PICTURES=write takes it over"
