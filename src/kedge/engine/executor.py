"""The executor of Runs, as the engine sees it. The agent package implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kedge.core.records import RunRecord
from kedge.engine.door import Door
from kedge.engine.lane_state import LaneState
from kedge.engine.ports import Agents
from kedge.engine.workspace import Workspace


class RunExecutor(Protocol):
    """Executes Runs: one supervised task per active Run."""

    def start(self, state: LaneState, run: RunRecord, workspace: Workspace) -> None: ...

    def stop(self, session_id: str, run_id: str) -> None: ...

    def reconsider(self, workspace_id: str) -> None:
        """Decide the pending approvals of a workspace again: a new grant or mode may permit them."""

    def is_running(self, session_id: str, run_id: str) -> bool: ...

    @property
    def is_busy(self) -> bool:
        """True if a Run is active. May be read from any thread."""
        ...

    async def close(self, timeout_s: float) -> None:
        """Stop every Run and wait until their ends are written."""
        ...


MakeExecutor = Callable[[Door, Agents], RunExecutor]
