"""The transcript: scrolls, follows its end, folds."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from kedge.client.view.conversation import Conversation, ViewChanges
from kedge.client.view.workspace_view import WorkspaceView
from kedge.tui.render.message_renderer import MessageRenderer
from kedge.tui.render.renderer import Renderer
from kedge.tui.render.themes import Theme
from kedge.tui.render.tool_cards import FoldState
from kedge.tui.render.transcript_layout import LineAnchor, TranscriptLayout
from kedge.tui.render.welcome import welcome

#: Longer lines are hard to read; the rest of the width stays empty. Columns.
TEXT_WIDTH_MAX = 160
#: Rendering the lines near the view changes the layout's height, and with it which lines are near. Two or three rounds
#: suffice; if not, the next call continues. Rounds.
SETTLING_MAX = 8
#: Shown at the bottom right while new lines are below the view.
NEWS = " ↓ new lines below (ctrl-end) "


class TranscriptPanel(ScrollView, can_focus=False):
    DEFAULT_CSS = """
    TranscriptPanel { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; overflow-y: scroll; padding: 0 1; }
    """

    class Followed(Message):
        """`follows` has changed."""

    def __init__(self, view: WorkspaceView, theme: Theme) -> None:
        super().__init__(id="transcript")
        self._view, self._theme = view, theme
        self._conversation = Conversation()
        self._folds = FoldState()
        self._layout = TranscriptLayout(MessageRenderer(view, Renderer(theme), 80, self._folds), self._conversation)
        self._model = ""
        self._welcome: list[Strip] = []
        #: Whether the view moves with new lines: while its end is visible.
        self.follows = True
        #: Whether new lines arrived below the view.
        self.has_news = False
        #: The first visible line, unless the end is followed.
        self._top: LineAnchor | None = None
        self._is_settling = False
        #: The rows that were drawn last.
        self._painted: list[Strip] = []

    # --- content ----------------------------------------------------------------------------------------------

    def show(self, view: WorkspaceView, conversation: Conversation) -> None:
        """Show a conversation, from its end."""
        self._view, self._conversation, self._top = view, conversation, None
        self._set_follows(True)
        self._make_layout()

    def set_theme(self, theme: Theme) -> None:
        self._theme = theme
        self._make_layout()

    def set_model(self, model: str) -> None:
        """Set the model of the next Run: an empty transcript explains how to configure one."""
        if model != self._model:
            self._model = model
            self._make_welcome()
            self._repaint()

    def update_from(self, changes: ViewChanges) -> None:
        end = self._layout.height
        if changes.order:
            self._layout.update_order()
        self._layout.redraw(changes.messages)
        if not self.follows and self._layout.height > end:
            self.has_news = True
        self._settle()

    def _make_layout(self) -> None:
        width = max(20, min(self.scrollable_content_region.width, TEXT_WIDTH_MAX))
        message_renderer = MessageRenderer(self._view, Renderer(self._theme), width, self._folds)
        self._layout = TranscriptLayout(message_renderer, self._conversation)
        self._layout.update_order()
        self._make_welcome()
        self._settle()

    def _make_welcome(self) -> None:
        self._welcome = welcome(
            self._model, self._layout.message_renderer.renderer, self._layout.message_renderer.width
        )

    def on_resize(self, event: events.Resize) -> None:
        if min(self.scrollable_content_region.width, TEXT_WIDTH_MAX) != self._layout.message_renderer.width:
            self._make_layout()
        else:
            self._settle()

    # --- scrolling --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Render everything near the view, and keep the visible lines where they are."""
        if self._is_settling:
            return
        height = max(1, self.scrollable_content_region.height)
        y = self._y_of_top(height)
        for _ in range(SETTLING_MAX):
            moved = self._layout.make_exact(y - height, 3 * height)
            y = self._y_of_top(height)
            if not moved:
                break
        self._is_settling = True
        try:
            self.virtual_size = Size(self._layout.message_renderer.width, self._layout.height)
            self.scroll_target_y = self.scroll_y = y
        finally:
            self._is_settling = False
        self._repaint()

    def _y_of_top(self, height: int) -> int:
        last = max(0, self._layout.height - height)
        y = None if self.follows or self._top is None else self._layout.y_of(self._top)
        return last if y is None else min(y, last)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._is_settling or round(old_value) == round(new_value):
            return
        # The user has scrolled.
        self._top = self._layout.anchor_at(round(new_value))
        self._set_follows(round(new_value) >= self.max_scroll_y)
        self._settle()

    def _set_follows(self, follows: bool) -> None:
        if follows:
            self.has_news = False
        if follows != self.follows:
            self.follows = follows
            self.post_message(self.Followed())

    def to_end(self) -> None:
        self._set_follows(True)
        self._settle()

    def fold_all(self) -> None:
        """Unfold everything, or fold everything again."""
        self._folds.toggle_all()
        self._layout.redraw_all()
        self._settle()

    # --- drawing ----------------------------------------------------------------------------------------------------

    def _repaint(self) -> None:
        """Refresh only the rows that changed: a streaming answer changes few of them."""
        size = self.scrollable_content_region.size
        rows = [self._row(y, size.width) for y in range(size.height)]
        if len(rows) != len(self._painted):
            self.refresh()
        else:
            changed = [y for y, row in enumerate(rows) if row is not self._painted[y] and row != self._painted[y]]
            if changed:
                self.refresh(*(Region(0, y, size.width, 1) for y in changed))
        self._painted = rows

    def _row(self, y: int, width: int) -> Strip:
        """Return a row of the view, without the selection."""
        if not self._layout.height:
            strip = self._welcome[y] if y < len(self._welcome) else Strip.blank(width)
        else:
            line = self._layout.line(round(self.scroll_y) + y)
            strip = line.strip if line else Strip.blank(width)
        if self.has_news and y == self.scrollable_content_region.height - 1 and width > len(NEWS):
            news = Segment(NEWS, self._layout.message_renderer.renderer.style("k.accent") + Style(reverse=True))
            strip = Strip.join([strip.adjust_cell_length(width - len(NEWS)), Strip([news], len(NEWS))])
        return strip

    def render_line(self, y: int) -> Strip:
        number = round(self.scroll_y) + y
        width = self.scrollable_content_region.width
        strip = self._row(y, width)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(number)) is not None:
            first, last = (cell_len(strip.text[:x]) if x >= 0 else width for x in span)
            selected = self.screen.get_component_rich_style("screen--selection")
            pieces = strip.adjust_cell_length(width).divide([first, last, width])
            strip = Strip.join([piece.apply_style(selected) if n == 1 else piece for n, piece in enumerate(pieces)])
        return strip.adjust_cell_length(width).apply_style(self.rich_style).apply_offsets(0, number)

    # --- the mouse --------------------------------------------------------------------------------------------------

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text without margins and bars."""
        first = selection.start.y if selection.start else 0
        last = selection.end.y if selection.end else self._layout.height - 1
        texts: list[str] = []
        for y in range(first, last + 1):
            line, span = self._layout.line(y), selection.get_span(y)
            if line is None or span is None:
                texts.append("")
                continue
            text = line.strip.text
            end = len(text) if span[1] < 0 else span[1]
            texts.append(text[max(span[0], line.lead) : end].rstrip())
        return "\n".join(texts), "\n"

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or self.text_selection is not None:
            return
        if self.has_news and offset.y == self.scrollable_content_region.height - 1:
            self.to_end()
            return
        line = self._layout.line(round(self.scroll_y) + offset.y)
        if line is not None and line.fold:
            self._fold(line.fold, offset.y)

    def _fold(self, key: str, row: int) -> None:
        """Fold or unfold, and keep the clicked row under the pointer."""
        clicked = self._layout.anchor_at(round(self.scroll_y) + row)
        self._layout.fold(key)
        y = self._layout.y_of(clicked) if clicked else None
        if y is not None and not self.follows:
            self._top = self._layout.anchor_at(max(0, y - row))
        self._settle()
