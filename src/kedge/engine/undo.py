"""Undo the file changes of a Run, and redo what was undone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec.structs import replace

from kedge.core.changed_files import ChangedFile, changed_files
from kedge.core.events import Change
from kedge.core.records import FileVersion
from kedge.core.reversal import Reversal
from kedge.engine.append import Append
from kedge.engine.door import Door, WritePlan
from kedge.engine.reverting import FileReverting, refuse_if_busy
from kedge.engine.workspace import Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import FilesChanged, RunNotFound
from kedge.tools.revert import reverts_of


class Undo:
    def __init__(self, door: Door, workspaces: Workspaces) -> None:
        self._door = door
        self._workspaces = workspaces

    async def undo(
        self, workspace: Workspace, session_id: str, run_id: str | None, author: str = ""
    ) -> tuple[str, list[str]]:
        """Restore the files of a Run (default: the last one that changed files); return its id and the paths.

        If one of the files has changed since, no file is touched."""
        with self._workspaces.in_use(workspace):
            state = await self._workspaces.lane(workspace, session_id)
            return await self._door.write_several(state, partial(self._undo, workspace, session_id, run_id, author))

    async def changed_files(self, workspace: Workspace, session_id: str) -> list[ChangedFile]:
        """Return the files that the Runs of the session changed."""
        await self._workspaces.lane(workspace, session_id)
        versions = await self._door.store.file_versions(workspace.id, session_id, None)
        return changed_files([version for version in versions if not version.reverts])

    async def _undo(
        self, workspace: Workspace, session_id: str, run_id: str | None, author: str, write: WritePlan
    ) -> tuple[str, list[str]]:
        reverting = FileReverting(self._door, workspace, session_id, Reversal("undo", "started"), author)

        async def begin(tx: Append) -> None:  # under the lock, as all of it: no Run starts until the files are restored
            refuse_if_busy(tx.state)
            reverting.versions = await self._door.store.file_versions(workspace.id, session_id, None)
            run = _to_undo(reverting.versions, run_id, session_id)
            reverting.reverts = reverts_of(version for version in reverting.versions if version.run_id == run)
            _refuse_conflicts(await reverting.conflicts())
            reverting.reversal = replace(reverting.reversal, run_id=run)
            reverting.begin(tx)

        async def end(tx: Append) -> None:
            reverting.put_undone(tx)
            reverting.end(tx)

        await write(begin)
        await reverting.restore(write)
        await write(end)
        return reverting.reversal.run_id, reverting.restored

    async def redo(self, workspace: Workspace, session_id: str, author: str = "") -> tuple[str, list[str]]:
        """Take back the last undo or rewind of files; return the id of its Run (empty: of several) and the paths.

        If one of the files has changed since, no file is touched."""
        with self._workspaces.in_use(workspace):
            state = await self._workspaces.lane(workspace, session_id)
            return await self._door.write_several(state, partial(self._redo, workspace, session_id, author))

    async def _redo(
        self, workspace: Workspace, session_id: str, author: str, write: WritePlan
    ) -> tuple[str, list[str]]:
        reverting = FileReverting(self._door, workspace, session_id, Reversal("redo", "started"), author)
        redone: list[FileVersion] = []

        async def begin(tx: Append) -> None:
            nonlocal redone
            refuse_if_busy(tx.state)
            versions = await self._door.store.file_versions(workspace.id, session_id, None)
            contents = [version for version in versions if version.reverts and not version.undone]
            if not contents:
                raise RunNotFound(f"Session {session_id} has no undo that can be redone.")
            last = _run_ids(contents)[-1]
            reverting.reverts = reverts_of(version for version in contents if version.run_id == last)
            undone = {version_id for version in contents if version.run_id == last for version_id in version.reverts}
            redone = [version for version in versions if version.id in undone]
            runs = {version.run_id for version in redone}
            _refuse_conflicts(await reverting.conflicts())
            reverting.reversal = replace(reverting.reversal, run_id=runs.pop() if len(runs) == 1 else "")
            reverting.begin(tx)

        async def end(tx: Append) -> None:
            for version in (version for revert in reverting.reverts for version in revert.versions):
                tx.keep_content(replace(version, undone=True), None)
            for version in redone:
                change: Change = "created" if not version.before else "updated" if version.after[-1] else "deleted"
                tx.put_file(replace(version, undone=False), change)
            reverting.end(tx)

        await write(begin)
        await reverting.restore(write, keeps=False)
        await write(end)
        return reverting.reversal.run_id, reverting.restored


def _to_undo(versions: list[FileVersion], run_id: str | None, session_id: str) -> str:
    runs = _run_ids(version for version in versions if not version.reverts and not version.undone)
    if run_id is None and runs:
        return runs[-1]
    if run_id is None or run_id not in runs:
        subject = f"Run {run_id}" if run_id else f"Session {session_id}"
        raise RunNotFound(f"{subject} made no file changes that can be undone.")
    return run_id


def _run_ids(versions: Iterable[FileVersion]) -> list[str]:
    """Return the run_ids in the order of their first versions."""
    return list(dict.fromkeys(version.run_id for version in versions))


def _refuse_conflicts(changed: list[str]) -> None:
    if changed:
        raise FilesChanged(
            f"Changed since that run: {', '.join(changed[:10])}. Restore them by hand, or undo the later run first."
        )
