"""Undo: put the files back as they were before a Run changed them, or say why not."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from kedge.core.records import FileVersion, SessionRecord
from kedge.engine.door import Door
from kedge.engine.lane_state import Draught
from kedge.engine.workspaces import Workspace, Workspaces
from kedge.errors import FilesChanged, LaneBusy, RunNotFound
from kedge.store.base import Store
from kedge.tools.revert import apply_undo, check_undo
from kedge.tools.tool_failed import ToolFailed


class Undo:
    def __init__(self, store: Store, door: Door, workspaces: Workspaces) -> None:
        self._store = store
        self._door = door
        self._workspaces = workspaces

    async def undo(self, workspace: Workspace, session_id: str, run_id: str | None) -> tuple[str, list[str]]:
        """The Run whose changes were undone (the last one that has any, unless one is named) and the paths put back.
        Nothing is touched when one of the files has changed since."""
        versions: list[FileVersion] = []
        restored: list[str] = []
        with self._workspaces.in_use(workspace):
            lane = await self._workspaces.lane(workspace, session_id)

            async def put_back() -> None:
                if lane.is_busy:
                    raise LaneBusy("A run is at work in this session and may change the files; cancel it or wait.")
                versions.extend(await self._versions(workspace, session_id, run_id))
                restored.extend(await asyncio.to_thread(_put_back, versions))

            def undone(draught: Draught, session: SessionRecord) -> SessionRecord:
                for version in versions:
                    draught.put_file(replace(version, undone=True), "deleted" if version.before is None else "updated")
                return session

            await self._door.put(lane, undone, first=put_back)  # no Run begins until the files are back
        return versions[0].run_id, restored

    async def _versions(self, workspace: Workspace, session_id: str, run_id: str | None) -> list[FileVersion]:
        changing = await self._store.runs_with_files(session_id)
        if run_id is None and changing:
            run_id = changing[-1]
        if run_id is None or run_id not in changing:
            named = f"Run {run_id} has" if run_id else f"The runs of session {session_id} have"
            raise RunNotFound(f"{named} changed no files through kedge's tools that could be put back.")
        return await self._store.file_versions(workspace.id, session_id, run_id)


def _put_back(versions: list[FileVersion]) -> list[str]:
    if changed := check_undo(versions):
        raise FilesChanged(
            f"Changed since that run: {', '.join(changed[:10])}. Put them back by hand, or undo the later run."
        )
    try:
        return apply_undo(versions)
    except ToolFailed as failed:  # changed since the check, or not to be written
        raise FilesChanged(f"Not all was put back: {failed}") from None
