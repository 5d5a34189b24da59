"""All stored workspaces, open or not: listing, removal, and forgetting those whose directory is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

from kedge.core.audit import AuditEntry
from kedge.engine.door import Door
from kedge.engine.placement import Placement
from kedge.engine.workspace import Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import DirectoryTimeout, KedgeError, StoreUnavailable, WorkspaceInUse, WorkspaceNotFound
from kedge.store.base import KnownWorkspace
from kedge.tools.file_threads import FileThreads
from kedge.waiting import backoff_s, wait_uncancelled

log = logging.getLogger("kedge.engine")

#: Limit of a check of the directories in a list. Those that were not reached in time are `unknown`. Seconds.
DIRECTORIES_S = 2.0
#: Workspaces that are considered in one pass of `forget_gone`. Items.
FORGET_PASS_MAX = 1_000
#: First and longest delay before the removal of stored data is tried again. Seconds.
PURGE_AGAIN_S, PURGE_AGAIN_S_MAX = 1.0, 60.0

DirectoryState = Literal["present", "gone", "unknown"]


class KnownWorkspaces:
    def __init__(self, door: Door, workspaces: Workspaces, placement: Placement) -> None:
        self._door = door
        self._store = door.store
        self._placement = placement
        self._workspaces = workspaces
        #: Its own threads: most of these directories belong to no open workspace.
        self._files = FileThreads("A directory")
        self._purging: asyncio.Task[None] | None = None
        #: The id after which the next pass of `forget_gone` starts.
        self._forget_after = ""

    async def page(self, after: str, limit: int) -> list[tuple[KnownWorkspace, DirectoryState]]:
        known = await self._store.known_workspaces(after, limit)
        gone = await self._gone(workspace.record.path for workspace in known)
        names: dict[bool | None, DirectoryState] = {True: "gone", False: "present", None: "unknown"}
        return [(workspace, names[gone.get(workspace.record.path)]) for workspace in known]

    async def _gone(self, paths: Iterable[str]) -> dict[str, bool]:
        """Return whether each directory is gone; without the ones that were not reached in time."""
        results: dict[str, bool] = {}

        def check() -> None:
            for path in list(paths):
                results[path] = is_gone(path)

        with suppress(DirectoryTimeout):  # the rest is unknown
            await self._files.run(check, limit_s=DIRECTORIES_S)
        return dict(results)

    async def open(self, workspace_id: str, client_id: str) -> Workspace:
        """Open a stored workspace; the client gets a claim for a while."""
        return await self._workspaces.open((await self._known(workspace_id)).record.path, client_id)

    async def _known(self, workspace_id: str) -> KnownWorkspace:
        self._workspaces.unserved.refuse_damaged(workspace_id)
        known = await self._store.known_workspace(workspace_id)
        if known is None:
            raise WorkspaceNotFound(f"Workspace {workspace_id} not found. List them with: kedge workspaces list")
        return known

    async def remove(self, workspace_id: str, author: str = "") -> None:
        """Remove a workspace with its sessions. WorkspaceInUse if Runs are live or clients are connected."""
        known = await self._known(workspace_id)
        async with self._workspaces.opening(known.record.path):
            audit: tuple[AuditEntry, ...] = ()
            if author or self._door.has_users():
                audit = (AuditEntry(self._door.clock.now_ms(), author, "remove_workspace", workspace_id),)
            await self._remove(known.record.path, workspace_id, audit)
        self.start_purge()

    async def _remove(self, path: str, workspace_id: str, audit: tuple[AuditEntry, ...] = ()) -> None:
        """Under the lock of the path, so that no client opens it meanwhile."""
        known = await self._store.known_workspace(workspace_id)
        if known is None:
            return  # removed meanwhile
        if known.live_runs:
            raise WorkspaceInUse(
                f"{path} has {known.live_runs} queued or active runs. Wait for them, or cancel them (see: kedge runs)."
            )
        self._workspaces.close_unused(workspace_id)
        await self._placement.acquire(workspace_id)
        await self._store.remove_workspace(workspace_id, audit)
        self._workspaces.removed(workspace_id)

    async def forget_gone(self) -> int:
        """Remove workspaces that hold nothing of the user's and whose directory is gone; return their number.

        One pass considers a limited number, and ends at a directory that does not answer: the next pass continues."""
        if self._placement.is_shared:
            return 0  # the directory may exist on another node
        removed = 0
        known = await self._store.known_workspaces(self._forget_after, FORGET_PASS_MAX)
        self._forget_after = known[-1].record.id if len(known) == FORGET_PASS_MAX else ""
        for one in known:
            path, workspace_id = one.record.path, one.record.id
            if one.sessions or one.live_runs or one.grants or self._workspaces.find(workspace_id):
                continue
            try:
                if not await self._files.run(is_gone, path):
                    continue
                async with self._workspaces.opening(path):
                    again = await self._store.known_workspace(workspace_id)
                    if again == one and not self._workspaces.find(workspace_id):
                        await self._remove(path, workspace_id)
                        removed += 1
            except DirectoryTimeout:
                self._forget_after = workspace_id
                break
        if removed:
            log.info("forgot %d workspaces without sessions whose directories are gone", removed)
            self.start_purge()
        return removed

    # --- the space of removed workspaces -------------------------------------------------------------------------

    def start_purge(self) -> None:
        """Free the space of removed workspaces in the background."""
        if self._purging is None or self._purging.done():
            self._purging = asyncio.get_running_loop().create_task(self._purge())

    async def _purge(self) -> None:
        delays_s = backoff_s(PURGE_AGAIN_S, PURGE_AGAIN_S_MAX)
        while True:
            try:
                while await self._store.purge():
                    pass
                return
            except StoreUnavailable:
                await asyncio.sleep(next(delays_s))
            except KedgeError as error:
                log.warning("the space of removed workspaces was not freed: %s", error)
                return

    async def close(self) -> None:
        if self._purging is not None:
            self._purging.cancel()
            await wait_uncancelled([self._purging])


def is_gone(path: str) -> bool:
    """Return True only if the parent directory exists and does not contain the path. Blocking.

    Any other error, such as that of a dead mount, proves nothing."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    else:
        return False
    try:
        return stat.S_ISDIR(os.stat(os.path.dirname(path)).st_mode)
    except OSError:
        return False
