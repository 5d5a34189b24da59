"""Commands of the person's own (`!ls`), while they run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from kedge.client.safe_text import one_line
from kedge.tui.panels.status_lines import duration
from kedge.tui.render.cell_width import Piece
from kedge.tui.state.session_actions import SessionActions


class ShellCommands:
    """At most one at a time in each session; the others wait for it, in the order in which they were written."""

    def __init__(self, actions: SessionActions, changed: Callable[[], None]) -> None:
        self._actions, self._changed = actions, changed
        #: By session: each with the moment it was written, the oldest first.
        self._running: dict[str, dict[asyncio.Task[object], tuple[str, float]]] = {}

    async def run(self, session_id: str, command: str) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(self._actions.shell(session_id, command))
        running = self._running.setdefault(session_id, {})
        running[task] = command, time.monotonic()
        self._changed()
        try:
            # Waited for: that the command was ended is no end of whoever waits for it.
            await asyncio.wait({task})
            with suppress(asyncio.CancelledError):
                task.result()
        finally:
            task.cancel()
            del running[task]
            self._changed()

    def words(self, session_id: str, *, editing: bool) -> list[Piece]:
        """For the line that says what is at work, and what Esc does about it. `editing`: Esc is for that."""
        for command, began in self._running.get(session_id, {}).values():
            seconds = duration(int(time.monotonic() - began))
            return [(1, f"● running !{one_line(command, 40)}"), (2, seconds), (0, "" if editing else "esc ends it")]
        return []

    def end(self, session_id: str) -> bool:
        """The one at work; the server ends its processes. Whether there was one."""
        for task in self._running.get(session_id, {}):
            return task.cancel()
        return False
