"""Trimming of the logs of open workspaces, in the background."""

from __future__ import annotations

import asyncio
import logging

from kedge.engine.workspace import Workspace
from kedge.errors import StoreError, StoreUnavailable
from kedge.store.base import Store
from kedge.waiting import wait_uncancelled

log = logging.getLogger("kedge.engine")

#: A log is trimmed when it has this part more than it keeps: rarely enough to cost little, in slices that delay no
#: other write. Entries per kept entry.
TRIM_SLACK = 0.1


class LogTrimming:
    def __init__(self, store: Store, entries_max: int) -> None:
        self._store = store
        self._entries_max = entries_max
        self._slack = int(entries_max * TRIM_SLACK) + 1
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def appended(self, workspace: Workspace) -> None:
        """Trim the log if it has grown beyond its limit. Called after each append."""
        if workspace.feed.head <= workspace.trimmed_to + self._entries_max + self._slack or workspace.id in self._tasks:
            return
        # Also if it fails: the next attempt comes as late as after a success.
        workspace.trimmed_to = workspace.feed.head - self._entries_max
        task = asyncio.get_running_loop().create_task(self._trim(workspace))
        self._tasks[workspace.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(workspace.id))

    async def _trim(self, workspace: Workspace) -> None:
        try:
            await self._store.trim(workspace.id, self._entries_max)
        except (StoreUnavailable, StoreError) as error:  # for example a full disk: trimming can wait
            log.warning("the log of %s was not trimmed: %s", workspace.record.path, error)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await wait_uncancelled(list(self._tasks.values()))
