"""A broken configuration file is shown on every screen."""

from __future__ import annotations

import pytest

from tests.client.process import Server
from tests.tui.rig import rig


@pytest.mark.found(
    "issue 20",
    "no screen showed that a configuration file had become invalid; each does, dialogs too, until the file is valid",
)
async def test_every_screen_shows_an_invalid_file(server: Server) -> None:
    file = server.home.workspace / "kedge.toml"
    async with rig(server) as r:
        file.write_text("smal_model = 'a/b'\n")
        await r.send("script: say one")
        await r.shows("one", "kedge.toml, line 1: unknown field", "small_model?", "stays in effect")
        for key in ("f1", "ctrl+s", "ctrl+k", "ctrl+l"):
            await r.press(key)
            await r.until(lambda: len(r.app.screen_stack) == 2)
            await r.shows("small_model?")
            await r.press("escape")
            await r.until(lambda: len(r.app.screen_stack) == 1)
        file.unlink()
        await r.send("script: say two")
        await r.shows("two")
        await r.shows_no("small_model?")
