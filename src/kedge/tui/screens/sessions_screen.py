"""The list of sessions: search, preview and change them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.style import Style
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import WorkType

from kedge.client.safe_text import one_line
from kedge.client.view.workspace_view import WorkspaceView
from kedge.errors import KedgeError
from kedge.tui.connection import ServerConnection
from kedge.tui.key_bindings import SESSION_KEYS, key_name
from kedge.tui.panels.text_field import TextField
from kedge.tui.render.session_rows import SessionRow, session_rows, title_of
from kedge.tui.render.themes import Theme
from kedge.tui.screens.session_preview import SessionPreview
from kedge.tui.screens.title_screen import TitleScreen
from kedge.tui.state.session_actions import SessionActions
from kedge.wire import models as m

#: Pause in typing before the server is searched. Seconds.
SEARCH_PAUSE_S = 0.2
#: How long a session is highlighted before its preview is loaded. Seconds.
PREVIEW_PAUSE_S = 0.1
#: Changes are collected for this time before the list is drawn. Seconds.
REDRAW_S = 0.1
#: Messages that a search returns, the newest first. Items.
HITS_MAX = 200
#: Screens with fewer columns have no preview.
PREVIEW_COLUMNS = 90


class SessionList(OptionList):
    """The list. Letters are actions, as in the queue."""

    DEFAULT_CSS = """
    SessionList { width: 1fr; height: 1fr; max-height: 100%; background: $background; scrollbar-gutter: stable; }
    SessionList > .option-list--option-highlighted { text-style: bold; }
    SessionList:focus { background: $background; background-tint: $background 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *[
            Binding(key, f"screen.act('{action}')", description, show=False)
            for keys, action, description in SESSION_KEYS
            for key in keys.split(",")
            if len(key) == 1
        ],
        Binding("up", "up", show=False),
        Binding("slash", "screen.to_field", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="list", markup=False, compact=True)

    def action_up(self) -> None:
        """Move up; from the first session to the search field."""
        if self.highlighted:
            self.action_cursor_up()
        else:
            self.screen.query_one(Input).focus()

    def on_click(self, event: events.Click) -> None:
        """Highlight the clicked session, or open it if it is highlighted: the actions below can be clicked, too."""
        event.prevent_default()
        index = event.style.meta.get("option")
        if index is not None and index == self.highlighted:
            self.action_select()
        elif index is not None:
            self.highlighted = index


class ConfirmPrompt(Static, can_focus=True):
    """Confirmation of an action that cannot be undone: one key confirms, any other cancels."""

    DEFAULT_CSS = """
    ConfirmPrompt { height: auto; color: $warning; text-style: bold; display: none; }
    ConfirmPrompt { link-style: underline; link-color: $warning; }
    ConfirmPrompt.asked { display: block; }
    """

    class Answered(Message):
        def __init__(self, is_yes: bool) -> None:
            super().__init__()
            self.is_yes = is_yes

    def __init__(self) -> None:
        super().__init__(id="confirm", markup=False)
        self._key = ""

    def ask(self, question: str, key: str, yes: str, no: str) -> None:
        self._key = key
        confirm = _link(f"{key} again: {yes}", "answer(True)")
        cancel = _link(f"any other key: {no}", "answer(False)")
        self.update(Content.assemble(f"{question} ", confirm, ", ", cancel))
        self.add_class("asked")
        self.focus()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.answer(is_yes=event.key == self._key)

    def on_blur(self) -> None:
        self.answer(is_yes=False)

    def action_answer(self, is_yes: bool) -> None:
        self.answer(is_yes=is_yes)

    def answer(self, *, is_yes: bool) -> None:
        if self.has_class("asked"):
            self.remove_class("asked")
            self.post_message(self.Answered(is_yes))


class SessionsScreen(ModalScreen[str | None]):
    """Returns the session to open; None if the list was closed."""

    DEFAULT_CSS = """
    SessionsScreen { align: center middle; }
    SessionsScreen #box {
        width: 100%; max-width: 140; height: 100%; max-height: 40;
        border: round $accent; background: $background; padding: 0 1;
    }
    SessionsScreen Input { background: $surface; margin: 0 0 1 0; }
    SessionsScreen Horizontal { height: 1fr; }
    SessionsScreen SessionPreview { display: none; }
    SessionsScreen .wide SessionPreview { display: block; }
    SessionsScreen .wide SessionList { margin: 0 1 0 0; }
    SessionsScreen #keys { height: auto; color: $muted; link-style: none; link-color: $muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", show=False),
        Binding("down", "to_list", "to the list", show=False),
        *[
            Binding(key, f"act('{action}')", description, show=False, priority=True)
            for keys, action, description in SESSION_KEYS
            for key in keys.split(",")
            if key.startswith("ctrl+")
        ],
    ]

    def __init__(
        self,
        connection: ServerConnection,
        view: WorkspaceView,
        current: str,
        theme: Theme,
        actions: SessionActions,
        start: Callable[[Coroutine[Any, Any, None]], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`start` runs an action in the background, also after the list is closed."""
        super().__init__()
        self._connection, self._view, self._current, self._theme = connection, view, current, theme
        self._actions, self._start, self._now_ms = actions, start, now_ms
        self._rows: list[SessionRow] = []
        self._drawn: list[tuple[str, Content]] = []
        #: The highlighted session, kept when the list changes.
        self._chosen_id = current
        #: By session: the text that the search found in its messages.
        self._snippets: dict[str, str] = {}
        self._is_searching = False
        self._search_timer: Timer | None = None
        self._preview_timer: Timer | None = None
        self._redraw_timer: Timer | None = None
        #: The previewed session and its version.
        self._previewed: tuple[object, ...] = ()
        #: The action to confirm, and the widget that had the focus before.
        self._unconfirmed: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._previous_focus: Widget | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = "Sessions"
            yield TextField(placeholder="search titles and messages", compact=True, id="query")
            with Horizontal():
                yield SessionList()
                yield SessionPreview(self._view, self._theme)
            yield ConfirmPrompt()
            yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._run("sessions", self._load_sessions)

    def on_resize(self) -> None:
        self.query_one("#box").set_class(self.size.width >= PREVIEW_COLUMNS, "wide")
        self.call_after_refresh(self._draw)

    def _run(self, group: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run a worker until it is done, another of its group starts, or the screen is closed."""
        worker: WorkType[None] = work
        self.run_worker(worker, group=group, exclusive=True)

    async def _load_sessions(self) -> None:
        """Load the sessions: no event reports the attached clients of other sessions."""
        at = self._connection.at
        try:
            self._view.load_sessions(
                await self._connection.retry(lambda: self._connection.client.sessions(self._connection.id)), at
            )
        except KedgeError:
            return  # the known sessions are shown; the main screen reports the lost connection
        self._draw()

    # --- list --------------------------------------------------------------------------------------------------------

    @property
    def query_text(self) -> str:
        return self.query_one(Input).value.strip()

    def update_from(self, view: WorkspaceView) -> None:
        """Draw the list soon."""
        self._view = view
        if self._redraw_timer is None:
            self._redraw_timer = self.set_timer(REDRAW_S, self._redraw)

    def _redraw(self) -> None:
        self._redraw_timer = None
        self._draw()

    def _draw(self) -> None:
        if not self.is_attached:
            return
        listed = self.query_one(SessionList)
        self._rows = session_rows(
            self._view, self.query_text, self._snippets, self._current, self._actions.being_deleted
        )
        width, now = listed.scrollable_content_region.width, self._now_ms()
        drawn = [(row.session.id, row.content(width, now)) for row in self._rows]
        previous = self._drawn
        if [row_id for row_id, _ in drawn] == [row_id for row_id, _ in previous]:
            for index, (_, line) in enumerate(drawn):
                if line != previous[index][1]:
                    listed.replace_option_prompt_at_index(index, line)
        else:
            index = listed.highlighted or 0
            listed.set_options([Option(line, row_id) for row_id, line in drawn])
            ids = [row_id for row_id, _ in drawn]
            # Keep the highlighted session; if it is gone, highlight the one at the same index.
            listed.highlighted = ids.index(self._chosen_id) if self._chosen_id in ids else min(index, len(ids) - 1)
        self._drawn = drawn
        self._update_keys()
        self._preview_soon()

    def _update_keys(self) -> None:
        count = len(self._rows)
        summary = f"{count} session{'s' * (count != 1)}" if count else "no matches"
        self.query_one("#box").border_subtitle = "searching messages …" if self._is_searching else summary
        is_listed = self.query_one(SessionList).has_focus
        links: list[Content] = []
        for keys, action, _ in SESSION_KEYS:
            letter, _, anywhere = keys.partition(",")
            key = key_name(letter if is_listed or not anywhere else anywhere)
            links.append(_link(f"{key} {action}", f"screen.act('{action}')"))
        links.append(_link("esc close", "screen.close"))
        if not is_listed:
            links.append(_link("tab list", "screen.to_list"))
        below = self.query_one("#keys", Static)
        below.update(_wrapped(links, below.size.width))

    def on_descendant_focus(self) -> None:
        self._update_keys()

    def _chosen(self) -> m.SessionBody | None:
        index = self.query_one(SessionList).highlighted
        return self._rows[index].session if index is not None and index < len(self._rows) else None

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        if event.option.id:
            self._chosen_id = event.option.id
            self._preview_soon()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_act("open")

    # --- search ------------------------------------------------------------------------------------------------------

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._snippets, self._is_searching = {}, bool(self.query_text)
        if self._search_timer is not None:
            self._search_timer.stop()
        self.workers.cancel_group(self, "search")
        if self.query_text:
            self._search_timer = self.set_timer(SEARCH_PAUSE_S, self._search)
        self._drawn = []
        self._draw()
        if self._rows and self.query_text:
            self.query_one(SessionList).highlighted = 0

    def _search(self) -> None:
        self._run("search", partial(self._search_messages, self.query_text))

    async def _search_messages(self, query: str) -> None:
        client = self._connection.client
        try:
            hits = await self._connection.retry(lambda: client.search(self._connection.id, query, HITS_MAX))
        except KedgeError as error:
            self.app.notify(one_line(error.message, 500), severity="error", markup=False)
            hits = []
        self._is_searching = False
        for hit in hits:  # newest first: keep the newest snippet
            self._snippets.setdefault(hit.session_id, hit.snippet)
        self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_act("open")

    # --- preview -----------------------------------------------------------------------------------------------------

    def _preview_soon(self) -> None:
        session, preview = self._chosen(), self.query_one(SessionPreview)
        if not preview.display:
            return
        version = (session.id, session.updated_at, session.message_count, preview.size.width) if session else ()
        if version == self._previewed:
            return
        is_other = version[:1] != self._previewed[:1]
        self._previewed = version
        self.workers.cancel_group(self, "preview")
        if self._preview_timer is not None:
            self._preview_timer.stop()
        if is_other:
            preview.show_note("")
        if session is not None:
            load = partial(self._run, "preview", partial(self._load_preview, session.id))
            self._preview_timer = self.set_timer(PREVIEW_PAUSE_S, load)

    async def _load_preview(self, session_id: str) -> None:
        preview = self.query_one(SessionPreview)
        try:
            preview.show_messages(await self._connection.last_messages(session_id))
        except KedgeError as error:
            preview.show_note(one_line(error.message))

    # --- actions -----------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the actions while a confirmation is shown."""
        return self._unconfirmed is None or action not in ("act", "close")

    def action_close(self) -> None:
        self.dismiss(None)

    def action_to_list(self) -> None:
        self.query_one(SessionList).focus()

    def action_to_field(self) -> None:
        self.query_one(Input).focus()

    def action_act(self, action: str) -> None:
        session = self._chosen()
        if session is None:
            return
        session_id, actions = session.id, self._actions
        match action:
            case "open":
                self.dismiss(session_id)
            case "rename":
                self._rename(session)
            case "delete":
                self._confirm(
                    self._delete_question(session), "d", "delete", "keep", lambda: actions.delete_session(session_id)
                )
            case "fork":
                self._start(self._fork(session_id))
            case "export":
                self._start(actions.export_session(session_id))
            case "undo":
                question = f"undo the file changes of the last run of “{title_of(session)}”?"
                self._confirm(question, "u", "undo", "cancel", lambda: actions.undo_session(session_id))

    def _delete_question(self, session: m.SessionBody) -> str:
        live = len(self._view.queue(session.id)) + (self._view.active(session.id) is not None)
        runs = f" This cancels {live} run{'s' * (live != 1)}." if live else ""
        return f"delete “{title_of(session)}”?{runs}"

    def _confirm(
        self, question: str, key: str, yes: str, no: str, action: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._unconfirmed, self._previous_focus = action, self.focused
        self.query_one("#keys").display = False
        self.query_one(ConfirmPrompt).ask(question, key, yes, no)

    def on_confirm_prompt_answered(self, event: ConfirmPrompt.Answered) -> None:
        event.stop()
        action, self._unconfirmed = self._unconfirmed, None
        self.query_one("#keys").display = True
        if self.focused in (None, self.query_one(ConfirmPrompt)) and self._previous_focus is not None:
            self._previous_focus.focus()
        if event.is_yes and action is not None:
            self._start(self._carry_out(action))

    async def _carry_out(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._draw_soon()
        try:
            await action()
        finally:
            self._draw_soon()

    def _draw_soon(self) -> None:
        if self.is_attached:
            self.update_from(self._view)

    def _rename(self, session: m.SessionBody) -> None:
        def rename(title: str | None) -> None:
            if title and title.strip():
                self._start(self._actions.rename_session(session.id, title.strip()))

        self.app.push_screen(TitleScreen("Session title", session.title), rename)

    async def _fork(self, session_id: str) -> None:
        if copy_id := await self._actions.fork_session(session_id):
            self._chosen_id = copy_id
            self._draw()


def _wrapped(links: list[Content], width: int) -> Content:
    """Join links to lines of this width, without breaking one."""
    lines: list[list[Content]] = [[]]
    for link in links:
        if lines[-1] and sum(len(other) + 3 for other in lines[-1]) + len(link) > width:
            lines.append([])
        lines[-1].append(link)
    return Content("\n").join(Content(" · ").join(line) for line in lines)


def _link(text: str, action: str) -> Content:
    """Return a text that runs an action when it is clicked."""
    return Content.styled(text, Style.from_meta({"@click": action}))
