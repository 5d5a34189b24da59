"""The last messages of a session that is not open."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from kedge.client.view.conversation import Conversation
from kedge.client.view.workspace_view import WorkspaceView
from kedge.tui.render.message_renderer import MessageRenderer
from kedge.tui.render.renderer import Renderer
from kedge.tui.render.themes import Theme
from kedge.wire import models as m

#: Enough for a preview; rendering more delays the list. Lines.
PREVIEW_LINES_MAX = 200


class SessionPreview(VerticalScroll, can_focus=False):
    DEFAULT_CSS = """
    SessionPreview { width: 1fr; height: 1fr; border-left: solid $muted; padding: 0 0 0 1; }
    SessionPreview Static { height: auto; }
    """

    def __init__(self, view: WorkspaceView, theme: Theme) -> None:
        super().__init__(id="preview")
        self._view, self._theme = view, theme
        #: Kept instead of queried: updates may arrive before the screen is mounted, or after it is closed.
        self._content = Static(markup=False)

    def compose(self) -> ComposeResult:
        yield self._content

    def show_note(self, text: str) -> None:
        self._content.update(Text(text, "dim"))

    def show_messages(self, messages: list[m.MessageBody]) -> None:
        conversation = Conversation()
        conversation.load(messages, 0)
        width = max(10, self.scrollable_content_region.width)
        renderer = MessageRenderer(self._view, Renderer(self._theme), width)
        lines = [line for entry in conversation.ordered() for line in renderer.message(entry, conversation)]
        if not lines:
            self.show_note("no messages yet")
            return
        text = Text(no_wrap=True, end="")
        for line in lines[-PREVIEW_LINES_MAX:]:
            for segment in line.strip:
                text.append(segment.text, segment.style)
            text.append("\n")
        text.rstrip()
        self._content.update(text)
        self.scroll_end(animate=False, immediate=False)
