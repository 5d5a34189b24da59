"""The screen: puts what the view knows onto the widgets, and what people want to the server."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.timer import Timer
from textual.widget import Widget

from kedge.client.attachment_files import read_attachments
from kedge.client.event_stream import StreamEvent
from kedge.client.safe_text import one_line
from kedge.client.view.conversation import ViewChanges
from kedge.client.view.workspace_view import WorkspaceView
from kedge.core.records import OFFLINE
from kedge.errors import Invalid, KedgeError
from kedge.tui.connection import ServerConnection
from kedge.tui.external_editor import edited, in_terminal
from kedge.tui.key_bindings import KEYS, KeyCommand, bindings
from kedge.tui.panels.approval_panel import ApprovalPanel, AskLine
from kedge.tui.panels.banner import Banner
from kedge.tui.panels.file_completions import FileCompletions
from kedge.tui.panels.hints import Hints
from kedge.tui.panels.prompt_panel import PromptPanel
from kedge.tui.panels.question_panel import QuestionPanel
from kedge.tui.panels.queue_panel import QueuePanel
from kedge.tui.panels.side_panel import SidePanel
from kedge.tui.panels.status_lines import RunLine, TopLine, context_percent, run_words
from kedge.tui.panels.transcript_panel import TranscriptPanel
from kedge.tui.pending_asks import AskActs
from kedge.tui.render.themes import THEMES, ThemeName
from kedge.tui.screens.help_screen import HelpScreen
from kedge.tui.screens.palette_screen import PaletteScreen
from kedge.tui.session_commands import short
from kedge.tui.state.drafts import Drafts
from kedge.tui.state.mentions import mentioned
from kedge.tui.state.prompt_history import PromptHistory
from kedge.tui.state.session_actions import SessionActions
from kedge.tui.state.shell_commands import ShellCommands
from kedge.wire import models as m

#: Events are gathered for so long before the screen changes: quick for the eye, calm for the machine. Seconds.
FRAME_S = 1 / 30
#: A second Esc within this time is for everything. Seconds.
AGAIN_S = 2.0


W = TypeVar("W", bound=Widget)


class KedgeApp(AskActs):
    BINDINGS: ClassVar[list[BindingType]] = [*bindings()]
    #: Without colours a line of the other shade says which one is chosen.
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
        """`kept`: the directory for what outlives this screen; None: nothing does."""
        super().__init__()
        self.connection = ServerConnection(path, host)
        self.view = WorkspaceView()
        self.actions = SessionActions(self.connection, self.view)
        self.session_id = ""
        self._wanted_session = session_id
        self.theme_name: ThemeName = theme
        self._drafts = Drafts(state_dir, self.connection.path)
        self._history = PromptHistory(state_dir, self.connection.path)
        self._commands = ShellCommands(self.actions, self.draw_rest)
        #: Gives the terminal to an editor. A test, which has none, puts its own here.
        self.run_editor = in_terminal(self)
        #: What a prompt does while a Run is at work: waits behind it, or goes into it.
        self.folds = False
        #: The queued Run whose text is being changed in the prompt, and what stood there before.
        self._editing: tuple[m.RunBody, str] | None = None
        self._changed = ViewChanges()
        self._frame: Timer | None = None
        self._clock: Timer | None = None
        self._stopped_at = 0.0
        self._following: asyncio.Task[None] | None = None
        self._at_work: set[asyncio.Task[None]] = set()
        self.now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
        #: A bug of ours that has ended it: told in a line, on a terminal that is as it was before.
        self.failure: Exception | None = None
        for known in THEMES.values():
            self.register_theme(known.textual_theme)
        self.theme = THEMES[theme].textual_theme.name
        self.animation_level = "none"

    def compose(self) -> ComposeResult:
        yield TopLine()
        yield Banner()
        with Horizontal(id="main"):
            yield TranscriptPanel(self.view, THEMES[self.theme_name])
            yield SidePanel()
        with Vertical(id="below"):
            yield ApprovalPanel(THEMES[self.theme_name])
            yield QuestionPanel(THEMES[self.theme_name])
            yield AskLine()
            yield RunLine()
            yield QueuePanel()
            yield (names := FileCompletions(Path(self.connection.path)))
            yield PromptPanel(names, self._history, self.connection.path)
            yield Hints()

    # --- life -------------------------------------------------------------------------------------------------------

    async def on_mount(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):  # else the terminal would stay as it is now
            asyncio.get_running_loop().add_signal_handler(number, self.exit, 128 + number)
        self.part(PromptPanel).focus()
        self.part(Banner).say("starting the server …")
        self.start(self._begin())

    async def _begin(self) -> None:
        try:
            await self.connection.open()
            await self.connection.load(self.view)
            sessions = self.view.sessions()
            wanted = self._wanted_session or (sessions[0].id if sessions else "")
            await self.show_session(wanted or await self.make_session())
        except KedgeError as error:
            self.exit(1, message=f"kedge: {one_line(error.message, 2000)}")
            return
        self.part(Banner).say("")
        self._following = asyncio.ensure_future(
            self.connection.follow(
                on_event=self._apply,
                on_connection=self._show_connection,
                on_gap=self._reload,
                on_lost=self._show_lost,
            )
        )
        self.start(self.read_models())

    async def on_unmount(self) -> None:
        self._drafts.keep()
        tasks = [*self._at_work, *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.connection.close()

    def _handle_exception(self, error: Exception) -> None:
        self.failure = error
        if self.is_headless:
            super()._handle_exception(error)  # a test wants to see all of it
        else:
            self._return_code = 1
            self._close_messages_no_wait()

    @property
    def is_busy(self) -> bool:
        """Something was begun that is not over yet."""
        return bool(self._at_work)

    @property
    def is_following(self) -> bool:
        """A session is on the screen, and what happens in it is told."""
        return self._following is not None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this beside; an error is told in a line. A bug ends the screen, as one in a key does."""

        async def told() -> None:
            try:
                await work
            except KedgeError as error:
                self.tell(error.message, "error")
            except Exception as error:
                if self.is_there:  # else the screen was gone before the work was done
                    self._handle_exception(error)

        task = asyncio.ensure_future(told())
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)

    def tell(self, words: str, severity: Any = "information") -> None:
        self.notify(one_line(words, 500), severity=severity, markup=False)

    # --- what comes over the line -----------------------------------------------------------------------------------

    def _apply(self, event: StreamEvent) -> None:
        self._changed.add(self.view.apply(event))
        self.on_session_event(event)
        self._draw_soon()

    def _show_connection(self, is_connected: bool) -> None:
        if self.is_there:
            self.part(Banner).say("" if is_connected else "connection lost; trying to resume …")

    def _show_lost(self, error: KedgeError) -> None:
        self.part(Banner).say(f"{one_line(error.message, 200)}: leave with ctrl-q and start again")

    async def _reload(self) -> None:
        self.view.forget_all()
        await self.connection.load(self.view)
        await self.show_again()

    def _draw_soon(self) -> None:
        if self._frame is None:
            self._frame = self.set_timer(FRAME_S, self._draw)

    def part(self, kind: type[W]) -> W:
        """A widget of the main screen, whatever dialog lies over it."""
        return self.screen_stack[0].query_one(kind)

    @property
    def is_there(self) -> bool:
        """Not before the first picture, and not after the last: the line to the server may be quicker, and later."""
        return self.is_running and bool(self.screen_stack) and bool(self.screen_stack[0].query(PromptPanel))

    def _draw(self) -> None:
        self._frame = None
        if not self.is_there:
            return
        changed, self._changed = self._changed, ViewChanges()
        if changed.messages or changed.order or changed.asks:
            self.part(TranscriptPanel).update_from(changed)
        if changed.moved:
            self.start(self._read_queue())
        for ask in changed.asked:
            self.tell_asked(ask)
        for ended in changed.ended:
            self.tell_ended(ended)
        self.draw_rest()

    def draw_rest(self) -> None:
        """All but the transcript: each is a few words."""
        if not self.is_there:
            return
        session = self.view.session(self.session_id)
        model = session.model if session and session.model else self._model
        self.part(TranscriptPanel).tell_model(model)
        percent = context_percent(self.view, self.session_id, self.models.get(model))
        self.part(TopLine).tell(short(self.connection.path), session, model, percent, skip=self.view.skip)
        queue = self.view.queue(self.session_id)
        self.part(QueuePanel).tell(queue)
        again = time.monotonic() - self._stopped_at < AGAIN_S
        sending = len(self.actions.sending_in(self.session_id))
        editing, now_ms = self._editing is not None, self.now_ms()
        words = self._commands.words(self.session_id, editing=editing) or run_words(
            self.view, self.session_id, now_ms, again=again, sending=sending, editing=editing
        )
        self.part(RunLine).tell(words)
        self._draw_hints()
        self.draw_asks()
        self.part(SidePanel).tell(self.view, self.session_id, self.connection.root)
        self.tell_dialogs()
        self._keep_time(is_needed=bool(words))

    def _draw_hints(self) -> None:
        if not self.session_id:  # there is nothing yet that enter could send to
            return
        busy, editing = self.view.active(self.session_id) is not None, self._editing is not None
        command = self.part(PromptPanel).is_command
        in_queue = self.part(QueuePanel).has_focus
        self.part(Hints).tell(busy=busy, folds=self.folds, editing=editing, command=command, in_queue=in_queue)

    def on_descendant_focus(self) -> None:
        if self.is_there:
            self._draw_hints()

    def _keep_time(self, *, is_needed: bool) -> None:
        """Seconds are counted while something is at work, and not a moment longer."""
        if is_needed and self._clock is None:
            self._clock = self.set_interval(1.0, self.draw_rest)
        elif not is_needed and self._clock is not None:
            self._clock.stop()
            self._clock = None

    # --- sessions ---------------------------------------------------------------------------------------------------

    @property
    def _model(self) -> str:
        return str(self.connection.workspace.config.get("model") or OFFLINE) if self._following else ""

    async def show_session(self, session_id: str) -> None:
        """Show this session, unless another one is wanted by the time it is read."""
        self._wanted_session, prompt = session_id, self.part(PromptPanel)
        await self.connection.load_session(self.view, session_id)
        if self._wanted_session != session_id:
            return
        if session_id != self.session_id:
            self._stop_editing()
            self._stopped_at = 0.0  # "again" means the Run that was stopped, and that is elsewhere
            if self.session_id or not prompt.text:  # what was written before there was one stays
                prompt.take(self._drafts.of(session_id))
        self.session_id = session_id
        self.part(TranscriptPanel).show(self.view, self.view.conversations[session_id])
        self.draw_rest()
        with suppress(KedgeError):
            await self.connection.client.set_current_session(self.connection.id, session_id)
            await self.read_session(session_id)

    # --- commands ---------------------------------------------------------------------------------------------------

    def action_palette(self) -> None:
        commands = [key for key in KEYS if key.command and key.action != "palette"]
        self.push_screen(PaletteScreen(commands), partial(self._do_command, self.session_id))

    def _do_command(self, session_id: str, chosen: KeyCommand | None) -> None:
        if chosen is not None and self.is_still_shown(session_id):
            self.call_next(self.run_action, chosen.action)

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_side(self) -> None:
        self.part(SidePanel).toggle()

    def on_resize(self, event: Resize) -> None:
        if self.is_there:
            self.part(SidePanel).take_width(event.size.width)
            self.part(QueuePanel).take_height(event.size.height)

    # --- the prompt -------------------------------------------------------------------------------------------------

    def on_prompt_panel_sent(self, event: PromptPanel.Sent) -> None:
        text = event.text.strip()
        if not self.session_id:
            self._give_back([event.text])
            return
        if self._editing is not None:
            self._save_edited(text)
            return
        self.part(TranscriptPanel).to_end()
        if text.startswith("!"):
            if command := text[1:].strip():
                self.start(self._commands.run(self.session_id, command))
            return
        try:
            # Read before anything else happens: nothing that is done later may come to the server earlier.
            files = mentioned(text, self.connection.path, self.part(PromptPanel).dropped)
            attached = read_attachments(files, self.connection.path)
        except Invalid as error:
            self.tell(error.message, "error")
            self._give_back([event.text])
            return
        run_id = self.actions.begin(self.session_id, text)
        self.draw_rest()
        self.start(self._submit(run_id, text, attached))

    def _save_edited(self, text: str) -> None:
        """A queued prompt that speaks of other files than before gets those that it speaks of now."""
        assert self._editing is not None, "asked only while one is edited"
        run, before = self._editing
        dropped = self.part(PromptPanel).dropped
        files = mentioned(text, self.connection.path, dropped)
        try:
            others = files != mentioned(run.prompt, self.connection.path, dropped)
            attached = read_attachments(files, self.connection.path) if others else None
        except Invalid as error:
            self.tell(error.message, "error")
            self._give_back([text])
            return
        self._editing = None
        self._give_back([before] if before else [])
        self.start(self._or_back(self.actions.edit(run, text, attached), text))

    def on_prompt_panel_command(self, event: PromptPanel.Command) -> None:
        self.action_palette() if event.key == "/" else self.action_help()

    def on_prompt_panel_written(self) -> None:
        if self.session_id and self._editing is None:
            self._drafts.put(self.session_id, self.part(PromptPanel).text)
        self._draw_hints()

    def action_editor(self) -> None:
        async def edit() -> None:
            prompt = self.part(PromptPanel)
            prompt.take(await edited(prompt.text, self.run_editor))

        self.start(edit())

    def action_help_quit(self) -> None:
        self.tell("ctrl-q leaves")  # Textual has ctrl+c do this when there is nothing to copy

    def on_file_completions_chosen(self, event: FileCompletions.Chosen) -> None:
        self.part(PromptPanel).complete(event.name)

    async def _submit(self, run_id: str, text: str, attached: list[m.AttachmentBody]) -> None:
        try:
            await self._or_back(self.actions.submit(run_id, attached, folds=self.folds), text)
        finally:
            self.draw_rest()

    async def _or_back(self, work: Coroutine[Any, Any, object], text: str) -> None:
        try:
            await work
        except KedgeError:
            self._give_back([text])
            raise

    def _give_back(self, texts: list[str]) -> None:
        """What was not done goes back to where it was written."""
        prompt = self.part(PromptPanel)
        prompt.take("\n\n".join([*texts, *([prompt.text] if prompt.text.strip() else [])]))

    # --- stopping ---------------------------------------------------------------------------------------------------

    def action_stop(self) -> None:
        if self.part(FileCompletions).close():
            return
        if self._editing is not None:
            self._stop_editing()
            self.draw_rest()
            return
        if self._commands.end(self.session_id):
            return
        now = time.monotonic()
        if now - self._stopped_at < AGAIN_S:
            self._stopped_at = 0.0
            self.start(self._stop_all())
        elif run_id := self.actions.to_stop(self.session_id):
            self._stopped_at = now
            self.set_timer(AGAIN_S, self.draw_rest)
            self.start(self.actions.stop_run(self.session_id, run_id))
        self.draw_rest()

    def _stop_editing(self) -> None:
        if self._editing is not None:
            (_, before), self._editing = self._editing, None
            self.part(PromptPanel).take(before)

    async def _stop_all(self) -> None:
        self._give_back(await self.actions.stop_all(self.session_id))

    def action_toggle_fold(self) -> None:
        self.folds = not self.folds
        self.draw_rest()

    # --- the queue --------------------------------------------------------------------------------------------------

    def on_queue_panel_asked(self, event: QueuePanel.Asked) -> None:
        run = event.run
        match event.deed:
            case "edit":
                prompt = self.part(PromptPanel)
                self._editing = (run, self._editing[1] if self._editing else prompt.text)
                prompt.take(run.prompt)
                prompt.focus()
                self.draw_rest()
            case "move_up":
                self.start(self.actions.move(run, -1))
            case "move_down":
                self.start(self.actions.move(run, 1))
            case "make_next":
                self.start(self.actions.move(run, -len(self.view.queue(run.session_id))))
            case "fold_in":
                self.start(self.actions.fold_in(run))
            case "remove":
                self.start(self._remove(run))

    async def _remove(self, run: m.RunBody) -> None:
        if await self.actions.remove(run):
            self._give_back([run.prompt])
        else:
            self.tell("it has begun already: esc stops it", "warning")

    async def _read_queue(self) -> None:
        await self.connection.load_runs(self.view, self.session_id)
        self.draw_rest()

    # --- looking ----------------------------------------------------------------------------------------------------

    def action_page_up(self) -> None:
        self.part(TranscriptPanel).scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        self.part(TranscriptPanel).scroll_page_down(animate=False)

    def action_to_end(self) -> None:
        self.part(TranscriptPanel).to_end()

    def action_fold_all(self) -> None:
        self.part(TranscriptPanel).fold_all()

    def action_next_theme(self) -> None:
        names = list(THEMES)
        self.theme_name = names[(names.index(self.theme_name) + 1) % len(names)]
        self.theme = THEMES[self.theme_name].textual_theme.name
        self.part(TranscriptPanel).set_theme(THEMES[self.theme_name])
        self.part(ApprovalPanel).set_theme(THEMES[self.theme_name])
        self.part(QuestionPanel).set_theme(THEMES[self.theme_name])
