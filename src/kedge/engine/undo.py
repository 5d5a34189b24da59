"""Undo: restore the files that a Run changed."""

from __future__ import annotations

from msgspec.structs import replace

from kedge.core.changed_files import ChangedFile, changed_files
from kedge.core.records import FileVersion
from kedge.engine.append import Append
from kedge.engine.door import Door
from kedge.engine.workspace import Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import FilesChanged, LaneBusy, RunNotFound
from kedge.tools.revert import conflicting_paths, needs_revert, revert_file
from kedge.tools.tool_failed import ToolFailed
from kedge.tools.tool_threads import ToolThreads
from kedge.tools.workspace_paths import check_root


class Undo:
    def __init__(self, door: Door, workspaces: Workspaces) -> None:
        self._door = door
        self._workspaces = workspaces

    async def undo(self, workspace: Workspace, session_id: str, run_id: str | None) -> tuple[str, list[str]]:
        """Restore the files of a Run (default: the last one that changed files); return its id and the paths.

        If one of the files has changed since, no file is touched."""
        versions: list[FileVersion] = []
        restored: list[str] = []

        async def plan(tx: Append) -> None:  # under the lock: no Run starts until the files are restored
            if tx.state.is_busy:
                raise LaneBusy("A run is active in this session and may change the files; cancel it or wait.")
            if not versions:
                versions.extend(await self._versions(workspace, session_id, run_id))
                await self._restore(workspace, versions, restored)
            for version in versions:
                tx.put_file(replace(version, undone=True), "updated" if version.before else "deleted")

        with self._workspaces.in_use(workspace):
            await self._door.write(await self._workspaces.lane(workspace, session_id), plan)
        return versions[0].run_id, restored

    async def changed_files(self, workspace: Workspace, session_id: str) -> list[ChangedFile]:
        """Return the files that the Runs of the session changed."""
        await self._workspaces.lane(workspace, session_id)
        return changed_files(await self._door.store.file_versions(workspace.id, session_id, None))

    async def _versions(self, workspace: Workspace, session_id: str, run_id: str | None) -> list[FileVersion]:
        changing = await self._door.store.runs_with_files(session_id)
        if run_id is None and changing:
            run_id = changing[-1]
        if run_id is None or run_id not in changing:
            subject = f"Run {run_id}" if run_id else f"Session {session_id}"
            raise RunNotFound(f"{subject} made no file changes that can be undone.")
        return await self._door.store.file_versions(workspace.id, session_id, run_id)

    async def _restore(self, workspace: Workspace, versions: list[FileVersion], restored: list[str]) -> None:
        """Check all files, then restore one after the other: together they may not fit into memory.

        If a file cannot be restored, those before it are; a retry continues there."""
        threads = ToolThreads(workspace.files)
        try:
            await threads.look(check_root, workspace.root)
        except ToolFailed as failed:
            raise FilesChanged(f"Nothing was restored: {failed}.") from None
        if changed := await threads.run(conflicting_paths, versions):
            raise FilesChanged(
                f"Changed since that run: {', '.join(changed[:10])}. Restore them by hand, or undo the later run first."
            )
        for version in versions:
            try:
                if await threads.run(needs_revert, version):
                    original = await self._door.store.original(workspace.id, version.id) if version.before else None
                    await threads.run(revert_file, version, original)
                    restored.append(version.path)
            except ToolFailed as failed:  # changed since the check, or not writable
                raise FilesChanged(f"Not all files were restored: {failed}") from None
