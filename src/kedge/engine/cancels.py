"""Cancels: written, or carried out without the store and written later.

Stopping is the safe direction. If the store does not take a cancel, because the disk is full or hangs, its Run is
stopped anyway. The door writes the cancel before anything else of the session, so it covers exactly the Runs accepted
before it. If the process dies first, the next one resumes or interrupts the Run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.commands import Cancel, CancelRun, ClearQueue
from kedge.core.kept_commands import KeptCommand
from kedge.core.lane import Covered, covered_by
from kedge.engine.append import Append
from kedge.engine.door import Door
from kedge.engine.lane_state import LaneState
from kedge.errors import StoreUnavailable

log = logging.getLogger("kedge.engine")

#: A cancel stops its Run after this time even if the store has not answered. Seconds.
RECORD_S = 1.0


class Cancelled(Struct, frozen=True):
    """The Runs that a cancel covered. `mark` is None if there were none, or if the cancel is not recorded yet."""

    mark: int | None
    covered: tuple[Covered, ...]
    #: False: the store did not take the cancel yet. Its Runs are being stopped.
    is_recorded: bool = True
    #: The kept commands of the session that run: a cancel does not end them.
    kept_commands: tuple[KeptCommand, ...] = ()


class Cancels:
    """`stop` stops a Run by its session and its id."""

    def __init__(self, door: Door, stop: Callable[[str, str], None]) -> None:
        self._door = door
        self._stop = stop

    async def cancel(self, state: LaneState, command: Cancel | CancelRun | ClearQueue) -> Cancelled:
        cancelled = await self._cancel(state, command)
        return replace(cancelled, kept_commands=tuple(entry for entry in state.kept_commands if entry.is_running))

    async def _cancel(self, state: LaneState, command: Cancel | CancelRun | ClearQueue) -> Cancelled:
        covered: tuple[Covered, ...] = ()

        async def plan(tx: Append) -> None:
            nonlocal covered
            covered = covered_by(tx.lane, command)
            tx.decide(command)

        if isinstance(command, ClearQueue):
            await self._door.write(state, plan)
            return Cancelled(None, covered)
        writing = asyncio.ensure_future(self._door.write(state, plan, keep=command))
        # Not in this task, which ends when its client disconnects.
        late = asyncio.get_running_loop().call_later(RECORD_S, self._stop_covered, state, command)

        def written(write: asyncio.Future[Append]) -> None:
            late.cancel()
            if not write.cancelled() and isinstance(write.exception(), StoreUnavailable):
                self._stop_covered(state, command)

        writing.add_done_callback(written)
        await asyncio.wait({writing}, timeout=RECORD_S)
        if not writing.done() or isinstance(writing.exception(), StoreUnavailable):
            return Cancelled(None, covered_by(state.lane, command), is_recorded=False)
        tx = writing.result()
        if isinstance(command, CancelRun) or not covered:
            return Cancelled(None, covered)
        return Cancelled(max(tx.lane.mark, *(run.seq for run in covered)), covered)

    def _stop_covered(self, state: LaneState, command: Cancel | CancelRun) -> None:
        """Stop the active Run if the command, which is not written yet, covers it."""
        active = state.lane.active
        if active is not None and (isinstance(command, Cancel) or command.run_id == active.run_id):
            log.warning("run %s is stopped before its cancel is recorded: the store does not answer", active.run_id)
            self._stop(state.session.id, active.run_id)
