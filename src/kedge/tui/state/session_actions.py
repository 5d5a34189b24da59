"""The user's requests to the server.

Requests that change the Runs of a session are sent one at a time. A prompt typed after Esc is sent after the cancel was
answered, so that the cancel cannot cover it. An Esc right after Enter waits until the prompt is accepted, so that there
is a Run to cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from textual.notifications import SeverityLevel

from kedge.client.client import new_run_id
from kedge.client.complete_file import complete_file
from kedge.client.view.job_text import jobs_remain
from kedge.client.view.workspace_view import WorkspaceView
from kedge.core.approvals import Answer
from kedge.core.modes import Mode
from kedge.errors import (
    AskWithdrawn,
    Conflict,
    KedgeError,
    NotFound,
    RunNotFound,
    RunNotQueued,
    Unavailable,
    Unreachable,
)
from kedge.tui.connection import ServerConnection
from kedge.tui.render.cell_width import with_tilde
from kedge.tui.render.session_rows import title_of
from kedge.wire import models as m
from kedge.wire.reversal_models import RewindScope

T = TypeVar("T")


class SessionActions:
    def __init__(
        self, connection: ServerConnection, view: WorkspaceView, report: Callable[[str, SeverityLevel], None]
    ) -> None:
        self._connection, self._client, self._view, self._report = connection, connection.client, view, report
        self._locks: dict[str, asyncio.Lock] = {}
        #: Prompts that the server has not accepted yet: session and text by Run id.
        self.sending: dict[str, tuple[str, str]] = {}
        #: Sessions that are being deleted at the request of this user.
        self.being_deleted: set[str] = set()

    @property
    def _workspace_id(self) -> str:
        return self._connection.id

    def sending_in(self, session_id: str) -> list[str]:
        return [run_id for run_id, (owner, _) in self.sending.items() if owner == session_id]

    async def _in_order(self, session_id: str, call: Callable[[], Awaitable[T]]) -> T:
        async with self._lock(session_id):
            return await self._connection.retry(call)

    def _lock(self, session_id: str) -> asyncio.Lock:
        return self._locks.setdefault(session_id, asyncio.Lock())

    # --- runs -------------------------------------------------------------------------------------------------------

    def begin(self, session_id: str, text: str) -> str:
        """Register a prompt as being sent; return the id of its Run."""
        run_id = new_run_id()
        self.sending[run_id] = (session_id, text)
        return run_id

    async def submit(self, run_id: str, attachments: list[m.AttachmentBody], *, folds: bool) -> m.Receipt:
        session_id, text = self.sending[run_id]
        prompt = m.SubmitPrompt(
            session_id=session_id,
            prompt=text,
            run_id=run_id,
            attachments=attachments or None,
            when_busy="fold" if folds else "queue",
            expand=True,
        )
        try:
            return await self._in_order(session_id, lambda: self._client.submit(self._workspace_id, prompt))
        finally:
            del self.sending[run_id]

    def run_to_stop(self, session_id: str) -> str:
        """Return the Run that the first Esc stops: the active one, else the prompt being sent. Empty: none."""
        active = self._view.active(session_id)
        return active.run_id if active is not None else next(iter(self.sending_in(session_id)), "")

    async def stop_run(self, session_id: str, run_id: str) -> bool:
        """Cancel a Run; return False if the store did not take the cancel yet."""
        with suppress(NotFound):  # it was refused, or its session is deleted: there is nothing to stop
            stopping = self._in_order(session_id, lambda: self._client.cancel_run(self._workspace_id, run_id))
            reply = await stopping
            self._report_kept(reply)
            return reply.recorded
        return True

    def _report_kept(self, reply: m.CancelReply) -> None:
        if reply.jobs:
            self._report(jobs_remain(reply.jobs), "information")

    async def stop_all(self, session_id: str) -> list[str]:
        """Cancel all accepted Runs of the session. Returns the prompts of those that never started."""
        async with self._lock(session_id):
            active = self._view.active(session_id)
            known = [*self._view.queue(session_id), *([active] if active is not None else [])]
            with suppress(Unreachable, Unavailable):
                reply = await self._client.cancel_session(self._workspace_id, session_id)
                self._report_kept(reply)
                runs = [self._view.run(covered.run_id) for covered in reply.covered if covered.was == "queued"]
                return [run.prompt for run in runs if run is not None]
        # The request may have been received. Repeated, it would also cover Runs accepted since: cancel one by one.
        return [run.prompt for run in known if await self.remove(run)]

    # --- the queue --------------------------------------------------------------------------------------------------

    async def remove(self, run: m.RunBody) -> bool:
        """Cancel a queued Run; return whether it was still queued."""
        reply = await self._in_order(run.session_id, lambda: self._client.cancel_run(self._workspace_id, run.run_id))
        if any(covered.run_id == run.run_id for covered in reply.covered):
            return any(covered.run_id == run.run_id and covered.was == "queued" for covered in reply.covered)
        # The response to an earlier attempt may have been lost, or another client cancelled the Run.
        now = await self._connection.retry(lambda: self._client.run(self._workspace_id, run.run_id))
        return now.outcome == "cancelled" and not now.started_at

    async def edit(self, run: m.RunBody, text: str, attachments: list[m.AttachmentBody] | None) -> None:
        """Replace the text of a queued Run, and its attachments unless they are None."""
        await self._in_order(
            run.session_id, lambda: self._client.edit_run(self._workspace_id, run.run_id, text, attachments)
        )

    async def move(self, run: m.RunBody, by: int) -> None:
        """Move a queued Run down by this many places, or up if `by` is negative."""
        queue = [other.run_id for other in self._view.queue(run.session_id)]
        if run.run_id not in queue:
            raise RunNotQueued("This prompt is no longer queued")
        index = queue.index(run.run_id)
        others = queue[:index] + queue[index + 1 :]
        target = max(0, min(len(others), index + by))
        before = others[target] if target < len(others) else None
        await self._in_order(run.session_id, lambda: self._client.move_run(self._workspace_id, run.run_id, before))

    async def fold_in(self, run: m.RunBody) -> None:
        """Fold a queued Run into the active one, at its next Step."""
        await self._in_order(run.session_id, lambda: self._client.fold_run(self._workspace_id, run.run_id))

    # --- approvals --------------------------------------------------------------------------------------------------

    async def answer(self, ask_id: str, action: Answer, reason: str = "", rules: Sequence[str] = ()) -> bool:
        """Answer an approval; return whether this answer counts. The events report any other answer.

        `rules`: to grant instead of the first offer."""
        shown = next((ask for ask in self._view.asks() if ask.id == ask_id), None)
        binding = shown.binding if isinstance(shown, m.PermissionRequest) else ""
        try:
            reply = await self._connection.retry(
                lambda: self._client.answer_permission(self._workspace_id, ask_id, action, reason, binding, rules)
            )
        except (Conflict, NotFound):
            return False
        return reply.resolved

    async def answer_questions(self, batch_id: str, responses: list[m.QuestionResponse] | None) -> None:
        """Answer the questions of a batch. None: decline to answer."""

        async def answer() -> m.Resolved:
            if responses is None:
                return await self._client.cancel_questions(self._workspace_id, batch_id)
            return await self._client.answer_questions(self._workspace_id, batch_id, responses)

        with suppress(AskWithdrawn, NotFound):
            await self._connection.retry(answer)

    # --- the session ------------------------------------------------------------------------------------------------

    async def shell(self, session_id: str, command: str) -> m.ShellReply:
        """Run a shell command. Not retried: it may have run."""
        async with self._lock(session_id):
            return await self._client.shell(self._workspace_id, session_id, command)

    async def create_session(self) -> str:
        session = await self._client.create_session(self._workspace_id)
        self._view.load_sessions([session], self._connection.at)
        return session.id

    async def rename_session(self, session_id: str, title: str) -> None:
        await self._connection.retry(lambda: self._client.rename_session(self._workspace_id, session_id, title))

    async def set_mode(self, session_id: str, mode: Mode) -> None:
        at = self._connection.at
        changed = await self._in_order(
            session_id, lambda: self._client.change_session(self._workspace_id, session_id, mode=mode)
        )
        self._view.load_sessions([changed], at)

    async def delete_session(self, session_id: str) -> None:
        """Delete a session. The server first cancels its Runs and waits until they end."""
        session = self._view.session(session_id)
        self.being_deleted.add(session_id)
        try:
            with suppress(NotFound):  # another client deleted it first
                await self._connection.retry(lambda: self._client.delete_session(self._workspace_id, session_id))
        except KedgeError:
            self.being_deleted.discard(session_id)
            raise
        self._report(f"deleted: {title_of(session) if session else session_id}", "information")

    async def fork_session(self, session_id: str) -> str:
        """Copy a session; return the id of the copy, empty if the session is. Not retried: it would make two."""
        last = (await self._connection.last_messages(session_id))[-1:]
        if not last:
            self._report("nothing to fork: the session is empty", "warning")
            return ""
        copy = await self._client.fork_session(self._workspace_id, session_id, last[0].id)
        self._view.load_sessions([copy], self._connection.at)
        return copy.id

    async def export_session(self, session_id: str) -> None:
        path = Path(self._connection.path) / f"session-{session_id}.md"

        async def export() -> None:
            with complete_file(path) as file:
                async for piece in self._client.export_pieces(self._workspace_id, session_id, "md"):
                    file.write(piece)

        try:
            await self._connection.retry(export)
        except OSError as error:
            self._report(f"cannot write {with_tilde(str(path))}: {error.strerror}", "error")
            return
        self._report(f"exported to {with_tilde(str(path))}", "information")

    async def undo_session(self, session_id: str) -> None:
        """Undo the file changes of the last Run. Not retried: it would also undo the Run before it."""
        try:
            undone = await self._client.undo(self._workspace_id, session_id)
        except RunNotFound:
            self._report("nothing to undo: no run of this session changed files that can be restored", "warning")
            return
        self._report_restored(undone.files)

    async def redo_session(self, session_id: str) -> None:
        """Take back the last undo or rewind of files. Not retried: it would also take back the one before it."""
        try:
            redone = await self._client.redo(self._workspace_id, session_id)
        except RunNotFound:
            self._report("nothing to redo: there is no undo of this session to take back", "warning")
            return
        self._report_restored(redone.files)

    async def rewind_session(self, session_id: str, message_id: str, scope: RewindScope) -> str:
        """Return to before a prompt; return its text if it left the conversation. Not retried: it may have happened."""
        async with self._lock(session_id):
            reply = await self._client.rewind(self._workspace_id, session_id, message_id, scope)
        spared = f"; kept, with later changes: {', '.join(map(with_tilde, reply.spared))}" if reply.spared else ""
        files = f"; restored: {', '.join(map(with_tilde, reply.restored))}" if reply.restored else ""
        fork = f"; the conversation as it was is in session {reply.fork_session_id}" if reply.fork_session_id else ""
        self._report(f"rewound{fork}{files}{spared}", "information")
        return reply.prompt if reply.fork_session_id else ""

    def _report_restored(self, files: list[str]) -> None:
        self._report(f"restored: {', '.join(map(with_tilde, files)) or 'no file had to be changed'}", "information")
