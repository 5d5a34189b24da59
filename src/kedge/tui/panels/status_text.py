"""Single lines of text on the main screen."""

from __future__ import annotations

from textual.widgets import Static


class StatusText(Static):
    """A text that refreshes only when it changes: it is set with every key and event, and a refresh is a layout."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._text = ""

    def set_text(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self.set_class(bool(text), "has-text")
            self.update(text)


class Banner(StatusText):
    """A problem with the connection to the server."""

    DEFAULT_CSS = """
    Banner { height: 1; padding: 0 1; background: $warning 20%; color: $warning; display: none; }
    Banner.has-text { display: block; }
    """


class ConfigBanner(StatusText):
    """A configuration file that is not in effect. Each screen has one, also dialogs: it concerns all of them."""

    DEFAULT_CSS = """
    ConfigBanner { dock: top; height: auto; max-height: 5; padding: 0 1; background: $warning 20%; color: $warning;
                   display: none; }
    ConfigBanner.has-text { display: block; }
    """


class AskResult(StatusText):
    """The result of an Ask that another client answered, or that was withdrawn."""

    DEFAULT_CSS = """
    AskResult { height: auto; padding: 0 1; color: $warning; display: none; }
    AskResult.has-text { display: block; }
    """


class Hints(StatusText):
    """The last line: what Enter does now, and the most important keys."""

    DEFAULT_CSS = "Hints { height: 1; padding: 0 1; color: $muted; }"

    def set_state(
        self, *, busy: bool, folds: bool, editing: bool, command: bool = False, in_queue: bool = False
    ) -> None:
        if in_queue:
            self.set_text("e edit · n next · f fold into run · d remove · shift-↑↓ move · tab back to prompt")
            return
        if editing:
            enter = "enter: save the queued prompt · esc: discard the changes"
        elif command:
            enter = "enter: run in your shell"
        elif busy:
            enter = "enter: fold into the run (ctrl-o: queue)" if folds else "enter: queue (ctrl-o: fold)"
        else:
            enter = "enter: send"
        self.set_text(f"{enter} · / commands · @ files · ! shell · ? help")
