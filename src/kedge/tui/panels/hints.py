"""The last line: what Enter does now, and where the rest is found."""

from __future__ import annotations

from kedge.tui.panels.status_text import StatusText


class Hints(StatusText):
    DEFAULT_CSS = "Hints { height: 1; padding: 0 1; color: $muted; }"

    def tell(self, *, busy: bool, folds: bool, editing: bool, command: bool = False, in_queue: bool = False) -> None:
        if in_queue:
            self.say("e edits it · n makes it next · f folds it in · d removes it · shift-↑↓ moves it · tab goes back")
            return
        if editing:
            sends = "enter saves the queued prompt · esc leaves it as it was"
        elif command:
            sends = "enter runs it in your shell"
        elif busy:
            now, other = ("folds into the run", "queue") if folds else ("queues", "fold")
            sends = f"enter {now} (ctrl-o: {other})"
        else:
            sends = "enter sends"
        self.say(f"{sends} · / commands · @ files · ! shell · ? help")
