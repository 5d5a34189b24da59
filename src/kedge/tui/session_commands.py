"""Commands on sessions: show one, choose its model, rename, fork."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from kedge.core.modes import Mode
from kedge.core.records import Effort
from kedge.errors import Conflict, KedgeError, NotFound
from kedge.tui.panels.prompt_panel import PromptPanel
from kedge.tui.panels.settle_timer import SETTLE_S
from kedge.tui.panels.transcript_panel import TranscriptPanel
from kedge.tui.render.themes import THEMES
from kedge.tui.screens.extensions_screen import ExtensionsScreen
from kedge.tui.screens.grants_screen import GrantsScreen
from kedge.tui.screens.jobs_screen import JobsScreen
from kedge.tui.screens.models_screen import ModelsScreen
from kedge.tui.screens.phone_screen import PhoneScreen
from kedge.tui.screens.rewind_screen import RewindScreen
from kedge.tui.screens.sessions_screen import SessionsScreen
from kedge.tui.screens.title_screen import TitleScreen
from kedge.wire import models as m
from kedge.wire.brief import prompt_text
from kedge.wire.reversal_models import RewindScope

if TYPE_CHECKING:
    from kedge.tui.app import KedgeApp

#: The cycle of the key. yolo, which needs a confirmation, is only left by it.
NEXT_MODES: dict[Mode, Mode] = {"ask": "edits", "edits": "plan", "plan": "auto", "auto": "ask", "yolo": "ask"}


class SessionCommands:
    def __init__(self, app: KedgeApp) -> None:
        self._app = app
        #: The session that is shown as soon as it is loaded.
        self._requested = ""
        #: By name; empty until they are loaded.
        self.models: dict[str, m.ModelBody] = {}
        #: Modes that the server has not confirmed yet, by session.
        self._wanted_modes: dict[str, Mode] = {}

    # --- the shown session ------------------------------------------------------------------------------------------

    async def show(self, session_id: str) -> None:
        """Load a session and show it, unless another one was requested meanwhile."""
        app, prompt = self._app, self._app.part(PromptPanel)
        self._requested = session_id
        await app.connection.load_session(app.view, session_id)
        if self._requested != session_id:
            return
        if session_id != app.session_id:
            app.prompts.on_session_change()
            if app.session_id or not prompt.text:  # text typed before the first session was loaded stays
                prompt.set_text(app.drafts.of(session_id))
        app.session_id = session_id
        app.part(TranscriptPanel).show(app.view, app.view.conversations[session_id])
        app.draw_status()
        with suppress(KedgeError):
            await app.connection.client.set_current_session(app.connection.id, session_id)
            await self._load(session_id)

    async def _load(self, session_id: str) -> None:
        """Load the session itself: no event reports how many clients are attached when it is opened."""
        app = self._app
        at = app.connection.at
        app.view.load_sessions([await app.connection.client.session(app.connection.id, session_id)], at)
        app.draw_status()

    async def show_new(self) -> None:
        await self.show(await self._app.actions.create_session())

    async def show_other(self, session_id: str | None) -> None:
        if session_id and session_id != self._app.session_id:
            await self.show(session_id)

    async def reload(self) -> None:
        """Load the shown session again, because events were missed."""
        if self._app.view.session(self._app.session_id) is None:
            await self.leave_deleted()
        else:
            await self.show(self._app.session_id)

    async def leave_deleted(self) -> None:
        """Show the session used last, or a new one. The text in the prompt is kept."""
        app = self._app
        deleted = app.session_id
        if deleted not in app.actions.being_deleted:
            app.report("another client deleted this session", "warning")
        for session in app.view.sessions():
            with suppress(NotFound):  # deleted as well
                await self.show(session.id)
                break
        else:
            await self.show_new()
        if (draft := app.drafts.take(deleted)).strip():
            app.part(PromptPanel).put_back([draft])

    def is_still_shown(self, session_id: str) -> bool:
        """Return whether a dialog's session is still shown; if not, report that nothing was changed."""
        is_shown = session_id == self._app.session_id
        if not is_shown:
            self._app.report("another session is shown now: nothing was changed", "warning")
        return is_shown

    # --- dialogs ----------------------------------------------------------------------------------------------------

    def open_list(self) -> None:
        app = self._app
        screen = SessionsScreen(
            app.connection, app.view, app.session_id, THEMES[app.theme_name], app.actions, app.start, app.now_ms
        )
        app.push_screen(screen, lambda session_id: app.start(self.show_other(session_id)))

    def update_list(self) -> None:
        for screen in self._app.screen_stack:
            if isinstance(screen, SessionsScreen | JobsScreen | ExtensionsScreen):
                screen.update_from(self._app.view)

    def open_jobs(self) -> None:
        app = self._app
        app.push_screen(JobsScreen(app.connection, app.session_id, app.start, app.now_ms))
        self.update_list()

    def open_extensions(self) -> None:
        self._app.push_screen(ExtensionsScreen(self._app.connection, self._app.view, self._app.start))

    def open_phone(self) -> None:
        app = self._app
        if app.session_id:
            app.push_screen(PhoneScreen(app.connection, app.session_id, app.start))
        else:
            app.report("no session yet: send a prompt first", "warning")

    def open_grants(self) -> None:
        app = self._app
        screen = GrantsScreen(app.connection, app.view, app.session_id, app.start, app.report, app.now_ms)
        app.push_screen(screen)

    def choose_model(self) -> None:
        app = self._app
        session = app.view.session(app.session_id)
        screen = ModelsScreen(app.connection, session.model if session else "", session.effort if session else "")
        app.push_screen(screen, partial(self._set_model, app.session_id))

    def _set_model(self, session_id: str, chosen: tuple[str, Effort] | None) -> None:
        if chosen is not None and self.is_still_shown(session_id):
            self._app.start(self._change_model(session_id, *chosen))

    async def _change_model(self, session_id: str, name: str, effort: Effort) -> None:
        connection = self._app.connection
        await connection.client.change_session(connection.id, session_id, model=name, effort=effort)
        await self.load_models()

    async def load_models(self) -> None:
        """Load the models, for the size of their contexts."""
        connection = self._app.connection
        models = await connection.retry(lambda: connection.client.models(connection.id))
        self.models = {model.model: model for model in models}
        self._app.draw_status()

    def next_mode(self) -> None:
        session = self._app.view.session(self._app.session_id)
        if session is not None:
            # Of the last request: its event may not have arrived when the key is pressed again.
            mode = NEXT_MODES[self._wanted_modes.get(session.id, session.mode)]
            self.set_mode(mode, otherwise=NEXT_MODES[mode])

    def set_mode(self, mode: Mode, otherwise: Mode | None = None) -> None:
        """`otherwise`: the mode to set instead if the machine does not support `mode`."""
        if session_id := self._app.session_id:
            self._wanted_modes[session_id] = mode
            self._app.start(self._switch(session_id, mode, otherwise))

    async def _switch(self, session_id: str, mode: Mode, otherwise: Mode | None) -> None:
        app = self._app
        if otherwise is not None and app.view.asks():
            await asyncio.sleep(SETTLE_S)  # a mode that the key only passes must not settle a pending approval
        if self._wanted_modes.get(session_id) != mode:
            return
        try:
            await app.actions.set_mode(session_id, mode)
        except Conflict as error:
            if otherwise is None:
                raise
            app.report(error.message, "warning")
            await app.actions.set_mode(session_id, otherwise)
        finally:
            if self._wanted_modes.get(session_id) == mode:
                del self._wanted_modes[session_id]
            app.draw_status()

    def rename(self) -> None:
        app = self._app
        session_id, session = app.session_id, app.view.session(app.session_id)

        def rename(title: str | None) -> None:
            if title and title.strip():
                app.start(app.actions.rename_session(session_id, title.strip()))

        app.push_screen(TitleScreen("Session title", session.title if session else ""), rename)

    async def fork(self) -> None:
        if copy_id := await self._app.actions.fork_session(self._app.session_id):
            await self.show(copy_id)
            self._app.report("this is a copy; the original session is unchanged")

    def choose_rewind(self) -> None:
        app = self._app
        conversation = app.view.conversations.get(app.session_id)
        texts = [(entry.body.id, prompt_text(entry.body)) for entry in conversation.ordered()] if conversation else []
        prompts = [(message_id, text) for message_id, text in reversed(texts) if text is not None]
        if not prompts:
            app.report("nothing to rewind: this session has no prompts", "warning")
            return
        app.push_screen(RewindScreen(prompts), partial(self._start_rewind, app.session_id))

    def _start_rewind(self, session_id: str, chosen: tuple[str, RewindScope] | None) -> None:
        if chosen is not None and self.is_still_shown(session_id):
            self._app.start(self._rewind(session_id, *chosen))

    async def _rewind(self, session_id: str, message_id: str, scope: RewindScope) -> None:
        """Rewind, and put the prompt back for editing if it left the conversation."""
        prompt = await self._app.actions.rewind_session(session_id, message_id, scope)
        if prompt and session_id == self._app.session_id:
            self._app.part(PromptPanel).put_back([prompt])

    async def summarize(self) -> None:
        await self._app.connection.client.summarize(self._app.connection.id, self._app.session_id)
