"""Recovery: a new process resumes or ends the Runs that the last process left active.

Each workspace is read completely before anything is written to it. A damaged workspace is set aside unchanged: none of
its Runs is started, resumed or ended. The other workspaces are recovered.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack

from msgspec import Struct

from kedge.config.schema import Config
from kedge.core.commands import RESUMES_MAX, Recover
from kedge.core.events import RunAccepted, RunEnded
from kedge.core.lane import decide
from kedge.core.records import LaneRecord, RunRecord, WorkspaceRecord
from kedge.core.transcript import HISTORY_MESSAGES_MAX, FinishPart, Message
from kedge.engine.append import Append
from kedge.engine.door import Door
from kedge.engine.lane_state import LaneState
from kedge.engine.run_end import Verdict, cut_off_results, end_run, open_calls
from kedge.engine.workspaces import Workspaces
from kedge.errors import StoreDamaged, StoreUnavailable, VersionConflict
from kedge.store.base import LogEntry

log = logging.getLogger("kedge.engine")

#: The newest log entries that are verified at start-up, in about 10 ms. Older ones are verified when read. Items.
ENTRIES_VERIFIED_MAX = 1_000


class LostSession(Struct, frozen=True):
    """A session with live Runs whose process is gone."""

    session_id: str
    #: The Run that was active, and its messages.
    host: RunRecord
    messages: list[Message]
    #: Its tool calls that wait for an answer of the user.
    waiting: set[str]


class Recovery(Struct, frozen=True):
    door: Door
    workspaces: Workspaces
    config: Config

    async def recover(self) -> list[LaneState]:
        """Recover all workspaces; return the Lanes that had live Runs."""
        lost: list[tuple[WorkspaceRecord, list[LostSession]]] = []
        # Everything is read before anything is written: a start that fails here costs no Run a resumption.
        for record in await self.door.store.workspaces():
            try:
                lost.append((record, await self._inspect(record)))
            except StoreDamaged as error:
                self.workspaces.set_aside(record, error)
        states: list[LaneState] = []
        # Hold all of them until the end: a Run that ends at once must not close its workspace for the others.
        with ExitStack() as holds:
            for record, sessions in lost:
                try:
                    states += await self._recover_workspace(record, sessions, holds)
                # A version conflict: the log and the records contradict each other, since no other process writes.
                except (StoreDamaged, VersionConflict) as error:
                    self.workspaces.set_aside(record, error)
        return states

    async def _recover_workspace(
        self, record: WorkspaceRecord, sessions: list[LostSession], holds: ExitStack
    ) -> list[LaneState]:
        try:
            await self.door.store.trim(record.id, self.config.server.log_entries_max)
        except StoreUnavailable as error:  # for example a full disk: trimming can wait
            log.warning("the log of %s was not trimmed: %s", record.path, error)
        states: list[LaneState] = []
        for lost in sessions:
            workspace = await self.workspaces.reopen(record.path)
            holds.enter_context(workspace.in_use())
            state = await self.workspaces.lane(workspace, lost.session_id)
            await self._recover_session(state, lost)
            states.append(state)
        return states

    async def _inspect(self, record: WorkspaceRecord) -> list[LostSession]:
        """Return the sessions with live Runs. Raises StoreDamaged if data that recovery needs is damaged."""
        store = self.door.store
        floor, head = await store.bounds(record.id)
        entries = await store.read(record.id, max(floor, head - ENTRIES_VERIFIED_MAX), ENTRIES_VERIFIED_MAX)
        known = {session.id for session in await store.sessions(record.id)}
        await store.asks(record.id)
        await store.grants(record.id)
        live = await store.live_runs(record.id)
        for run in live:
            if run.session_id not in known:
                raise StoreDamaged(f"session {run.session_id} of run {run.run_id} is missing")
        _compare(entries, known, {(run.session_id, run.run_id) for run in live})
        return [await self._lost(session_id) for session_id in dict.fromkeys(run.session_id for run in live)]

    async def _lost(self, session_id: str) -> LostSession:
        store = self.door.store
        record, live = await store.lane(session_id)
        host = _host(record, live)
        messages = await store.last_messages(session_id, HISTORY_MESSAGES_MAX)
        own = [message for message in messages if message.run_id == host.run_id]
        # A call that waits for an answer has not begun, so it keeps waiting. Any other may have had an effect.
        waiting = {ask.tool_call_id for ask in await store.session_asks(session_id)}
        return LostSession(session_id, host, own, waiting)

    async def _recover_session(self, state: LaneState, lost: LostSession) -> None:
        """Resume or end the Run that was active and complete its transcript. Queued Runs follow."""
        host = lost.host
        # No tool call waits for an agent's Run: that call was lost with its process.
        resumes_max = 0 if host.options.parent_run_id else RESUMES_MAX
        streaming = next((one for one in lost.messages if one.role == "assistant" and not one.finish), None)

        async def plan(tx: Append) -> None:
            command = Recover(self.config.runs.on_crash, tx.now, resumes_max)
            is_ending = any(isinstance(event, RunEnded) for event in decide(tx.lane, command))
            calls = tuple(call for call in open_calls(lost.messages) if is_ending or call.id not in lost.waiting)
            if results := cut_off_results(tx.new_id("m"), host, calls, tx.now):
                tx.put_message("created", results)
            if is_ending:
                blank = Message(tx.new_id("m"), host.session_id, "assistant", (), tx.now, tx.now, host.run_id)
                verdict = Verdict("stopped", usage=host.usage, context_tokens=host.context_tokens)
                end_run(tx, command, verdict, "updated" if streaming else "created", streaming or blank)
                return
            if streaming:
                text = "The server process was lost; this step was repeated."
                tx.put_message("updated", streaming.closed(FinishPart("error", tx.now, "interrupted", text)))
            tx.decide(command)

        await self.door.write(state, plan)


def _compare(entries: list[LogEntry], sessions: set[str], live: set[tuple[str, str]]) -> None:
    """Compare the log with the Run records, which are written together. The log keeps Runs of deleted sessions."""
    accepted = {(entry.session_id, entry.event.run_id) for entry in entries if isinstance(entry.event, RunAccepted)}
    ended = {(entry.session_id, entry.event.run_id) for entry in entries if isinstance(entry.event, RunEnded)}
    for session_id, run_id in accepted - ended - live:
        if session_id in sessions:
            raise StoreDamaged(f"run {run_id} is live in the log but not in its record")
    for _, run_id in ended & live:
        raise StoreDamaged(f"run {run_id} has ended in the log but not in its record")


def _host(record: LaneRecord, live: list[RunRecord]) -> RunRecord:
    """Return the active Run. The records are written together, so a mismatch is damage."""
    hosts = [run for run in live if run.state == "active" and run.folded_into is None]
    seqs = {run.seq for run in live}
    if len(hosts) != 1 or len(seqs) < len(live) or max(seqs) >= record.next_seq:
        raise StoreDamaged(f"the Lane of session {record.session_id} does not match its runs")
    return hosts[0]
