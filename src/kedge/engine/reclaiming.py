"""The background task that removes deleted sessions, and returns their space, slice by slice."""

from __future__ import annotations

import asyncio
import logging

from kedge.errors import StoreError, StoreUnavailable
from kedge.store.base import Store
from kedge.waiting import backoff_s, wait_uncancelled

log = logging.getLogger("kedge.engine")

#: Pause between two slices, in which the disk serves others. Seconds.
PAUSE_S = 0.005
#: First and longest delay before retrying a store that did not answer. Seconds.
RETRY_S, RETRY_S_MAX = 1.0, 60.0


class Reclaiming:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False
        self._is_closed = False

    def wake(self) -> None:
        """Begin, or continue, until the store has nothing left to remove. A restart continues what is left."""
        self._is_wanted = True
        if not self._is_closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def idle(self) -> None:
        """Wait until nothing is left to remove."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await wait_uncancelled([self._task])

    async def _run(self) -> None:
        delays_s = backoff_s(RETRY_S, RETRY_S_MAX)
        while self._is_wanted:
            self._is_wanted = False
            try:
                self._is_wanted |= await self._store.reclaim()
            except StoreUnavailable:  # for example a full disk
                self._is_wanted = True
                await asyncio.sleep(next(delays_s))
            except StoreError as error:
                log.warning("deleted sessions still use space: %s", error)
                return
            await asyncio.sleep(PAUSE_S)
