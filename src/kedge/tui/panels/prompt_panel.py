"""Where people write: Enter sends, history, files, commands."""

from __future__ import annotations

from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.keys import Keys
from textual.message import Message
from textual.widgets import TextArea

from kedge.client.safe_text import harmless
from kedge.tui.panels.file_completions import FileCompletions
from kedge.tui.state.mentions import begun, mention, name_inside, paths_in
from kedge.tui.state.prompt_history import PromptHistory

#: A new line instead of sending. The last two are what xterm and tmux make of Enter with Shift or Alt.
NEW_LINE_KEYS = ("ctrl+j", "alt+enter", "shift+enter", "shift+\r", "\r")

# Older terminals send Alt+Enter as Esc and Enter. Textual would make an Enter of it, and a prompt would be sent that
# was to get a new line.
if isinstance(ANSI_SEQUENCES_KEYS, dict):
    ANSI_SEQUENCES_KEYS.setdefault("\x1b\r", (Keys.ControlJ,))


class PromptPanel(TextArea):
    DEFAULT_CSS = """
    PromptPanel { height: auto; max-height: 10; min-height: 1; border: none; padding: 0 1; background: $surface; }
    PromptPanel:focus { border: none; }
    """

    class Sent(Message):
        """It is not here any more: whoever refuses it gives it back."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Command(Message):
        """`/` or `?` in an empty prompt."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Written(Message):
        """The text is another one."""

    def __init__(self, names: FileCompletions, history: PromptHistory, root: str) -> None:
        super().__init__(
            id="prompt", soft_wrap=True, tab_behavior="focus", show_line_numbers=False, highlight_cursor_line=False
        )
        self.cursor_blink = False  # nothing moves while nothing happens
        self._names, self._history, self._root = names, history, root
        #: Files from elsewhere that were dropped here: they are attached where a prompt names them.
        self.dropped: set[str] = set()
        #: Which earlier prompt is shown; their number: what is being written, which is kept meanwhile.
        self._place = len(history.earlier)
        self._draft = ""
        #: What was put here whole. No names are offered for what nobody is writing.
        self._taken = ""

    @property
    def is_command(self) -> bool:
        """Enter has it run instead of sending it to the model."""
        return self.text.lstrip().startswith("!")

    def take(self, text: str) -> None:
        """Put text here, with the place of writing behind it."""
        self._taken = _clean(text)
        self.text = self._taken
        self.move_cursor(self.document.end)

    def put_away(self) -> str:
        """What stands here goes away, and into the history."""
        text = self.text
        self._history.add(text)
        self._place, self._draft = len(self._history.earlier), ""
        self.text = ""
        return text

    def complete(self, name: str) -> None:
        """The name in place of the mention that was begun."""
        row, column = self.cursor_location
        if found := begun(self._before()):
            self.replace(f"{mention(name)} ", (row, found[0]), (row, column), maintain_selection_offset=False)

    # --- keys -------------------------------------------------------------------------------------------------------

    async def _on_key(self, event: events.Key) -> None:
        if self._takes(event):
            event.stop()
            event.prevent_default()
        else:
            await super()._on_key(event)

    def _takes(self, event: events.Key) -> bool:
        if self._names.takes(event.key):
            return True
        if event.key == "enter":
            if self.text.strip():
                # At once: what is typed from now on belongs to the next one.
                self.post_message(self.Sent(self.put_away()))
        elif event.key in NEW_LINE_KEYS:
            self.replace("\n", *self.selection, maintain_selection_offset=False)
        elif event.character in ("/", "?") and not self.text:
            self.post_message(self.Command(event.character))
        elif event.key == "ctrl+c" and self.text and not self._is_selected():
            self.put_away()
        else:
            return self._calls_back(event.key)
        return True

    def _is_selected(self) -> bool:
        """Then ctrl+c copies."""
        return bool(self.selected_text or self.screen.get_selected_text())

    def _calls_back(self, key: str) -> bool:
        """Up in the first line and down in the last one go through what was sent earlier. Lines as they are seen."""
        at = self.cursor_location
        if key == "up" and self.navigator.is_first_wrapped_line(at):
            return self._back(-1)
        return key == "down" and self.navigator.is_last_wrapped_line(at) and self._back(1)

    def _back(self, by: int) -> bool:
        """An earlier or later prompt of the history; whether there is one."""
        earlier = self._history.earlier
        place = self._place + by
        if not 0 <= place <= len(earlier):
            return False
        if self._place == len(earlier):
            self._draft = self.text
        self._place = place
        self.take(self._draft if place == len(earlier) else earlier[place])
        return True

    # --- files ------------------------------------------------------------------------------------------------------

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        text = _clean(event.text)
        if paths := paths_in(text):
            names = [name_inside(path, self._root) or path for path in paths]
            self.dropped.update(path for path, name in zip(paths, names, strict=True) if path == name)
            words = " ".join(mention(name) for name in names)
            text = f"{'' if self._before()[-1:] in ('', ' ') else ' '}{words} "
        self.replace(text, *self.selection, maintain_selection_offset=False)
        self.focus()

    def _before(self) -> str:
        row, column = self.cursor_location
        return self.document.get_line(row)[:column]

    def on_text_area_changed(self) -> None:
        if self.text != self._taken:
            self._taken = ""
        found = begun(self._before()) if not self._taken else None
        self._names.offer(found[1] if found else None)
        self.post_message(self.Written())

    def on_text_area_selection_changed(self) -> None:
        if begun(self._before()) is None:
            self._names.offer(None)


def _clean(text: str) -> str:
    """Text from elsewhere, with nothing in it that a terminal would obey. Some terminals paste lines with \\r."""
    return harmless(text.replace("\r\n", "\n").replace("\r", "\n"))
