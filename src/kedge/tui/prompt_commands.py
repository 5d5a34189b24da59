"""Commands on prompts: send them, change the queue, stop Runs."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kedge.client.attachment_files import read_attachments
from kedge.client.client import NOT_RECORDED
from kedge.errors import Invalid, KedgeError
from kedge.tui.external_editor import edited
from kedge.tui.key_bindings import prompt_command
from kedge.tui.panels.file_completions import FileCompletions
from kedge.tui.panels.prompt_panel import PromptPanel
from kedge.tui.panels.queue_panel import QueueAction
from kedge.tui.panels.transcript_panel import TranscriptPanel
from kedge.tui.screens.palette_screen import PaletteScreen
from kedge.tui.state.mentions import mentioned
from kedge.tui.state.shell_commands import ShellCommands
from kedge.wire import models as m

if TYPE_CHECKING:
    from kedge.tui.app import KedgeApp

#: A second Esc within this time stops all Runs of the session. Seconds.
STOP_ALL_S = 2.0


class PromptCommands:
    def __init__(self, app: KedgeApp) -> None:
        self._app = app
        self.shell = ShellCommands(app.actions, app.draw_status)
        #: Whether a prompt sent during a Run is folded into it instead of queued.
        self.folds = False
        #: The queued Run whose text is edited in the prompt, and the text that was in the prompt before.
        self._editing: tuple[m.RunBody, str] | None = None
        self._stopped_at = 0.0

    @property
    def is_editing(self) -> bool:
        return self._editing is not None

    @property
    def can_stop_all(self) -> bool:
        return time.monotonic() - self._stopped_at < STOP_ALL_S

    def on_session_change(self) -> None:
        self.discard_edit()
        self._stopped_at = 0.0  # a second Esc must not stop the Runs of another session

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(self, text: str) -> None:
        app, prompt = self._app, self._app.part(PromptPanel)
        if not app.session_id:
            prompt.put_back([text])
            return
        if self._editing is not None:
            self._save_edit(text.strip())
            return
        app.part(TranscriptPanel).to_end()
        if text.strip().startswith("!"):
            if command := text.strip()[1:].strip():
                app.start(self.shell.run(app.session_id, command))
            return
        try:
            # Synchronously, so that no later request reaches the server first.
            files = mentioned(text.strip(), app.connection.path, prompt.dropped)
            attachments = read_attachments(files, app.connection.path)
        except Invalid as error:
            app.report(error.message, "error")
            prompt.put_back([text])
            return
        run_id = app.actions.begin(app.session_id, text.strip())
        app.draw_status()
        app.start(self._submit(run_id, text.strip(), attachments))

    async def _submit(self, run_id: str, text: str, attachments: list[m.AttachmentBody]) -> None:
        try:
            await self._put_back_on_error(self._app.actions.submit(run_id, attachments, folds=self.folds), text)
        finally:
            self._app.draw_status()

    async def _put_back_on_error(self, work: Coroutine[Any, Any, object], text: str) -> None:
        try:
            await work
        except KedgeError:
            self._app.part(PromptPanel).put_back([text])
            raise

    async def open_editor(self) -> None:
        prompt = self._app.part(PromptPanel)
        prompt.set_text(await edited(prompt.text, self._app.run_editor))

    async def list_in(self, palette: PaletteScreen) -> None:
        """Add the prompt commands of the workspace to the palette."""
        with suppress(KedgeError):  # the palette has all other commands
            listed = await self._app.connection.client.commands(self._app.connection.id)
            palette.add([prompt_command(one.name, one.argument_hint, one.description) for one in listed])

    async def resources(self) -> list[str]:
        """Return the resources of MCP servers that the server knows, as `server:uri`. It starts none for this."""
        with suppress(KedgeError):  # file names are offered anyway
            listed = await self._app.connection.client.extensions(self._app.connection.id)
            return [offer[1:] for one in listed if one.kind == "mcp" for offer in one.offers if offer.startswith("@")]
        return []

    def toggle_fold(self) -> None:
        self.folds = not self.folds
        self._app.draw_status()

    # --- the queue --------------------------------------------------------------------------------------------------

    def change_queue(self, action: QueueAction, run: m.RunBody) -> None:
        app = self._app
        match action:
            case "edit":
                self._edit(run)
            case "move_up":
                app.start(app.actions.move(run, -1))
            case "move_down":
                app.start(app.actions.move(run, 1))
            case "make_next":
                app.start(app.actions.move(run, -len(app.view.queue(run.session_id))))
            case "fold_in":
                app.start(app.actions.fold_in(run))
            case "remove":
                app.start(self._remove(run))

    def _edit(self, run: m.RunBody) -> None:
        prompt = self._app.part(PromptPanel)
        self._editing = (run, self._editing[1] if self._editing else prompt.text)
        prompt.set_text(run.prompt)
        prompt.focus()
        self._app.draw_status()

    def _save_edit(self, text: str) -> None:
        """Save the edited prompt. Its attachments are replaced only if it now mentions other files."""
        assert self._editing is not None, "called only while editing"
        run, before = self._editing
        prompt, root = self._app.part(PromptPanel), self._app.connection.path
        files = mentioned(text, root, prompt.dropped)
        try:
            is_same = files == mentioned(run.prompt, root, prompt.dropped)
            attachments = None if is_same else read_attachments(files, root)
        except Invalid as error:
            self._app.report(error.message, "error")
            prompt.put_back([text])
            return
        self._editing = None
        prompt.put_back([before] if before else [])
        self._app.start(self._put_back_on_error(self._app.actions.edit(run, text, attachments), text))

    def discard_edit(self) -> bool:
        """Discard the edit and restore the text before it. Returns whether there was an edit."""
        if self._editing is None:
            return False
        (_, before), self._editing = self._editing, None
        self._app.part(PromptPanel).set_text(before)
        return True

    async def _remove(self, run: m.RunBody) -> None:
        if await self._app.actions.remove(run):
            self._app.part(PromptPanel).put_back([run.prompt])
        else:
            self._app.report("this prompt is already running; press esc to stop it", "warning")

    # --- stopping ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Esc: close the file list, else end the edit, else the shell command, else stop the Run, then all Runs."""
        app = self._app
        if app.part(FileCompletions).close() or self.discard_edit() or self.shell.stop(app.session_id):
            app.draw_status()
            return
        if self.can_stop_all:
            self._stopped_at = 0.0
            app.start(self._stop_all(app.session_id))
        elif run_id := app.actions.run_to_stop(app.session_id):
            self._stopped_at = time.monotonic()
            app.set_timer(STOP_ALL_S, app.draw_status)
            app.start(self._stop_run(app.session_id, run_id))
        app.draw_status()

    async def _stop_run(self, session_id: str, run_id: str) -> None:
        if not await self._app.actions.stop_run(session_id, run_id):
            self._app.report(NOT_RECORDED, "warning")

    async def _stop_all(self, session_id: str) -> None:
        self._app.part(PromptPanel).put_back(await self._app.actions.stop_all(session_id))
