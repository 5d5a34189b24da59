"""The mode of a session: switched by clients, and by an accepted plan."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kedge.core.modes import NO_SANDBOX, Mode
from kedge.core.records import SessionRecord
from kedge.engine.append import Append
from kedge.engine.door import Door
from kedge.engine.ports import Machine
from kedge.engine.workspace import Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import Conflict
from kedge.tools.tool_failed import ToolFailed

log = logging.getLogger("kedge.engine")


class ModeSwitch:
    def __init__(self, door: Door, workspaces: Workspaces, machine: Machine, reconsider: Callable[[str], None]) -> None:
        """`reconsider`: see `RunExecutor`."""
        self._door = door
        self._workspaces = workspaces
        self._machine = machine
        self._reconsider = reconsider

    async def check(self, workspace: Workspace, mode: Mode | None) -> None:
        """Raise Conflict if this machine does not support the mode."""
        if mode != "auto":
            return
        try:
            processes = await self._machine.processes(workspace.config, workspace.record.path, workspace.files)
        except ToolFailed as failed:
            raise Conflict(f"Mode auto needs a sandbox, and this machine has none: {failed}.") from None
        if not processes.can_confine:
            raise Conflict(f"{NO_SANDBOX[0].upper()}{NO_SANDBOX[1:]}.")

    async def switch(
        self, workspace: Workspace, session_id: str, mode: Mode, by: str = "", author: str = ""
    ) -> SessionRecord:
        """Set the mode of a session: the next tool call obeys it, and pending approvals that it permits are settled.
        `by`: the client. `author`: its user."""

        async def plan(tx: Append) -> None:
            if tx.session.parent_run_id:
                raise Conflict(f"Session {session_id} is that of an agent, which has the mode of its parent.")
            tx.record("mode", author, detail=f"{tx.session.mode} to {mode}")  # not written if nothing changes
            tx.session = tx.session.with_mode(mode)

        with self._workspaces.in_use(workspace):
            await self.check(workspace, mode)
            state = await self._workspaces.lane(workspace, session_id)
            before = state.session.mode
            await self._door.write(state, plan)
            self._reconsider(workspace.id)
            if mode != before:
                log.warning("session %s: mode %s, was %s (client %s)", session_id, mode, before, by or "unknown")
            return state.session
