"""The screen in a test: a real app, driven by keys, over a real server whose model does what the prompt says."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from textual import events
from textual.message import Message
from textual.pilot import Pilot

from kedge.tui.app import KedgeApp
from kedge.tui.panels.prompt_panel import PromptPanel
from tests.client.process import WAIT_S, Server


@dataclass
class Rig:
    app: KedgeApp
    pilot: Pilot[int]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        """As if it were pasted: what keys do one by one is tested where it matters."""
        prompt = self.app.query_one(PromptPanel)
        prompt.insert(text)
        await self.pilot.pause()

    async def paste(self, text: str) -> None:
        """As a terminal hands over what is pasted into it, or dropped on it."""
        self.app.post_message(events.Paste(text))
        await self.pilot.pause()

    async def send(self, text: str) -> None:
        await self.type(text)
        await self.press("enter")

    async def until(self, holds: Callable[[], bool]) -> None:
        """Pass after pass of the screen. Whoever waits in vain is shown what there is."""
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline, f"this is on the screen:\n{self.text}"
            await self.pilot.pause(0.03)

    async def shows(self, *texts: str) -> None:
        await self.until(lambda: all(text in self.text for text in texts))

    async def shows_no(self, text: str) -> None:
        await self.until(lambda: text not in self.text)

    @property
    def prompt(self) -> str:
        return self.app.query_one(PromptPanel).text

    @property
    def lines(self) -> list[str]:
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@asynccontextmanager
async def rig(
    server: Server,
    *,
    size: tuple[int, int] = (100, 30),
    session_id: str | None = None,
    state_dir: Path | None = None,
    on_message: Callable[[Message], None] | None = None,
) -> AsyncIterator[Rig]:
    app = KedgeApp(str(server.home.workspace), server.host, session_id, state_dir=state_dir)
    async with app.run_test(size=size, notifications=True, message_hook=on_message) as pilot:
        made = Rig(app, pilot)
        await made.until(lambda: app.is_following)
        yield made
