"""What people do with sessions from the main screen."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from textual.app import App

from kedge.client.client import Client
from kedge.client.event_stream import StreamEvent
from kedge.client.view.workspace_view import WorkspaceView
from kedge.errors import KedgeError, NotFound, RunNotFound
from kedge.tui.connection import ServerConnection
from kedge.tui.key_bindings import KEYS
from kedge.tui.render.session_rows import title_of
from kedge.tui.render.themes import THEMES, ThemeName
from kedge.tui.screens.models_screen import ModelsScreen
from kedge.tui.screens.session_preview import last_messages
from kedge.tui.screens.sessions_screen import SessionsScreen
from kedge.tui.screens.title_screen import TitleScreen
from kedge.tui.state.drafts import Drafts
from kedge.wire import models as m

#: What keys of the main screen do. Leaving is possible from everywhere.
_BEHIND_DIALOGS = {key.action.partition("(")[0] for key in KEYS} - {"quit"}


class SessionActs(App[int]):
    """The part of the app that is about sessions as a whole."""

    connection: ServerConnection
    view: WorkspaceView
    #: What time it is; pictures have a time of their own.
    now_ms: Callable[[], int]
    #: The one on the screen.
    session_id: str
    theme_name: ThemeName
    #: By session: what stands in the prompt unsent.
    _drafts: Drafts

    def __init__(self) -> None:
        super().__init__()
        #: Sessions that somebody here wants deleted: no news when they are.
        self.being_deleted: set[str] = set()
        #: By name; empty until they were read.
        self.models: dict[str, m.ModelBody] = {}

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        raise NotImplementedError

    def tell(self, words: str, severity: Any = "information") -> None:
        raise NotImplementedError

    async def show_session(self, session_id: str) -> None:
        raise NotImplementedError

    def _give_back(self, texts: list[str]) -> None:
        raise NotImplementedError

    def draw_rest(self) -> None:
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a dialog is open its keys are its own: nothing behind it is stopped, approved or scrolled by them."""
        is_behind = len(self.screen_stack) > 1 and self.screen.is_modal
        return action not in _BEHIND_DIALOGS or not is_behind

    @property
    def _client(self) -> Client:
        return self.connection.client

    async def make_session(self) -> str:
        made = await self.connection.client.create_session(self.connection.id)
        self.view.load_sessions([made], self.connection.at)
        return made.id

    def is_still_shown(self, session_id: str) -> bool:
        """What a dialog was opened for is done to that session, or not at all."""
        if session_id != self.session_id:
            self.tell("another session is shown by now: nothing was done", "warning")
        return session_id == self.session_id

    # --- which one is shown -----------------------------------------------------------------------------------------

    def action_new_session(self) -> None:
        async def begin() -> None:
            await self.show_session(await self.make_session())

        self.start(begin())

    def action_sessions(self) -> None:
        screen = SessionsScreen(self.connection, self.view, self.session_id, THEMES[self.theme_name], self)
        self.push_screen(screen, lambda chosen: self.start(self.open_session(chosen)))

    async def open_session(self, session_id: str | None) -> None:
        """Show another one; None: stay."""
        if session_id and session_id != self.session_id:
            await self.show_session(session_id)

    def tell_dialogs(self) -> None:
        """What is open over the main screen follows what happens, too."""
        for screen in self.screen_stack:
            if isinstance(screen, SessionsScreen):
                screen.tell(self.view)

    def on_session_event(self, event: StreamEvent) -> None:
        """The session on the screen may be deleted, here or by somebody else: then another one is shown."""
        if event.type == "session" and event.change == "deleted" and event.payload.get("id") == self.session_id:
            self.start(self.leave_deleted())

    async def show_again(self) -> None:
        """Events were missed: the session on the screen is read anew, or is gone."""
        if self.view.session(self.session_id) is None:
            await self.leave_deleted()
        else:
            await self.show_session(self.session_id)

    async def leave_deleted(self) -> None:
        """Show the one used last, or a new one; what stands in the prompt is kept."""
        gone = self.session_id
        if gone not in self.being_deleted:
            self.tell("this session was deleted by another client", "warning")
        for session in self.view.sessions():
            with suppress(NotFound):  # that one has gone as well meanwhile
                await self.show_session(session.id)
                break
        else:
            await self.show_session(await self.make_session())
        if (typed := self._drafts.take(gone)).strip():
            self._give_back([typed])

    def action_models(self) -> None:
        session = self.view.session(self.session_id)
        screen = ModelsScreen(self.connection, session.model if session else "")
        self.push_screen(screen, partial(self._take_model, self.session_id))

    def _take_model(self, session_id: str, name: str | None) -> None:
        if name is not None and self.is_still_shown(session_id):
            self.start(self._use_model(session_id, name))

    async def _use_model(self, session_id: str, name: str) -> None:
        await self.connection.client.change_session(self.connection.id, session_id, model=name)
        await self.read_models()

    async def read_session(self, session_id: str) -> None:
        """Who else looks at it is no event: it is read when it is opened, and told with each event of the session."""
        at = self.connection.at
        self.view.load_sessions([await self.connection.client.session(self.connection.id, session_id)], at)
        self.draw_rest()

    async def read_models(self) -> None:
        """What is known of the models, for the context meter."""
        found = await self.connection.retry(lambda: self.connection.client.models(self.connection.id))
        self.models = {model.model: model for model in found}
        self.draw_rest()

    # --- deeds, for the session on the screen and for any in the list -----------------------------------------------

    async def rename_session(self, session_id: str, title: str) -> None:
        await self.connection.retry(lambda: self._client.rename_session(self.connection.id, session_id, title))

    async def delete_session(self, session_id: str) -> None:
        """Its Runs are cancelled first, and their ends waited for."""
        session = self.view.session(session_id)
        self.being_deleted.add(session_id)
        try:
            with suppress(NotFound):  # somebody else was quicker
                await self.connection.retry(lambda: self._client.delete_session(self.connection.id, session_id))
        except KedgeError:
            self.being_deleted.discard(session_id)
            raise
        self.tell(f"deleted: {title_of(session) if session else session_id}")

    async def fork_session(self, session_id: str) -> str:
        """The copy; empty when there is nothing to copy. Not repeated: it would be two."""
        last = (await last_messages(self.connection, session_id))[-1:]
        if not last:
            self.tell("there is nothing to fork yet", "warning")
            return ""
        copy = await self.connection.client.fork_session(self.connection.id, session_id, last[0].id)
        self.view.load_sessions([copy], self.connection.at)
        return copy.id

    async def export_session(self, session_id: str) -> None:
        document = await self.connection.retry(
            lambda: self._client.export_session(self.connection.id, session_id, "md")
        )
        path = Path(self.connection.path) / f"session-{session_id}.md"
        try:
            path.write_bytes(document)
        except OSError as error:
            self.tell(f"not written: {short(str(path))}: {error.strerror}", "error")
            return
        self.tell(f"written: {short(str(path))}")

    async def undo_session(self, session_id: str) -> None:
        """Not repeated: it would undo the Run before that one as well."""
        try:
            undone = await self.connection.client.undo(self.connection.id, session_id)
        except RunNotFound:
            self.tell("there is nothing to undo: no run here changed files that could be put back", "warning")
            return
        self.tell(f"put back as before the run: {', '.join(map(short, undone.files))}")

    def action_rename(self) -> None:
        session_id, session = self.session_id, self.view.session(self.session_id)

        def rename(title: str | None) -> None:
            if title and title.strip():
                self.start(self.rename_session(session_id, title.strip()))

        self.push_screen(TitleScreen("The title of this session", session.title if session else ""), rename)

    def action_undo(self) -> None:
        self.start(self.undo_session(self.session_id))

    def action_fork(self) -> None:
        async def fork(session_id: str) -> None:
            if copy_id := await self.fork_session(session_id):
                await self.show_session(copy_id)
                self.tell("this is a copy; the session it was made of is as it was")

        self.start(fork(self.session_id))

    def action_export(self) -> None:
        self.start(self.export_session(self.session_id))

    def action_summarize(self) -> None:
        async def summarize(session_id: str) -> None:
            await self.connection.client.summarize(self.connection.id, session_id)

        self.start(summarize(self.session_id))


def short(path: str) -> str:
    """As people write it: their home is ~."""
    home = str(Path.home())
    return "~" + path[len(home) :] if path == home or path.startswith(home + "/") else path
