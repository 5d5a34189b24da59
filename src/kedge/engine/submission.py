"""The acceptance of a prompt, and the limits of the queue in bytes.

The Lane limits the number of queued Runs. Their size is limited here: a prompt may have a megabyte of text, which stays
in memory, and attachments of twelve, which stay on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from kedge.core.commands import Submit, WhenBusy, when_busy_default
from kedge.core.records import AttachmentContent, Prompt, RunRecord
from kedge.engine.append import Append
from kedge.engine.workspace import Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import QueueFull, SessionNotFound
from kedge.store.base import Store

MIB = 1024 * 1024


class QueueLimits:
    """The bytes that wait in the queues of one server."""

    def __init__(self, workspaces: Workspaces, server_mib_max: int) -> None:
        self._workspaces = workspaces
        self._server_mib_max = server_mib_max
        #: Prompts that are being accepted or changed: no queue contains them yet. Bytes.
        self._pending_bytes = 0

    @contextmanager
    def pending(self, prompt: Prompt) -> Iterator[None]:
        self._pending_bytes += prompt.size
        try:
            yield
        finally:
            self._pending_bytes -= prompt.size

    def check(self, tx: Append, session_mib_max: int) -> None:
        """Raise QueueFull if the queues are too large with the prompt that this append accepts or changes."""
        after = tx.state.runs | tx.runs
        session_bytes = sum(run.prompt.size for run in after.values() if run.state == "queued")
        if session_bytes > session_mib_max * MIB:
            raise _queue_full("of this session", session_bytes, session_mib_max)
        lanes = [state for workspace in self._workspaces.all() for state in workspace.lanes.values()]
        server_bytes = sum(state.queued_bytes for state in lanes) + self._pending_bytes
        if server_bytes > self._server_mib_max * MIB:
            raise _queue_full("of this server", server_bytes, self._server_mib_max)


def _queue_full(whose: str, size: int, mib_max: int) -> QueueFull:
    return QueueFull(
        f"The queued prompts {whose} would have {size / MIB:.1f} MiB with their attachments; "
        f"at most {mib_max} MiB are allowed. Wait, or cancel some of them."
    )


class Submission(Struct, frozen=True):
    """A prompt that a client submits."""

    workspace: Workspace
    run: RunRecord
    #: The client chose the run_id, so that this may be a repeated submit.
    has_own_run_id: bool
    when_busy: WhenBusy | None
    contents: tuple[AttachmentContent, ...]

    async def plan(self, tx: Append, store: Store, limits: QueueLimits) -> None:
        """Accept the prompt, unless it was accepted before."""
        run, settings = self.run, self.workspace.config.runs
        if tx.state.deleting or tx.state.deleted:
            raise SessionNotFound(f"Session {run.session_id} was deleted, or is being deleted.")
        known: RunRecord | None = None
        if self.has_own_run_id:
            known = tx.state.runs.get(run.run_id) or await store.run(self.workspace.id, run.run_id)
        default = when_busy_default(has_own_run_id=self.has_own_run_id)
        when_busy = self.when_busy or (default if settings.when_busy == "auto" else settings.when_busy)
        accepted_content = known.content if known else None
        tx.accept(run, Submit(run.run_id, run.content, when_busy, tx.now, accepted_content, settings.queue_runs_max))
        tx.attachments = self.contents
        if known is None and tx.runs[run.run_id].state == "queued" and when_busy != "interrupt":
            limits.check(tx, settings.queue_mib_max)
