"""What people want of the server, one thing after the other.

All deeds of a session go through one line: a prompt that was typed after an Esc is sent after that Esc was answered, so
that the cancel can never cover it; an Esc right after Enter waits until the prompt is accepted, so that there is
something to cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from kedge.client.client import new_run_id
from kedge.client.view.workspace_view import WorkspaceView
from kedge.core.approvals import Answer
from kedge.errors import AskIsOver, Conflict, NotFound, RunNotQueued, Unavailable, Unreachable
from kedge.tui.connection import ServerConnection
from kedge.wire import models as m

T = TypeVar("T")


class SessionActions:
    def __init__(self, connection: ServerConnection, view: WorkspaceView) -> None:
        self._connection, self._view = connection, view
        self._lines: dict[str, asyncio.Lock] = {}
        #: Prompts on their way to the server: the id of each Run, its session and its text.
        self.sending: dict[str, tuple[str, str]] = {}

    def sending_in(self, session_id: str) -> list[str]:
        return [run_id for run_id, (owner, _) in self.sending.items() if owner == session_id]

    async def _in_line(self, session_id: str, call: Callable[[], Awaitable[T]]) -> T:
        async with self._lines.setdefault(session_id, asyncio.Lock()):
            return await self._connection.retry(call)

    # --- runs -------------------------------------------------------------------------------------------------------

    def begin(self, session_id: str, text: str) -> str:
        """A prompt is on its way from now on; the id of its Run."""
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
        )
        try:
            return await self._in_line(session_id, lambda: self._connection.client.submit(self._connection.id, prompt))
        finally:
            del self.sending[run_id]

    def to_stop(self, session_id: str) -> str:
        """The Run that the first Esc stops: the one at work; else the prompt that is on its way. Empty: none."""
        active = self._view.active(session_id)
        if active is not None:
            return active.run_id
        return next(iter(self.sending_in(session_id)), "")

    async def stop_run(self, session_id: str, run_id: str) -> None:
        with suppress(NotFound):  # it was refused, or has gone with its session: there is nothing to stop
            await self._in_line(session_id, lambda: self._connection.client.cancel_run(self._connection.id, run_id))

    async def stop_all(self, session_id: str) -> list[str]:
        """Everything accepted so far. The prompts that never began: they go back to whoever wrote them."""
        async with self._lines.setdefault(session_id, asyncio.Lock()):
            active = self._view.active(session_id)
            known = [*self._view.queue(session_id), *([active] if active is not None else [])]
            with suppress(Unreachable, Unavailable):
                reply = await self._connection.client.cancel_session(self._connection.id, session_id)
                return self._prompts([covered.run_id for covered in reply.covered if covered.was == "queued"])
        # It may have come through, and asked for again it would cover what others have asked for since: so one by one.
        return [run.prompt for run in known if await self.remove(run)]

    def _prompts(self, run_ids: list[str]) -> list[str]:
        runs = [self._view.run(run_id) for run_id in run_ids]
        return [run.prompt for run in runs if run is not None]

    # --- the queue --------------------------------------------------------------------------------------------------

    async def remove(self, run: m.RunBody) -> bool:
        """Whether it was still waiting, and is not any more."""
        client, workspace = self._connection.client, self._connection.id
        reply = await self._in_line(run.session_id, lambda: client.cancel_run(workspace, run.run_id))
        if any(covered.run_id == run.run_id for covered in reply.covered):
            return any(covered.run_id == run.run_id and covered.was == "queued" for covered in reply.covered)
        # The answer to an earlier request may have been lost, or somebody else was quicker.
        now = await self._connection.retry(lambda: client.run(workspace, run.run_id))
        return now.outcome == "cancelled" and not now.started_at

    async def edit(self, run: m.RunBody, text: str, attachments: list[m.AttachmentBody] | None) -> None:
        """`attachments`: instead of those it has; None: it keeps them."""
        client, workspace = self._connection.client, self._connection.id
        await self._in_line(run.session_id, lambda: client.edit_run(workspace, run.run_id, text, attachments))

    async def move(self, run: m.RunBody, by: int) -> None:
        """Up or down by so many places."""
        queue = [other.run_id for other in self._view.queue(run.session_id)]
        if run.run_id not in queue:
            raise RunNotQueued("it is not queued any more")
        place = queue.index(run.run_id)
        others = queue[:place] + queue[place + 1 :]
        target = max(0, min(len(others), place + by))
        before = others[target] if target < len(others) else None
        await self._in_line(
            run.session_id, lambda: self._connection.client.move_run(self._connection.id, run.run_id, before)
        )

    async def fold_in(self, run: m.RunBody) -> None:
        """Into the Run at work, at its next Step."""
        await self._in_line(run.session_id, lambda: self._connection.client.fold_run(self._connection.id, run.run_id))

    # --- approvals --------------------------------------------------------------------------------------------------

    async def answer(self, ask_id: str, action: Answer, why: str = "") -> str:
        """What stands, when somebody else was quicker; empty when this answer counts."""
        client, shown = self._connection.client, next((ask for ask in self._view.asks() if ask.id == ask_id), None)
        binding = shown.binding if isinstance(shown, m.PermissionRequest) else ""
        try:
            reply = await self._connection.retry(
                lambda: client.answer_permission(self._connection.id, ask_id, action, why, binding)
            )
        except (Conflict, NotFound) as error:
            return error.message
        return "" if reply.resolved else f"answered elsewhere: {reply.answered}"

    async def answer_questions(self, batch_id: str, responses: list[m.QuestionResponse] | None) -> str:
        """None: people would rather not answer."""
        client, workspace = self._connection.client, self._connection.id

        async def answer() -> m.Resolved:
            if responses is None:
                return await client.cancel_questions(workspace, batch_id)
            return await client.answer_questions(workspace, batch_id, responses)

        try:
            reply = await self._connection.retry(answer)
        except (AskIsOver, NotFound) as error:
            return error.message
        return "" if reply.resolved else "answered elsewhere"

    # --- the session ------------------------------------------------------------------------------------------------

    async def shell(self, session_id: str, command: str) -> m.ShellReply:
        """Not repeated: it may have run."""
        async with self._lines.setdefault(session_id, asyncio.Lock()):
            return await self._connection.client.shell(self._connection.id, session_id, command)
