"""Runs that are cancelled when their last client disconnects, because they asked for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from kedge.core.commands import CancelRun
from kedge.engine.door import RETRY_S, RETRY_S_MAX, Door, deciding
from kedge.engine.lane_state import LaneState
from kedge.engine.workspace import Workspace
from kedge.errors import KedgeError, StoreUnavailable
from kedge.waiting import backoff_s

log = logging.getLogger("kedge.engine")


class AbandonedRuns:
    """`lane_of` returns the Lane of a Run."""

    def __init__(
        self,
        door: Door,
        lane_of: Callable[[Workspace, str], Awaitable[LaneState]],
        is_closing: Callable[[], bool],
    ) -> None:
        self._door = door
        self._lane_of = lane_of
        self._is_closing = is_closing
        #: By workspace_id and run_id.
        self.cancels: dict[tuple[str, str], asyncio.Task[None]] = {}

    def cancel(self, workspace: Workspace) -> None:
        """Cancel those of a workspace that no client holds."""
        for run in workspace.live_runs():
            key = (workspace.id, run.run_id)
            is_wanted = run.options.on_disconnect == "cancel" and run.folded_into is None
            if is_wanted and not run.stopping and key not in self.cancels:
                task = asyncio.get_running_loop().create_task(self._cancel(workspace, run.run_id))
                self.cancels[key] = task
                task.add_done_callback(partial(self.cancels.pop, key))

    async def _cancel(self, workspace: Workspace, run_id: str) -> None:
        """Retry until the store takes the cancel, or a client came back."""
        delays_s = backoff_s(RETRY_S, RETRY_S_MAX)
        while not (self._is_closing() or workspace.claims.held):
            try:
                # Not kept if the store is away: the client may come back before the store.
                state = await self._lane_of(workspace, run_id)
                await self._door.write(state, deciding(CancelRun(run_id, self._door.clock.now_ms(), is_abandoned=True)))
            except StoreUnavailable as error:
                log.warning("abandoned run %s could not be cancelled yet: %s", run_id, error)
            except KedgeError as error:
                log.warning("abandoned run %s cannot be cancelled: %s", run_id, error)
                return
            else:
                return
            await asyncio.sleep(next(delays_s))
