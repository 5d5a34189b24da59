"""The sessions of this workspace: find, look into, and change them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Protocol

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
from kedge.tui.key_bindings import SESSION_KEYS, spelled
from kedge.tui.panels.text_field import TextField
from kedge.tui.render.session_rows import SessionRow, rows, title_of
from kedge.tui.render.themes import Theme
from kedge.tui.screens.session_preview import SessionPreview, last_messages
from kedge.tui.screens.title_screen import TitleScreen
from kedge.wire import models as m

#: The server is asked for texts when nobody has typed for so long. Seconds.
SEARCH_PAUSE_S = 0.2
#: A session is looked into when it has been highlighted for so long: those that are passed over cost nothing. Seconds.
PREVIEW_PAUSE_S = 0.1
#: What happens elsewhere is gathered for so long before the list changes. Seconds.
GATHER_S = 0.1
#: Messages that a search is told of, the newest first. Items.
FOUND_MAX = 200
#: With fewer columns there is no preview.
WIDE_COLUMNS = 90


class Acts(Protocol):
    """What can be done with a session; the app does it, also when this screen is closed meanwhile."""

    being_deleted: set[str]
    now_ms: Callable[[], int]

    def start(self, work: Coroutine[Any, Any, None]) -> None: ...

    async def rename_session(self, session_id: str, title: str) -> None: ...

    async def delete_session(self, session_id: str) -> None: ...

    async def fork_session(self, session_id: str) -> str: ...

    async def export_session(self, session_id: str) -> None: ...

    async def undo_session(self, session_id: str) -> None: ...


class SessionList(OptionList):
    """Letters are deeds here, as in the list of queued prompts."""

    DEFAULT_CSS = """
    SessionList { width: 1fr; height: 1fr; max-height: 100%; background: $background; scrollbar-gutter: stable; }
    SessionList > .option-list--option-highlighted { text-style: bold; }
    SessionList:focus { background: $background; background-tint: $background 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *[
            Binding(key, f"screen.act('{deed}')", does, show=False)
            for keys, deed, does in SESSION_KEYS
            for key in keys.split(",")
            if len(key) == 1
        ],
        Binding("up", "up", show=False),
        Binding("slash", "screen.to_field", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="list", markup=False, compact=True)

    def action_up(self) -> None:
        """From the first one back to the field, not round to the last one."""
        if self.highlighted:
            self.action_cursor_up()
        else:
            self.screen.query_one(Input).focus()

    async def _on_click(self, event: events.Click) -> None:
        """A click chooses; one on what is chosen opens it, so that the deeds below can be clicked as well."""
        event.prevent_default()
        place = event.style.meta.get("option")
        if place is not None and place == self.highlighted:
            self.action_select()
        elif place is not None:
            self.highlighted = place


class ConfirmPrompt(Static, can_focus=True):
    """Once more, before something that cannot be taken back: exactly one key means yes."""

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
        super().__init__(id="asking", markup=False)
        self._key = ""

    def ask(self, question: str, key: str, yes: str, no: str) -> None:
        self._key = key
        said = Content.assemble(
            f"{question} ",
            _connection(f"{key} again {yes}", "answer(True)"),
            ", ",
            _connection(f"any other key {no}", "answer(False)"),
        )
        self.update(said)
        self.add_class("asked")
        self.focus()

    async def _on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.answer(is_yes=event.key == self._key)

    def _on_blur(self, event: events.Blur) -> None:
        super()._on_blur(event)
        self.answer(is_yes=False)

    def action_answer(self, is_yes: bool) -> None:
        self.answer(is_yes=is_yes)

    def answer(self, *, is_yes: bool) -> None:
        if self.has_class("asked"):
            self.remove_class("asked")
            self.post_message(self.Answered(is_yes))


class SessionsScreen(ModalScreen[str | None]):
    """Gives the session to open; None when nothing was chosen."""

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
            Binding(key, f"act('{deed}')", does, show=False, priority=True)
            for keys, deed, does in SESSION_KEYS
            for key in keys.split(",")
            if key.startswith("ctrl+")
        ],
    ]

    def __init__(self, connection: ServerConnection, view: WorkspaceView, here: str, theme: Theme, acts: Acts) -> None:
        super().__init__()
        self._connection, self._view, self._here, self._theme, self._acts = connection, view, here, theme, acts
        self._rows: list[SessionRow] = []
        self._drawn: list[tuple[str, Content]] = []
        #: Which one is highlighted, through all changes of the list.
        self._chosen_id = here
        #: By session: where the query was found in its messages.
        self._found: dict[str, str] = {}
        self._is_searching = False
        self._search_pause: Timer | None = None
        self._preview_pause: Timer | None = None
        self._gathering: Timer | None = None
        #: What is shown in the preview, and how it stood then.
        self._previewed: tuple[object, ...] = ()
        #: What is done when the question is answered with yes, and who had the focus before.
        self._deed: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._focused_before: Widget | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = "Sessions"
            yield TextField(placeholder="search titles and texts", compact=True, id="query")
            with Horizontal():
                yield SessionList()
                yield SessionPreview(self._view, self._theme)
            yield ConfirmPrompt()
            yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._begin("sessions", self._read_sessions)

    def on_resize(self) -> None:
        self.query_one("#box").set_class(self.size.width >= WIDE_COLUMNS, "wide")
        self.call_after_refresh(self._draw)

    def _begin(self, group: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Look for something beside: until it is found, something else of its group is wanted, or this is closed."""
        worker: WorkType[None] = work
        self.run_worker(worker, group=group, exclusive=True)

    async def _read_sessions(self) -> None:
        """Who else is where is told by no event."""
        at = self._connection.at
        try:
            self._view.load_sessions(
                await self._connection.retry(lambda: self._connection.client.sessions(self._connection.id)), at
            )
        except KedgeError:
            return  # what is known is shown; that the server is away is told by the screen below
        self._draw()

    # --- the list -----------------------------------------------------------------------------------------------------

    @property
    def query_text(self) -> str:
        return self.query_one(Input).value.strip()

    def tell(self, view: WorkspaceView) -> None:
        """Something has happened, here or elsewhere."""
        self._view = view
        if self._gathering is None:
            self._gathering = self.set_timer(GATHER_S, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self._draw()

    def _draw(self) -> None:
        if not self.is_attached:
            return
        listed = self.query_one(SessionList)
        self._rows = rows(self._view, self.query_text, self._found, self._here, self._acts.being_deleted)
        width, now = listed.scrollable_content_region.width, self._acts.now_ms()
        drawn = [(row.session.id, row.drawn(width, now)) for row in self._rows]
        before = self._drawn
        if [row_id for row_id, _ in drawn] == [row_id for row_id, _ in before]:
            for place, (_, line) in enumerate(drawn):
                if line != before[place][1]:
                    listed.replace_option_prompt_at_index(place, line)
        else:
            place = listed.highlighted or 0
            listed.set_options([Option(line, row_id) for row_id, line in drawn])
            ids = [row_id for row_id, _ in drawn]
            # Where the highlighted one went; if it is gone, the one that has its place now.
            listed.highlighted = ids.index(self._chosen_id) if self._chosen_id in ids else min(place, len(ids) - 1)
        self._drawn = drawn
        self._tell_rest()
        self._preview_soon()

    def _tell_rest(self) -> None:
        count = len(self._rows)
        said = f"{count} session{'s' * (count != 1)}" if count else "nothing found"
        self.query_one("#box").border_subtitle = "searching texts …" if self._is_searching else said
        is_listed = self.query_one(SessionList).has_focus
        words: list[Content] = []
        for keys, deed, _ in SESSION_KEYS:
            letter, _, anywhere = keys.partition(",")
            key = spelled(letter if is_listed or not anywhere else anywhere)
            words.append(_connection(f"{key} {deed}s" if deed == "open" else f"{key} {deed}", f"screen.act('{deed}')"))
        words.append(_connection("esc closes", "screen.close"))
        if not is_listed:
            words.append(_connection("tab to the list", "screen.to_list"))
        below = self.query_one("#keys", Static)
        below.update(_filled(words, below.size.width))

    def on_descendant_focus(self) -> None:
        self._tell_rest()

    def _chosen(self) -> m.SessionBody | None:
        place = self.query_one(SessionList).highlighted
        return self._rows[place].session if place is not None and place < len(self._rows) else None

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        if event.option.id:
            self._chosen_id = event.option.id
            self._preview_soon()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_act("open")

    # --- search -------------------------------------------------------------------------------------------------------

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._found, self._is_searching = {}, bool(self.query_text)
        if self._search_pause is not None:
            self._search_pause.stop()
        self.workers.cancel_group(self, "search")
        if self.query_text:
            self._search_pause = self.set_timer(SEARCH_PAUSE_S, self._search)
        self._drawn = []
        self._draw()
        if self._rows and self.query_text:
            self.query_one(SessionList).highlighted = 0

    def _search(self) -> None:
        self._begin("search", partial(self._look_for, self.query_text))

    async def _look_for(self, query: str) -> None:
        client = self._connection.client
        try:
            hits = await self._connection.retry(lambda: client.search(self._connection.id, query, FOUND_MAX))
        except KedgeError as error:
            self.app.notify(one_line(error.message, 500), severity="error", markup=False)
            hits = []
        self._is_searching = False
        for hit in hits:  # the newest first
            self._found.setdefault(hit.session_id, hit.snippet)
        self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_act("open")

    # --- the preview --------------------------------------------------------------------------------------------------

    def _preview_soon(self) -> None:
        session, preview = self._chosen(), self.query_one(SessionPreview)
        if not preview.display:
            return
        how = (session.id, session.updated_at, session.message_count, preview.size.width) if session else ()
        if how == self._previewed:
            return
        is_other = how[:1] != self._previewed[:1]
        self._previewed = how
        self.workers.cancel_group(self, "preview")
        if self._preview_pause is not None:
            self._preview_pause.stop()
        if is_other:
            preview.say("")
        if session is not None:
            begin = partial(self._begin, "preview", partial(self._look_into, session.id))
            self._preview_pause = self.set_timer(PREVIEW_PAUSE_S, begin)

    async def _look_into(self, session_id: str) -> None:
        preview = self.query_one(SessionPreview)
        try:
            preview.show(await last_messages(self._connection, session_id))
        except KedgeError as error:
            preview.say(one_line(error.message))

    # --- deeds --------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a question stands, keys are for the question."""
        return self._deed is None or action not in ("act", "close")

    def action_close(self) -> None:
        self.dismiss(None)

    def action_to_list(self) -> None:
        self.query_one(SessionList).focus()

    def action_to_field(self) -> None:
        self.query_one(Input).focus()

    def action_act(self, deed: str) -> None:
        session = self._chosen()
        if session is None:
            return
        session_id, acts = session.id, self._acts
        match deed:
            case "open":
                self.dismiss(session_id)
            case "rename":
                self._rename(session)
            case "delete":
                self._ask(self._what_goes(session), "d", "deletes", "keeps it", lambda: acts.delete_session(session_id))
            case "fork":
                acts.start(self._fork(session_id))
            case "export":
                acts.start(acts.export_session(session_id))
            case "undo":
                question = f"put back the files that the last run of “{title_of(session)}” changed?"
                self._ask(question, "u", "puts them back", "leaves them", lambda: acts.undo_session(session_id))

    def _what_goes(self, session: m.SessionBody) -> str:
        live = len(self._view.queue(session.id)) + (self._view.active(session.id) is not None)
        runs = f" its {live} run{'s are' if live != 1 else ' is'} cancelled first;" if live else ""
        return f"delete “{title_of(session)}”?{runs}"

    def _ask(self, question: str, key: str, yes: str, no: str, deed: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._deed, self._focused_before = deed, self.focused
        self.query_one("#keys").display = False
        self.query_one(ConfirmPrompt).ask(question, key, yes, no)

    def on_confirm_prompt_answered(self, event: ConfirmPrompt.Answered) -> None:
        event.stop()
        deed, self._deed = self._deed, None
        self.query_one("#keys").display = True
        if self.focused in (None, self.query_one(ConfirmPrompt)) and self._focused_before is not None:
            self._focused_before.focus()
        if event.is_yes and deed is not None:
            self._acts.start(self._do(deed))

    async def _do(self, deed: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._draw_soon()
        try:
            await deed()
        finally:
            self._draw_soon()

    def _draw_soon(self) -> None:
        if self.is_attached:
            self.tell(self._view)

    def _rename(self, session: m.SessionBody) -> None:
        def rename(title: str | None) -> None:
            if title and title.strip():
                self._acts.start(self._acts.rename_session(session.id, title.strip()))

        self.app.push_screen(TitleScreen("The title of this session", session.title), rename)

    async def _fork(self, session_id: str) -> None:
        if copy_id := await self._acts.fork_session(session_id):
            self._chosen_id = copy_id
            self._draw()


def _filled(words: list[Content], width: int) -> Content:
    """Side by side, on as many lines as it takes: none of them is broken."""
    lines: list[list[Content]] = [[]]
    for word in words:
        if lines[-1] and sum(len(one) + 3 for one in lines[-1]) + len(word) > width:
            lines.append([])
        lines[-1].append(word)
    return Content("\n").join(Content(" · ").join(line) for line in lines)


def _connection(words: str, action: str) -> Content:
    """Words that can be clicked."""
    return Content.styled(words, Style.from_meta({"@click": action}))
