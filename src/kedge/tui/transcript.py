"""The transcript on the screen: a sheet that is scrolled, follows the end while people look at it, and folds."""

from __future__ import annotations

from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from kedge.tui.draw import Drawer
from kedge.tui.looks import Look
from kedge.tui.model import Changed, Conversation, View
from kedge.tui.pen import Pen
from kedge.tui.sheet import Sheet

#: Text wider than this is hard to read; what is left over stays empty. Columns.
TEXT_WIDTH_MAX = 160


class Transcript(ScrollView, can_focus=True):
    DEFAULT_CSS = """
    Transcript { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; overflow-y: scroll; padding: 0 1; }
    """

    class Followed(Message):
        """Whether the end is in view has changed."""

    def __init__(self, view: View, look: Look) -> None:
        super().__init__(id="transcript")
        self._view, self._look = view, look
        self._conversation = Conversation()
        self._sheet = Sheet(Drawer(view, Pen(look), 80), self._conversation)
        #: Whether new lines move the view on: while its end is looked at.
        self.follows = True

    # --- what is shown ----------------------------------------------------------------------------------------------

    def show(self, view: View, conversation: Conversation) -> None:
        """Another conversation, or the same one read anew; from its end."""
        self._view, self._conversation, self.follows = view, conversation, True
        self._make_sheet()

    def take_look(self, look: Look) -> None:
        self._look = look
        self._make_sheet()

    def update_from(self, changed: Changed) -> None:
        if changed.order:
            self._sheet.take_order()
        self._sheet.redraw(changed.messages)
        if changed.asks:
            self._sheet.redraw_all()
        self._settle()

    def _make_sheet(self) -> None:
        width = max(20, min(self.scrollable_content_region.width, TEXT_WIDTH_MAX))
        drawer = Drawer(self._view, Pen(self._look), width)
        drawer.unfolded, drawer.unfolds_all = self._sheet.drawer.unfolded, self._sheet.drawer.unfolds_all
        self._sheet = Sheet(drawer, self._conversation)
        self._sheet.take_order()
        self._settle()

    def on_resize(self, event: events.Resize) -> None:
        if self.scrollable_content_region.width != self._sheet.drawer.width:
            self._make_sheet()
        else:
            self._settle()

    # --- scrolling --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Everything near what is looked at is drawn, and what is looked at stays where it is."""
        height = max(1, self.scrollable_content_region.height)
        for _ in range(4):
            top = self._sheet.height - height if self.follows else round(self.scroll_y)
            shift = self._sheet.make_exact(top - height, 3 * height, top)
            self.virtual_size = Size(self._sheet.drawer.width, self._sheet.height)
            if self.follows:
                self.scroll_to(y=max(0, self._sheet.height - height), animate=False)
            elif shift:
                self.scroll_to(y=max(0, round(self.scroll_y) + shift), animate=False)
            if not shift:
                break
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) == round(new_value):
            return
        at_end = round(new_value) >= self.max_scroll_y
        if at_end != self.follows:
            self.follows = at_end
            self.post_message(self.Followed())
        if not self.follows:
            self.call_next(self._settle)

    def to_end(self) -> None:
        self.follows = True
        self._settle()
        self.post_message(self.Followed())

    def fold_all(self) -> None:
        """Unfold everything that is folded; if nothing is, fold it all."""
        self._sheet.drawer.unfolds_all = not self._sheet.drawer.unfolds_all
        self._sheet.redraw_all()
        self._settle()

    # --- drawing ----------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        place = self.scroll_offset.y + y
        width = self.scrollable_content_region.width
        line = self._sheet.line(place)
        strip = line.strip if line else Strip.blank(width)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(place)) is not None:
            first, last = span
            last = width if last == -1 else last
            chosen = self.screen.get_component_rich_style("screen--selection")
            pieces = strip.divide([first, last, strip.cell_length])
            strip = Strip.join([piece.apply_style(chosen) if n == 1 else piece for n, piece in enumerate(pieces)])
        return strip.adjust_cell_length(width).apply_style(self.rich_style).apply_offsets(0, place)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        first = selection.start.y if selection.start else 0
        last = selection.end.y if selection.end else self._sheet.height - 1
        text = "\n" * first + "\n".join(self._sheet.text(first, last))
        return selection.extract(text), "\n"

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset(self)
        if place is None:
            return
        line = self._sheet.line(self.scroll_offset.y + place.y)
        if line is not None and line.fold:
            self._sheet.fold(line.fold)
            self._settle()
