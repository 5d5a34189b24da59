"""The app: draws the view, and passes keys to the objects that carry them out."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.notifications import SeverityLevel
from textual.timer import Timer
from textual.widget import Widget

from kedge.client.event_stream import StreamEvent
from kedge.client.safe_text import one_line
from kedge.client.view.conversation import ViewChanges
from kedge.client.view.workspace_view import WorkspaceView
from kedge.core.approvals import Answer
from kedge.core.modes import Mode
from kedge.core.records import OFFLINE
from kedge.errors import KedgeError
from kedge.tui.connection import ServerConnection
from kedge.tui.external_editor import in_terminal
from kedge.tui.key_bindings import CONFIRM_COMMANDS, KEYS, MODE_COMMANDS, TYPE_COMMAND, KeyCommand, bindings
from kedge.tui.panels.approval_panel import ApprovalPanel
from kedge.tui.panels.file_completions import FileCompletions
from kedge.tui.panels.prompt_panel import PromptPanel
from kedge.tui.panels.question_panel import QuestionPanel
from kedge.tui.panels.queue_panel import QueuePanel
from kedge.tui.panels.side_panel import SidePanel
from kedge.tui.panels.status_lines import RunLine, TopLine, context_percent, run_status
from kedge.tui.panels.status_text import AskResult, Banner, ConfigBanner, Hints
from kedge.tui.panels.transcript_panel import TranscriptPanel
from kedge.tui.pending_asks import PendingAsks
from kedge.tui.prompt_commands import PromptCommands
from kedge.tui.render.cell_width import with_tilde
from kedge.tui.render.themes import THEMES, ThemeName
from kedge.tui.screens.help_screen import HelpScreen
from kedge.tui.screens.palette_screen import PaletteScreen
from kedge.tui.session_commands import SessionCommands
from kedge.tui.state.drafts import Drafts
from kedge.tui.state.prompt_history import PromptHistory
from kedge.tui.state.session_actions import SessionActions

#: Events are collected for this time before the screen is drawn: short for the user, long enough to save work. Seconds.
FRAME_S = 1 / 30

#: Actions of the main screen. They are disabled below a dialog; quitting always works.
_MAIN_SCREEN_ACTIONS = {key.action.partition("(")[0] for key in KEYS} - {"quit"}

W = TypeVar("W", bound=Widget)


class KedgeApp(App[int]):
    BINDINGS: ClassVar[list[BindingType]] = [*bindings()]
    #: Without colours, a different shade marks the highlighted line.
    CSS = """
    Screen { overflow: hidden; }
    #main { height: 1fr; layers: default above; }
    #below { height: auto; }
    .-theme-kedge-plain OptionList > .option-list--option-highlighted { color: white; background: #606060; }
    .-theme-kedge-plain QueuePanel:blur > .option-list--option-highlighted {
        color: $foreground; background: $background;
    }
    """
    ENABLE_COMMAND_PALETTE = False
    TITLE = "kedge"

    def __init__(
        self,
        path: str,
        host: str | None = None,
        session_id: str | None = None,
        theme: ThemeName = "dark",
        state_dir: Path | None = None,
    ) -> None:
        """`state_dir`: the directory for drafts and prompt history; None: they are not saved."""
        super().__init__()
        self.connection = ServerConnection(path, host)
        self.view = WorkspaceView()
        self.actions = SessionActions(self.connection, self.view, self.report)
        #: The shown session; empty until the first one is loaded.
        self.session_id = ""
        self._first_session = session_id
        self.theme_name: ThemeName = theme
        self.drafts = Drafts(state_dir, self.connection.path)
        self._history = PromptHistory(state_dir, self.connection.path)
        self.sessions = SessionCommands(self)
        self.prompts = PromptCommands(self)
        self.asks = PendingAsks(self)
        #: Runs an editor in the terminal. Tests, which have no terminal, replace it.
        self.run_editor = in_terminal(self)
        #: The current time; pictures use a fixed one.
        self.now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
        self._changes = ViewChanges()
        self._frame: Timer | None = None
        self._clock: Timer | None = None
        self._following: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: The bug that ended the app. The CLI reports it after the terminal is restored.
        self.failure: Exception | None = None
        for known in THEMES.values():
            self.register_theme(known.textual_theme)
        self.theme = THEMES[theme].textual_theme.name
        self.animation_level = "none"

    def compose(self) -> ComposeResult:
        yield TopLine()
        yield Banner()
        yield ConfigBanner()
        with Horizontal(id="main"):
            yield TranscriptPanel(self.view, THEMES[self.theme_name])
            yield SidePanel()
        with Vertical(id="below"):
            yield (approval := ApprovalPanel(THEMES[self.theme_name]))
            yield QuestionPanel(THEMES[self.theme_name])
            yield AskResult()
            yield RunLine()
            yield QueuePanel()
            yield (completions := FileCompletions(Path(self.connection.path), self.prompts.resources))
            yield PromptPanel(completions, approval, self._history, self.connection.path)
            yield Hints()

    # --- lifecycle --------------------------------------------------------------------------------------------------

    async def on_mount(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):  # the default action would not restore the terminal
            asyncio.get_running_loop().add_signal_handler(number, self.exit, 128 + number)
        self.screen_change_signal.subscribe(self, lambda _: self._draw_config_problem())
        self.part(PromptPanel).focus()
        self.part(Banner).set_text("starting the server …")
        self.start(self._connect())

    async def _connect(self) -> None:
        try:
            await self.connection.open()
            await self.connection.load(self.view)
            sessions = self.view.sessions()
            session_id = self._first_session or (sessions[0].id if sessions else "")
            await self.sessions.show(session_id or await self.actions.create_session())
        except KedgeError as error:
            self.exit(1, message=f"kedge: {one_line(error.message, 2000)}")
            return
        self.part(Banner).set_text("")
        following = self.connection.follow(
            on_event=self._apply,
            on_connection=self._show_connection,
            on_gap=self._reload,
            on_lost=self._show_lost,
        )
        self._following = asyncio.ensure_future(following)
        self.start(self.sessions.load_models())

    async def on_unmount(self) -> None:
        self.drafts.save()
        tasks = [*self._tasks, *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.connection.close()

    def _handle_exception(self, error: Exception) -> None:
        self.failure = error
        if self.is_headless:
            super()._handle_exception(error)  # tests need the traceback
        else:
            self._return_code = 1
            self._close_messages_no_wait()

    @property
    def is_busy(self) -> bool:
        """True while a task started with `start` is running."""
        return bool(self._tasks)

    @property
    def is_following(self) -> bool:
        """True once a session is shown and its events are followed."""
        return self._following is not None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task in the background. Its error is reported; a bug ends the app, like a bug in a key handler."""

        async def run() -> None:
            try:
                await work
            except KedgeError as error:
                self.report(error.message, "error")
            except Exception as error:
                if self.is_ready:  # else the screen was closed before the task was done
                    self._handle_exception(error)

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def report(self, text: str, severity: SeverityLevel = "information") -> None:
        self.notify(one_line(text, 500), severity=severity, markup=False)

    # --- events of the server ---------------------------------------------------------------------------------------

    def _apply(self, event: StreamEvent) -> None:
        self._changes.add(self.view.apply(event))
        if event.type == "session" and event.change == "deleted" and event.payload.get("id") == self.session_id:
            self.start(self.sessions.leave_deleted())
        if self._frame is None:
            self._frame = self.set_timer(FRAME_S, self._draw)

    def _show_connection(self, is_connected: bool) -> None:
        if not is_connected:
            self.view.config_problem = ""  # the next stream sends it again, if it still holds
        if self.is_ready:
            lost = f"connection lost; reconnecting … {one_line(self.connection.start_error, 500)}".rstrip()
            self.part(Banner).set_text("" if is_connected else lost)

    def _show_lost(self, error: KedgeError) -> None:
        self.part(Banner).set_text(f"{one_line(error.message, 200)}: press ctrl-q to quit, then start kedge again")

    async def _reload(self) -> None:
        self.view.reset()
        await self.connection.load(self.view)
        await self.sessions.reload()

    # --- drawing ----------------------------------------------------------------------------------------------------

    def part(self, kind: type[W]) -> W:
        """Return a widget of the main screen, even below a dialog."""
        return self.screen_stack[0].query_one(kind)

    @property
    def is_ready(self) -> bool:
        """True while the main screen exists: events can arrive before it is mounted and after it is closed."""
        return self.is_running and bool(self.screen_stack) and bool(self.screen_stack[0].query(PromptPanel))

    def _draw(self) -> None:
        self._frame = None
        if not self.is_ready:
            return
        changes, self._changes = self._changes, ViewChanges()
        if changes.messages or changes.order or changes.asks:
            self.part(TranscriptPanel).update_from(changes)
        if changes.moved:
            self.start(self._load_queue())
        if self.session_id in changes.files:
            self.start(self._load_files())
        for ask in changes.asked:
            self.asks.on_asked(ask)
        for ended in changes.ended:
            self.asks.on_ended(ended)
        self.draw_status()

    async def _load_queue(self) -> None:
        await self.connection.load_runs(self.view, self.session_id)
        self.draw_status()

    async def _load_files(self) -> None:
        await self.connection.load_files(self.view, self.session_id)
        self.draw_status()

    def draw_status(self) -> None:
        """Draw everything except the transcript."""
        if not self.is_ready:
            return
        session = self.view.session(self.session_id)
        model = session.model if session and session.model else self._default_model
        self.part(TranscriptPanel).set_model(model)
        percent = context_percent(self.view, self.session_id, self.sessions.models.get(model))
        self.part(TopLine).set_state(with_tilde(self.connection.path), session, model, percent)
        self.part(QueuePanel).set_runs(self.view.queue(self.session_id))
        is_editing = self.prompts.is_editing
        status = self.prompts.shell.status(self.session_id, editing=is_editing) or run_status(
            self.view,
            self.session_id,
            self.now_ms(),
            can_stop_all=self.prompts.can_stop_all,
            sending=len(self.actions.sending_in(self.session_id)),
            editing=is_editing,
        )
        self.part(RunLine).set_pieces(status)
        self._draw_config_problem()
        self._draw_hints()
        self.asks.draw()
        self.part(SidePanel).update_from(self.view, self.session_id, self.connection.root, self.now_ms())
        self.sessions.update_list()
        is_kept = session is not None and any(job.state == "running" for job in session.jobs)
        self._run_clock(is_needed=bool(status) or is_kept)

    def _draw_config_problem(self) -> None:
        """Show it on the current screen; a dialog gets its own banner."""
        problem = one_line(self.view.config_problem, 1000)
        if not self.screen.query(ConfigBanner):
            if not problem:
                return
            self.screen.mount(ConfigBanner())
        self.screen.query_one(ConfigBanner).set_text(problem)

    @property
    def _default_model(self) -> str:
        return str(self.connection.workspace.config.get("model") or OFFLINE) if self._following else ""

    def _draw_hints(self) -> None:
        if not (self.session_id and self.is_ready):  # Enter cannot send anything yet, or the screens are closed
            return
        self.part(Hints).set_state(
            busy=self.view.active(self.session_id) is not None,
            folds=self.prompts.folds,
            editing=self.prompts.is_editing,
            command=self.part(PromptPanel).is_command,
            in_queue=self.part(QueuePanel).has_focus,
        )

    def on_descendant_focus(self) -> None:
        if self.is_ready:
            self._draw_hints()

    def _run_clock(self, *, is_needed: bool) -> None:
        """Redraw every second while a duration is shown, and only then."""
        if is_needed and self._clock is None:
            self._clock = self.set_interval(1.0, self.draw_status)
        elif not is_needed and self._clock is not None:
            self._clock.stop()
            self._clock = None

    def on_resize(self, event: Resize) -> None:
        if self.is_ready:
            self.part(SidePanel).set_screen_width(event.size.width)
            self.part(QueuePanel).set_screen_height(event.size.height)

    # --- messages of the panels -------------------------------------------------------------------------------------

    def on_prompt_panel_sent(self, event: PromptPanel.Sent) -> None:
        self.prompts.send(event.text)

    def on_prompt_panel_command(self, event: PromptPanel.Command) -> None:
        self.action_palette() if event.key == "/" else self.action_help()

    def on_prompt_panel_edited(self) -> None:
        if self.is_ready and self.session_id and not self.prompts.is_editing:
            self.drafts.put(self.session_id, self.part(PromptPanel).text)
        self._draw_hints()

    def on_file_completions_chosen(self, event: FileCompletions.Chosen) -> None:
        self.part(PromptPanel).complete(event.name)

    def on_queue_panel_requested(self, event: QueuePanel.Requested) -> None:
        self.prompts.change_queue(event.action, event.run)

    def on_question_panel_answered(self, event: QuestionPanel.Answered) -> None:
        self.start(self.asks.answer_questions(event.batch_id, event.responses))

    def on_question_panel_left(self) -> None:
        self.part(PromptPanel).focus()

    # --- actions ----------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable keys of the main screen below a dialog, and keys of an Ask while none is shown."""
        if len(self.screen_stack) > 1 and self.screen.is_modal and action in _MAIN_SCREEN_ACTIONS:
            return False
        if action in ("ask_page", "to_question"):
            is_shown = self.asks.is_shown if action == "ask_page" else self.asks.is_question_shown
            return is_shown and self.screen is self.default_screen
        return super().check_action(action, parameters)

    def action_palette(self) -> None:
        palette = PaletteScreen([key for key in KEYS if key.command and key.action != "palette"])
        self.push_screen(palette, partial(self._run_command, self.session_id))
        self.start(self.prompts.list_in(palette))

    def _run_command(self, session_id: str, command: KeyCommand | None) -> None:
        if command is None or not self.sessions.is_still_shown(session_id):
            return
        if command.action == TYPE_COMMAND:
            self.part(PromptPanel).set_text(f"{command.command} ")
        else:
            self.call_next(self.run_action, command.action)

    def action_next_mode(self) -> None:
        self.sessions.next_mode()

    def action_mode(self) -> None:
        self.push_screen(PaletteScreen(list(MODE_COMMANDS)), partial(self._run_command, self.session_id))

    def action_set_mode(self, mode: Mode) -> None:
        if mode == "yolo":
            self.push_screen(PaletteScreen(list(CONFIRM_COMMANDS)), partial(self._run_command, self.session_id))
        else:
            self.sessions.set_mode(mode)

    def action_ask_nothing(self) -> None:
        self.sessions.set_mode("yolo")

    def action_keep_mode(self) -> None: ...

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_help_quit(self) -> None:
        self.report("press ctrl-q to quit")  # Textual binds ctrl+c to this action when there is nothing to copy

    def action_stop(self) -> None:
        self.prompts.stop()

    def action_toggle_fold(self) -> None:
        self.prompts.toggle_fold()

    def action_editor(self) -> None:
        self.start(self.prompts.open_editor())

    def action_approve(self, action: Answer) -> None:
        self.asks.approve(action)

    def action_choose_rule(self) -> None:
        self.asks.choose_rule()

    def action_deny(self) -> None:
        self.asks.deny()

    def action_ask_page(self, by: int) -> None:
        self.asks.page(by)

    def action_to_question(self) -> None:
        self.part(QuestionPanel).take_focus()

    def action_focus_next(self) -> None:
        if not self.asks.focus_question():
            super().action_focus_next()

    def action_new_session(self) -> None:
        self.start(self.sessions.show_new())

    def action_sessions(self) -> None:
        self.sessions.open_list()

    def action_jobs(self) -> None:
        self.sessions.open_jobs()

    def action_extensions(self) -> None:
        self.sessions.open_extensions()

    def action_phone(self) -> None:
        self.sessions.open_phone()

    def action_grants(self) -> None:
        self.sessions.open_grants()

    def action_models(self) -> None:
        self.sessions.choose_model()

    def action_rename(self) -> None:
        self.sessions.rename()

    def action_fork(self) -> None:
        self.start(self.sessions.fork())

    def action_summarize(self) -> None:
        self.start(self.sessions.summarize())

    def action_undo(self) -> None:
        self.start(self.actions.undo_session(self.session_id))

    def action_rewind(self) -> None:
        self.sessions.choose_rewind()

    def action_redo(self) -> None:
        self.start(self.actions.redo_session(self.session_id))

    def action_export(self) -> None:
        self.start(self.actions.export_session(self.session_id))

    def action_page_up(self) -> None:
        self.part(TranscriptPanel).scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        self.part(TranscriptPanel).scroll_page_down(animate=False)

    def action_to_end(self) -> None:
        self.part(TranscriptPanel).to_end()

    def action_fold_all(self) -> None:
        self.part(TranscriptPanel).fold_all()

    def action_side(self) -> None:
        self.part(SidePanel).toggle()

    def action_next_theme(self) -> None:
        names = list(THEMES)
        self.theme_name = names[(names.index(self.theme_name) + 1) % len(names)]
        theme = THEMES[self.theme_name]
        self.theme = theme.textual_theme.name
        self.part(TranscriptPanel).set_theme(theme)
        self.part(ApprovalPanel).set_theme(theme)
        self.part(QuestionPanel).set_theme(theme)
