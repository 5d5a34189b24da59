"""Where people write: Enter sends, history, files, commands."""

from __future__ import annotations

from textual import events
from textual.message import Message
from textual.widgets import TextArea

#: Prompts that can be called back. Items, the oldest go first.
HISTORY_MAX = 200
#: More lines are scrolled. Lines.
HEIGHT_MAX = 10


class Prompt(TextArea):
    DEFAULT_CSS = """
    Prompt { height: auto; max-height: 10; min-height: 1; border: none; padding: 0 1; background: $surface; }
    Prompt:focus { border: none; }
    """

    class Sent(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Command(Message):
        """`/` or `?` in an empty prompt."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Completing(Message):
        """The word before the cursor begins with @, or does not any more (None)."""

        def __init__(self, word: str | None) -> None:
            super().__init__()
            self.word = word

    def __init__(self) -> None:
        super().__init__(id="prompt", soft_wrap=True, tab_behavior="focus", show_line_numbers=False)
        self.earlier: list[str] = []
        #: Which one is shown; its length: what is being written.
        self._place = 0
        self._draft = ""
        #: While names are offered these keys are for choosing one.
        self.is_completing = False

    def take(self, text: str) -> None:
        """Put text here, with the cursor behind it."""
        self.text = text
        self.move_cursor(self.document.end)

    def clear_sent(self) -> None:
        text = self.text
        if text.strip() and (not self.earlier or self.earlier[-1] != text):
            self.earlier = [*self.earlier, text][-HISTORY_MAX:]
        self._place, self._draft = len(self.earlier), ""
        self.text = ""

    async def _on_key(self, event: events.Key) -> None:
        if self.is_completing and event.key in ("up", "down", "tab", "enter", "escape"):
            return  # for the list of names
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.post_message(self.Sent(self.text))
        elif event.key in ("ctrl+j", "alt+enter", "shift+enter"):
            event.stop()
            event.prevent_default()
            self.insert("\n")
        elif event.character in ("/", "?") and not self.text:
            event.stop()
            event.prevent_default()
            self.post_message(self.Command(event.character))
        elif self._calls_back(event.key):
            event.stop()
            event.prevent_default()
        else:
            await super()._on_key(event)

    def _calls_back(self, key: str) -> bool:
        """Up in the first line and down in the last one go through what was sent earlier."""
        row = self.cursor_location[0]
        if key == "up" and row == 0:
            return self._back(-1)
        return key == "down" and row == self.document.line_count - 1 and self._back(1)

    def _back(self, by: int) -> bool:
        """An earlier or later prompt of the history; whether there is one."""
        place = self._place + by
        if not 0 <= place <= len(self.earlier):
            return False
        if self._place == len(self.earlier):
            self._draft = self.text
        self._place = place
        self.take(self._draft if place == len(self.earlier) else self.earlier[place])
        return True

    def on_text_area_changed(self) -> None:
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        word = before.rpartition(" ")[2].rpartition("\t")[2]
        self.post_message(self.Completing(word[1:] if word.startswith("@") else None))

    def complete(self, name: str) -> None:
        """The name in place of the word that was begun."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        start = before.rindex("@")
        self.replace(f"@{name} ", (row, start), (row, column))
