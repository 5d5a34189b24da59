"""The app under test: driven by keys, connected to a real server whose model executes the prompt as a script."""

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
        """Insert text at once. Tests of single keys use `press`."""
        prompt = self.app.query_one(PromptPanel)
        prompt.insert(text)
        await self.pilot.pause()

    async def paste(self, text: str) -> None:
        """Paste text, as a terminal also does for dropped files."""
        self.app.post_message(events.Paste(text))
        await self.pilot.pause()

    async def send(self, text: str) -> None:
        await self.type(text)
        await self.press("enter")

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until the condition holds. A timeout reports the text on the screen."""
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline, f"timeout; the screen shows:\n{self.text}"
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
        started = Rig(app, pilot)
        await started.until(lambda: app.is_following)
        yield started
