"""What people do with sessions from the main screen."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from textual.app import App

from kedge.tui.line import LineScreen
from kedge.tui.link import Link
from kedge.tui.model import View
from kedge.tui.models import ModelsScreen
from kedge.tui.sessions import SessionsScreen


class SessionActs(App[int]):
    """The part of the app that is about sessions as a whole."""

    link: Link
    view: View
    #: The one on the screen.
    session_id: str

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        raise NotImplementedError

    def tell(self, words: str, severity: Any = "information") -> None:
        raise NotImplementedError

    async def show_session(self, session_id: str) -> None:
        raise NotImplementedError

    async def make_session(self) -> str:
        raise NotImplementedError

    def action_new_session(self) -> None:
        async def begin() -> None:
            await self.show_session(await self.make_session())

        self.start(begin())

    async def open_session(self, session_id: str | None) -> None:
        """Show another one; None: stay."""
        if session_id and session_id != self.session_id:
            await self.show_session(session_id)

    def action_sessions(self) -> None:
        screen = SessionsScreen(self.link, self.view, self.session_id)
        self.push_screen(screen, lambda chosen: self.start(self.open_session(chosen)))

    def action_models(self) -> None:
        session = self.view.session(self.session_id)
        screen = ModelsScreen(self.link, session.model if session else "")
        self.push_screen(screen, lambda name: self.start(self._use_model(name)))

    async def _use_model(self, name: str | None) -> None:
        if name is not None:
            await self.link.client.change_session(self.link.id, self.session_id, model=name)

    def action_rename(self) -> None:
        async def rename(title: str | None) -> None:
            if title:
                await self.link.client.rename_session(self.link.id, self.session_id, title)

        session = self.view.session(self.session_id)
        screen = LineScreen("The title of this session", session.title if session else "")
        self.push_screen(screen, lambda title: self.start(rename(title)))

    def action_undo(self) -> None:
        async def undo() -> None:
            undone = await self.link.client.undo(self.link.id, self.session_id)
            self.tell(f"put back as before the run: {', '.join(map(short, undone.files))}")

        self.start(undo())

    def action_fork(self) -> None:
        async def fork() -> None:
            last = self.view.conversations[self.session_id].ordered()[-1:]
            if not last:
                self.tell("there is nothing to fork yet", "warning")
                return
            copy = await self.link.client.fork_session(self.link.id, self.session_id, last[0].body.id)
            self.view.load_sessions([copy], self.link.at)
            await self.show_session(copy.id)

        self.start(fork())

    def action_export(self) -> None:
        async def export() -> None:
            document = await self.link.client.export_session(self.link.id, self.session_id, "md")
            path = Path(self.link.path) / f"session-{self.session_id}.md"
            path.write_bytes(document)
            self.tell(f"written: {short(str(path))}")

        self.start(export())

    def action_summarize(self) -> None:
        async def summarize() -> None:
            await self.link.client.summarize(self.link.id, self.session_id)

        self.start(summarize())


def short(path: str) -> str:
    """As people write it: their home is ~."""
    home = str(Path.home())
    return "~" + path[len(home) :] if path == home or path.startswith(home + "/") else path
