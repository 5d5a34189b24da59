"""The last messages of a session, without opening it."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from kedge.client.client import PAGE_MESSAGES
from kedge.client.view.conversation import Conversation
from kedge.client.view.workspace_view import WorkspaceView
from kedge.tui.connection import ServerConnection
from kedge.tui.render.message_renderer import MessageRenderer
from kedge.tui.render.renderer import Renderer
from kedge.tui.render.themes import Theme
from kedge.wire import models as m

#: So many Runs are looked into, counted from the end: enough to know a session again. Items.
PREVIEW_RUNS = 3
#: More lines nobody scrolls through in a preview. Lines.
PREVIEW_LINES_MAX = 200


class SessionPreview(VerticalScroll, can_focus=False):
    DEFAULT_CSS = """
    SessionPreview { width: 1fr; height: 1fr; border-left: solid $muted; padding: 0 0 0 1; }
    SessionPreview Static { height: auto; }
    """

    def __init__(self, view: WorkspaceView, theme: Theme) -> None:
        super().__init__(id="preview")
        self._view, self._theme = view, theme
        #: Not looked up: whoever has something to tell may be quicker than the screen, or later.
        self._words = Static(markup=False)

    def compose(self) -> ComposeResult:
        yield self._words

    def say(self, words: str) -> None:
        self._words.update(Text(words, "dim"))

    def show(self, messages: list[m.MessageBody]) -> None:
        conversation = Conversation()
        conversation.load(messages, 0)
        width = max(10, self.scrollable_content_region.width)
        message_renderer = MessageRenderer(self._view, Renderer(self._theme), width)
        lines = [line for entry in conversation.ordered() for line in message_renderer.message(entry, conversation)]
        if not lines:
            self.say("nothing was said here yet")
            return
        text = Text(no_wrap=True, end="")
        for line in lines[-PREVIEW_LINES_MAX:]:
            for segment in line.strip:
                text.append(segment.text, segment.style)
            text.append("\n")
        text.rstrip()
        self._words.update(text)
        self.scroll_end(animate=False, immediate=False)


async def last_messages(connection: ServerConnection, session_id: str) -> list[m.MessageBody]:
    """Those of its last Runs; of a session without any, a copy of another one for example, those at its end."""
    runs = await connection.retry(lambda: connection.client.session_runs(connection.id, session_id))
    ends = [run.message_id for run in runs if run.message_id]
    after = ends[-PREVIEW_RUNS - 1] if len(ends) > PREVIEW_RUNS else None

    async def read() -> list[m.MessageBody]:
        return await connection.client.messages(connection.id, session_id, after=after, limit=PAGE_MESSAGES)

    last: list[m.MessageBody] = []
    while True:
        page = await connection.retry(read)
        last = [*last, *page][-PAGE_MESSAGES:]
        if len(page) < PAGE_MESSAGES:
            return last
        after = page[-1].id
