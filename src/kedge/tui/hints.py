"""The last line: what Enter does now, and where the rest is found."""

from __future__ import annotations

from textual.widgets import Static


class Hints(Static):
    DEFAULT_CSS = "Hints { height: 1; padding: 0 1; color: $muted; }"

    def __init__(self) -> None:
        super().__init__(markup=False)

    def tell(self, *, busy: bool, folds: bool, editing: bool, command: bool = False) -> None:
        if editing:
            sends = "enter saves the queued prompt · esc leaves it as it was"
        elif command:
            sends = "enter runs it in your shell"
        elif busy:
            now, other = ("folds into the run", "queue") if folds else ("queues", "fold")
            sends = f"enter {now} (ctrl-o: {other})"
        else:
            sends = "enter sends"
        self.update(f"{sends} · / commands · @ files · ! shell · ? help")
