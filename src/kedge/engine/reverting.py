"""The files of an undo, redo or rewind: checked together, then restored one after the other.

The transcript has the Reversal before the first file changes, and its result after the last. The present content of a
file is stored before the file is restored, so that the reversal can itself be taken back. A crash in between leaves a
Reversal without an end, and a repetition continues: it finds the files that are restored already.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from kedge.core.events import Change
from kedge.core.records import FileVersion, file_version_id
from kedge.core.reversal import Reversal
from kedge.core.transcript import Message
from kedge.engine.append import Append
from kedge.engine.door import Door, WritePlan
from kedge.engine.lane_state import LaneState
from kedge.engine.workspace import Workspace
from kedge.errors import DirectoryTimeout, FilesChanged, LaneBusy
from kedge.tools.revert import Revert, conflicting, read_changed, revert_file
from kedge.tools.tool_failed import ToolFailed
from kedge.tools.tool_threads import ToolThreads
from kedge.tools.workspace_paths import check_root


def refuse_if_busy(state: LaneState) -> None:
    if state.is_busy:
        raise LaneBusy("A run is active in this session and may change the files; cancel it or wait.")


class FileReverting:
    """The files and the message of one reversal. Use it within `Door.write_several`."""

    def __init__(self, door: Door, workspace: Workspace, session_id: str, reversal: Reversal, author: str = "") -> None:
        self._door = door
        self._workspace = workspace
        self._session_id = session_id
        self._threads = ToolThreads(workspace.files)
        self._message_id = door.ids.new("m")
        self._created_at = 0
        self._author = author
        self._is_recorded = False
        #: The id of the versions that hold the contents before the reversal.
        self._id = door.ids.new("u")
        self.reversal = reversal
        #: The changes to take back, and all versions of the session.
        self.reverts: list[Revert] = []
        self.versions: list[FileVersion] = []
        self.restored: list[str] = []
        self.spared: list[str] = []

    async def conflicts(self) -> list[str]:
        """Return the paths that others changed since. FilesChanged if the workspace is not there."""
        try:
            await self._threads.look(check_root, self._workspace.root)
        except ToolFailed as failed:
            raise FilesChanged(f"Nothing was restored: {failed}.") from None
        return await self._threads.run(conflicting, self.reverts)

    def begin(self, tx: Append) -> None:
        """Add the message, which names the files that are about to be restored."""
        self._created_at = tx.now
        self._record(tx)
        self._is_recorded = True
        self._put(tx, "created", [revert.path for revert in self.reverts])

    async def restore(self, write: WritePlan, *, keeps: bool = True) -> None:
        """Restore the files. `keeps`: store their present contents first, so that a redo can restore these.

        Together they may not fit into memory. If a file cannot be restored, those before it are, and the message is
        completed; a repetition continues there."""
        try:
            for revert in self.reverts:
                if await self._keep_present(write if keeps else None, revert):
                    await self._revert(revert)
                    self.restored.append(revert.path)
        except (ToolFailed, DirectoryTimeout) as failed:  # changed since the check, or not writable
            self.reversal = replace(self.reversal, state="stopped")
            await write(self._stop)
            if isinstance(failed, DirectoryTimeout):
                raise
            raise FilesChanged(f"Not all files were restored: {failed}") from None

    async def _keep_present(self, write: WritePlan | None, revert: Revert) -> bool:
        """Store the present content of a file; return False if the file has the content to restore."""
        changed = await self._threads.run(read_changed, revert)
        if changed is None:
            return False
        now, content = changed
        workspace_id = self._workspace.id

        async def keep(tx: Append) -> None:
            version = FileVersion(
                id=file_version_id(workspace_id, self._id, revert.path),
                workspace_id=workspace_id,
                session_id=self._session_id,
                run_id=self._id,
                path=revert.path,
                before=now,
                after=(revert.target,),
                created_at=tx.now,
                reverts=revert.ids,
            )
            tx.keep_content(version, content)

        if write is not None:
            await write(keep)
        return True

    async def _revert(self, revert: Revert) -> None:
        store, first = self._door.store, revert.versions[0]
        original = await store.original(self._workspace.id, first.id) if revert.target else None
        await self._threads.run(revert_file, revert, original)

    async def _stop(self, tx: Append) -> None:
        self._put(tx, "updated", self.restored)

    def put_undone(self, tx: Append) -> None:
        """Mark the versions as undone. The contents that an interrupted attempt has stored belong to this one now."""
        for version in (version for revert in self.reverts for version in revert.versions):
            tx.put_file(replace(version, undone=True), "updated" if version.before else "deleted")
        ids, restored = {revert.ids for revert in self.reverts}, set(self.restored)
        for version in self.versions:
            if not version.undone and version.reverts in ids:
                tx.keep_content(replace(version, run_id=self._id, undone=version.path in restored), None)

    def end(self, tx: Append) -> None:
        """Complete the message, or add it if it was not needed before."""
        self._record_once(tx)
        change: Change = "updated" if self._created_at else "created"
        self._created_at = self._created_at or tx.now
        self.reversal = replace(self.reversal, state="done")
        self._put(tx, change, self.restored)

    def end_after_cut(self, tx: Append) -> None:
        """Add a message with the result: the first one was removed with others."""
        self._record_once(tx)
        self._message_id, self._created_at = tx.new_id("m"), tx.now
        self.reversal = replace(self.reversal, state="done")
        self._put(tx, "created", self.restored)

    def _record_once(self, tx: Append) -> None:
        """Audit the reversal unless `begin` did: one that changes no files has no beginning."""
        if not self._is_recorded:
            self._record(tx)

    def _record(self, tx: Append) -> None:
        count = len(self.reverts)
        tx.record(self.reversal.action, self._author, self.reversal.run_id, f"{count} file{'s' * (count != 1)}")

    def _put(self, tx: Append, change: Change, paths: Sequence[str]) -> None:
        part = self.reversal.with_files(paths, self.spared)
        tx.put_message(change, Message(self._message_id, self._session_id, "user", (part,), self._created_at, tx.now))
