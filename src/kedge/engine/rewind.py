"""Rewind: return to an earlier prompt, with the conversation, the files, or both.

The whole conversation is copied to a fork first, in slices and without a lock. The rest happens under the Lane's lock,
and only if no message was added meanwhile: the files are restored, then one append removes the prompt and everything
after it. A crash before that append leaves the session as it was, and reports files that may have been restored."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kedge.core.records import Attachment, Prompt, RunRecord, SessionRecord
from kedge.core.reversal import Reversal
from kedge.core.transcript import AttachedFile, Message, Text
from kedge.engine.append import Append
from kedge.engine.door import Door, WritePlan
from kedge.engine.forks import WholeCopy, copy_whole, give_up, make_session
from kedge.engine.lane_state import LaneState
from kedge.engine.reclaiming import Reclaiming
from kedge.engine.reverting import FileReverting, refuse_if_busy
from kedge.engine.workspace import Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import Invalid, KedgeError, LaneBusy, MessageNotFound, SessionNotFound
from kedge.tools.revert import reverts_of

RewindScope = Literal["conversation", "files", "both"]


class Rewound(Struct, frozen=True):
    #: The prompt of the message, to be edited and sent again.
    prompt: Prompt
    #: Paths that have their content from before the message, and paths that others changed since.
    restored: list[str]
    spared: list[str]
    #: The session with the conversation as it was; None: the conversation was not rewound.
    fork: SessionRecord | None


class Rewind:
    def __init__(self, door: Door, workspaces: Workspaces, reclaiming: Reclaiming) -> None:
        self._door = door
        self._workspaces = workspaces
        self._reclaiming = reclaiming

    async def rewind(
        self, workspace: Workspace, session_id: str, message_id: str, scope: RewindScope, author: str = ""
    ) -> Rewound:
        """Return to the state before this prompt. LaneBusy while a Run is active or queued."""
        with self._workspaces.in_use(workspace):
            state = await self._workspaces.lane(workspace, session_id)
            refuse_if_busy(state)  # checked again under the lock; this saves the copy
            message = await self._prompt_message(workspace, session_id, message_id, scope)
            try:
                return await self._door.run_to_end(self._rewind(workspace, state, message, scope, author))
            finally:
                self._reclaiming.wake()  # what was removed, or what a failed rewind has copied

    async def _prompt_message(
        self, workspace: Workspace, session_id: str, message_id: str, scope: RewindScope
    ) -> Message:
        message = await self._door.store.message(workspace.id, message_id)
        if message is None or message.session_id != session_id:
            raise MessageNotFound(f"Message {message_id} not found in session {session_id}.")
        if message.role != "user" or not any(isinstance(part, Text | AttachedFile) for part in message.parts):
            raise Invalid(f"Message {message_id} is not a prompt; rewind to a prompt of the user.")
        run = await self._door.store.run(workspace.id, message.run_id)
        before, since = await self._door.store.message_runs(session_id, message_id)
        is_folded = run is not None and run.folded_into is not None
        if before & since - {""} and not (is_folded and scope == "conversation"):
            # The files at that time are not stored. A prompt that was cancelled in the queue may also be between a call
            # and its result, while a prompt folds in between two Steps.
            raise Invalid(
                f"Message {message_id} is within the messages of a run that was active at that time; "
                "rewind to the prompt that started the run."
            )
        return message

    async def _rewind(
        self, workspace: Workspace, state: LaneState, message: Message, scope: RewindScope, author: str
    ) -> Rewound:
        copy = None
        if scope != "files":
            copy = await copy_whole(self._door, state.session, message.id)
            copy = replace(copy, session=replace(copy.session, mode=workspace.config.mode))  # as of any fork
        rewinding = _Rewinding(self._door, self._workspaces, workspace, state, message, scope, copy, author)
        try:
            await self._door.write_several(state, rewinding.run)
        except KedgeError:
            if copy is not None and not rewinding.is_forked:
                await give_up(self._door, copy.session)
            raise
        if copy is not None:
            state.context_tokens = 0
            workspace.forget_files(state.session.id)  # the model no longer knows what it has read
        files = rewinding.files
        return Rewound(_prompt_of(message), files.restored, files.spared, copy.session if copy else None)


class _Rewinding:
    """The part of a rewind that happens under the Lane's lock."""

    def __init__(
        self,
        door: Door,
        workspaces: Workspaces,
        workspace: Workspace,
        state: LaneState,
        message: Message,
        scope: RewindScope,
        copy: WholeCopy | None,
        author: str,
    ) -> None:
        self._door, self._workspaces, self._workspace = door, workspaces, workspace
        self._message, self._scope, self._copy = message, scope, copy
        self.files = FileReverting(door, workspace, state.session.id, Reversal("rewind", "started"), author)
        #: The fork was stored, or may have been.
        self.is_forked = False

    async def run(self, write: WritePlan) -> None:
        await write(self._begin)
        await self.files.restore(write)
        if self._copy is not None:
            self.is_forked = True
            await make_session(self._door, self._workspaces, self._workspace, self._copy.session, self._copy.last)
        await write(self._end)

    async def _begin(self, tx: Append) -> None:
        refuse_if_busy(tx.state)
        if tx.state.deleting or tx.state.deleted:
            raise SessionNotFound(f"Session {tx.session.id} was deleted, or is being deleted.")
        if self._copy is not None and tx.session.message_count != self._copy.source_count:
            raise LaneBusy("A message was added to this session during the rewind, which was given up; try again.")
        await self._choose()
        if self.files.reverts:
            self.files.begin(tx)

    async def _end(self, tx: Append) -> None:
        self.files.put_undone(tx)
        if self._copy is None:
            self.files.end(tx)
            return
        fork_id = self._copy.session.id
        tx.cut(self._message.id, self._copy.kept_count, self._copy.kept_summary_id, fork_id)
        self.files.reversal = replace(self.files.reversal, fork_session_id=fork_id)
        self.files.end_after_cut(tx)

    async def _choose(self) -> None:
        """Choose the changes by the Runs from this message on. Files that others changed since are spared."""
        store, workspace_id, files = self._door.store, self._workspace.id, self.files
        files.versions = await store.file_versions(workspace_id, self._message.session_id, None)
        changes = [version for version in files.versions if not version.undone and not version.reverts]
        before, since = await store.message_runs(self._message.session_id, self._message.id)
        run = await store.run(workspace_id, self._message.run_id)
        for run_id in {version.run_id for version in changes} - before - since:
            if await self._is_later(run_id, run):
                since.add(run_id)
        reverts = reverts_of(version for version in changes if version.run_id in since)
        files.reverts = reverts
        spared = {revert.path for revert in reverts} if self._scope == "conversation" else set(await files.conflicts())
        files.spared = [revert.path for revert in reverts if revert.path in spared]
        files.reverts = [revert for revert in reverts if revert.path not in spared]

    async def _is_later(self, run_id: str, than: RunRecord | None) -> bool:
        """Return whether a Run whose messages an earlier rewind removed was accepted after this one.

        A rewind happens only while no Run is live, so that this is also the order in which they were executed."""
        run = await self._door.store.run(self._workspace.id, run_id)
        return run is not None and than is not None and run.session_id == than.session_id and run.seq > than.seq


def _prompt_of(message: Message) -> Prompt:
    attachments = (
        Attachment(file.path, file.path.rpartition("/")[2], file.mime_type, file.size, file.digest)
        for file in message.all(AttachedFile)
    )
    return Prompt(message.text, tuple(attachments))
