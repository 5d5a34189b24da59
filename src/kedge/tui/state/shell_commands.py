"""The user's own shell commands (`!ls`) while they run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from kedge.client.safe_text import one_line
from kedge.client.view.number_text import duration
from kedge.tui.render.cell_width import Piece
from kedge.tui.state.session_actions import SessionActions


class ShellCommands:
    """At most one command runs in each session; the others wait, in the order in which they were entered."""

    def __init__(self, actions: SessionActions, on_change: Callable[[], None]) -> None:
        self._actions, self._on_change = actions, on_change
        #: By session: each command with the time it was entered, the oldest first.
        self._running: dict[str, dict[asyncio.Task[object], tuple[str, float]]] = {}

    async def run(self, session_id: str, command: str) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(self._actions.shell(session_id, command))
        running = self._running.setdefault(session_id, {})
        running[task] = command, time.monotonic()
        self._on_change()
        try:
            # `wait` instead of `await task`: cancelling the command must not cancel the caller.
            await asyncio.wait({task})
            with suppress(asyncio.CancelledError):
                task.result()
        finally:
            task.cancel()
            del running[task]
            self._on_change()

    def status(self, session_id: str, *, editing: bool) -> list[Piece]:
        """Describe the running command and what Esc does. `editing`: Esc ends the editing instead."""
        for command, started in self._running.get(session_id, {}).values():
            seconds = duration(int(time.monotonic() - started))
            return [(1, f"● running !{one_line(command, 40)}"), (2, seconds), (0, "" if editing else "esc: stop it")]
        return []

    def stop(self, session_id: str) -> bool:
        """Stop the running command; the server ends its processes. Returns whether one was running."""
        for task in self._running.get(session_id, {}):
            return task.cancel()
        return False
