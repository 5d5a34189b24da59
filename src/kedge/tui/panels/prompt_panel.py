"""The prompt: text input with history, file mentions and commands."""

from __future__ import annotations

import time

from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.keys import Keys
from textual.message import Message
from textual.widgets import TextArea

from kedge.client.safe_text import harmless
from kedge.tui.panels.approval_panel import ApprovalPanel
from kedge.tui.panels.file_completions import FileCompletions
from kedge.tui.state.mentions import mention, name_inside, partial_mention, paths_in
from kedge.tui.state.prompt_history import PromptHistory

#: Keys that insert a line break. The last two are what xterm and tmux send for Enter with Shift or Alt.
NEW_LINE_KEYS = ("ctrl+j", "alt+enter", "shift+enter", "shift+\r", "\r")

#: After a key that was typed, further keys are text, not answers: the user is writing the next prompt. Seconds.
TYPING_PAUSE_S = 1.0

# Older terminals send Alt+Enter as Esc and Enter. Textual would parse that as Enter and send the prompt.
assert isinstance(ANSI_SEQUENCES_KEYS, dict), "Textual's table is a Mapping that can be extended"
ANSI_SEQUENCES_KEYS.setdefault("\x1b\r", (Keys.ControlJ,))


class PromptPanel(TextArea):
    DEFAULT_CSS = """
    PromptPanel { height: auto; max-height: 10; min-height: 1; border: none; padding: 0 1; background: $surface; }
    PromptPanel:focus { border: none; }
    """

    class Sent(Message):
        """The text was sent and removed. A receiver that rejects it calls `put_back`."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Command(Message):
        """`/` or `?` in an empty prompt."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Edited(Message):
        """The text has changed."""

    def __init__(
        self, completions: FileCompletions, approval: ApprovalPanel, history: PromptHistory, root: str
    ) -> None:
        super().__init__(
            id="prompt", soft_wrap=True, tab_behavior="focus", show_line_numbers=False, highlight_cursor_line=False
        )
        self.cursor_blink = False  # an idle screen is not redrawn
        self._completions, self._approval, self._history, self._root = completions, approval, history, root
        #: When a key was last typed, by the monotonic clock. Seconds.
        self._typed_at = 0.0
        #: Files outside the workspace that were dropped here: they are attached to prompts that mention them.
        self.dropped: set[str] = set()
        #: Index of the shown history entry. One past the last is the text being written, which is kept in `_draft`.
        self._index = len(history.earlier)
        self._draft = ""
        #: The text as it was set. File names are offered only for text that the user types.
        self._set = ""

    @property
    def is_command(self) -> bool:
        """True if Enter runs the text as a shell command."""
        return self.text.lstrip().startswith("!")

    def set_text(self, text: str) -> None:
        """Replace the text and move to its end."""
        self._set = _clean(text)
        self.text = self._set
        self.move_cursor(self.document.end)

    def put_back(self, texts: list[str]) -> None:
        """Insert texts that were not sent before the current text."""
        self.set_text("\n\n".join([*texts, *([self.text] if self.text.strip() else [])]))

    def put_away(self) -> str:
        """Move the text to the history; return it."""
        text = self.text
        self._history.add(text)
        self._index, self._draft = len(self._history.earlier), ""
        self.text = ""
        return text

    def complete(self, name: str) -> None:
        """Replace the partial mention by the name."""
        row, column = self.cursor_location
        if partial := partial_mention(self._before()):
            self.replace(f"{mention(name)} ", (row, partial[0]), (row, column), maintain_selection_offset=False)

    # --- keys -------------------------------------------------------------------------------------------------------

    async def on_key(self, event: events.Key) -> None:
        paused_s = time.monotonic() - self._typed_at
        if not self.text and paused_s >= TYPING_PAUSE_S and await self._approval.answer_by_key(event.key):
            is_handled = True
        else:
            self._typed_at = time.monotonic()
            is_handled = self._handle_key(event)
        if is_handled:
            event.stop()
            event.prevent_default()

    def _handle_key(self, event: events.Key) -> bool:
        if self._completions.choose_by_key(event.key):
            return True
        if event.key == "enter":
            if self.text.strip():
                # Remove the text now: keys that follow belong to the next prompt.
                self.post_message(self.Sent(self.put_away()))
        elif event.key in NEW_LINE_KEYS:
            self.replace("\n", *self.selection, maintain_selection_offset=False)
        elif event.character in ("/", "?") and not self.text:
            self.post_message(self.Command(event.character))
        elif event.key == "ctrl+c" and self.text and not self._is_selected():
            self.put_away()
        else:
            return self._browse_history(event.key)
        return True

    def _is_selected(self) -> bool:
        """Return whether text is selected. Then ctrl+c copies it."""
        return bool(self.selected_text or self.screen.get_selected_text())

    def _browse_history(self, key: str) -> bool:
        """Show an earlier prompt for Up in the first visible line, a later one for Down in the last."""
        at = self.cursor_location
        if key == "up" and self.navigator.is_first_wrapped_line(at):
            return self._show_history(self._index - 1)
        return key == "down" and self.navigator.is_last_wrapped_line(at) and self._show_history(self._index + 1)

    def _show_history(self, index: int) -> bool:
        """Show an entry of the history; return whether it exists."""
        earlier = self._history.earlier
        if not 0 <= index <= len(earlier):
            return False
        if self._index == len(earlier):
            self._draft = self.text
        self._index = index
        self.set_text(self._draft if index == len(earlier) else earlier[index])
        return True

    # --- files ------------------------------------------------------------------------------------------------------

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        text = _clean(event.text)
        if paths := paths_in(text):
            names = [name_inside(path, self._root) or path for path in paths]
            self.dropped.update(path for path, name in zip(paths, names, strict=True) if path == name)
            mentions = " ".join(mention(name) for name in names)
            text = f"{'' if self._before()[-1:] in ('', ' ') else ' '}{mentions} "
        self.replace(text, *self.selection, maintain_selection_offset=False)
        self.focus()

    def _before(self) -> str:
        row, column = self.cursor_location
        return self.document.get_line(row)[:column]

    def on_text_area_changed(self) -> None:
        if self.text != self._set:
            self._set = ""
        partial = partial_mention(self._before()) if not self._set else None
        self._completions.offer(partial[1] if partial else None)
        self.post_message(self.Edited())

    def on_text_area_selection_changed(self) -> None:
        if partial_mention(self._before()) is None:
            self._completions.offer(None)


def _clean(text: str) -> str:
    """Return text without control characters. Some terminals paste lines with \\r."""
    return harmless(text.replace("\r\n", "\n").replace("\r", "\n"))
