"""Recovery: a new process resumes or ends the Runs that the last process left active.

A workspace is recovered when this process opens it for the first time, before any request can reach its Lanes. The
server opens the workspaces with live Runs in the background, each independently of the others.

Each workspace is read completely before anything is written to it. A damaged workspace is set aside unchanged: none of
its Runs is started, resumed or ended. The other workspaces are recovered.
"""

from __future__ import annotations

import asyncio
import logging

from msgspec import Struct

from kedge.config.schema import Config
from kedge.core.commands import RESUMES_MAX, Recover
from kedge.core.events import RunAccepted, RunEnded
from kedge.core.lane import decide
from kedge.core.records import LaneRecord, RunRecord, SessionRecord, WorkspaceRecord
from kedge.core.transcript import HISTORY_MESSAGES_MAX, FinishPart, Message, result_without_return
from kedge.engine.append import Append
from kedge.engine.door import Door
from kedge.engine.lane_state import LaneState
from kedge.engine.run_end import Verdict, end_run, open_calls, results_message
from kedge.engine.workspace import Workspace
from kedge.engine.workspaces import Workspaces
from kedge.errors import KedgeError, ServedElsewhere, ShuttingDown, StoreDamaged, VersionConflict
from kedge.store.base import LogEntry
from kedge.waiting import backoff_s

log = logging.getLogger("kedge.engine")

#: The newest log entries that are verified when a workspace is opened, in about 10 ms. Older ones are verified when
#: read. Items.
ENTRIES_VERIFIED_MAX = 1_000
#: Workspaces that are recovered at the same time: each holds the messages of its lost Runs in memory, and one whose
#: directory does not answer waits for its time limit. Items.
RECOVERED_AT_ONCE_MAX = 16
#: First and longest delay before a workspace that could not be recovered is tried again. Seconds.
RECOVER_AGAIN_S, RECOVER_AGAIN_S_MAX = 0.2, 30.0


class LostSession(Struct, frozen=True):
    """A session with live Runs whose process is gone."""

    session: SessionRecord
    #: The Run that was active, and its messages.
    host: RunRecord
    messages: list[Message]
    #: Its tool calls that wait for an answer of the user.
    waiting: set[str]
    #: Its tool calls that the user was asked to approve, and did not: they have not begun.
    unapproved: set[str]


class Recovery:
    def __init__(self, door: Door, workspaces: Workspaces, config: Config) -> None:
        self.door = door
        self.workspaces = workspaces
        self.config = config
        self.unrecovered = workspaces.unserved.unrecovered
        #: Workspace id -> its lost sessions as the first attempt read them. A second attempt, after the store failed,
        #: must not take a Run that the first one has resumed for a lost one.
        self._lost: dict[str, list[LostSession]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Workspaces whose first attempt has not ended.
        self._untried = 0
        self._closing = False

    # --- in the background ---------------------------------------------------------------------------------------

    @property
    def is_starting(self) -> bool:
        """True until the first attempt to recover each workspace has ended."""
        return self._untried > 0

    def start(self, live: list[WorkspaceRecord]) -> None:
        """Recover workspaces with live Runs in the background. Those that are being recovered are left out."""
        slots = asyncio.Semaphore(RECOVERED_AT_ONCE_MAX)
        for record in [record for record in live if record.id not in self.unrecovered]:
            self.unrecovered[record.id] = None  # before the first request
            self._untried += 1
            task = asyncio.get_running_loop().create_task(self._recover_until_ok(record, slots))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Begin no more writes. The Runs that are left belong to the next process."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _recover_until_ok(self, record: WorkspaceRecord, slots: asyncio.Semaphore) -> None:
        delays_s = backoff_s(RECOVER_AGAIN_S, RECOVER_AGAIN_S_MAX)
        is_first = True
        while record.id in self.unrecovered:
            async with slots:
                await self._attempt(record, is_logged=is_first)
            self._untried -= is_first
            is_first = False
            if record.id in self.unrecovered:
                await asyncio.sleep(next(delays_s))
        self._untried -= is_first

    async def _attempt(self, record: WorkspaceRecord, *, is_logged: bool) -> None:
        try:
            await self.workspaces.reopen(record)
        except StoreDamaged:
            pass  # it was set aside, which is logged there
        except ServedElsewhere:
            self.unrecovered.pop(record.id, None)
        except KedgeError as error:
            if record.id in self.unrecovered:
                self.unrecovered[record.id] = error
            if is_logged:
                log.warning("the Runs of %s are not recovered yet, trying again: %s", record.path, error.message)
        except Exception:  # a boundary: the other workspaces, and the next attempt, do not depend on this one
            if is_logged:
                log.exception("the Runs of %s are not recovered yet, trying again", record.path)

    # --- one workspace -------------------------------------------------------------------------------------------

    async def recover(self, workspace: Workspace) -> None:
        """Verify a workspace that is being opened, and recover its Lanes with live Runs. May be repeated.

        Raises StoreDamaged if data that recovery needs is damaged."""
        lost = self._lost.get(workspace.id)
        if lost is None:
            lost = await self._inspect(workspace.id)
            if lost:
                self._lost[workspace.id] = lost
        for one in lost:
            state = workspace.lanes.setdefault(one.session.id, LaneState(one.session, workspace.feed))
            try:
                await self._recover_session(state, one)
            except (StoreDamaged, VersionConflict):
                del self._lost[workspace.id]
                raise
        self._lost.pop(workspace.id, None)

    async def _inspect(self, workspace_id: str) -> list[LostSession]:
        """Return the sessions with live Runs. Raises StoreDamaged if data that recovery needs is damaged."""
        store = self.door.store
        floor, head = await store.bounds(workspace_id)
        entries = await store.read(workspace_id, max(floor, head - ENTRIES_VERIFIED_MAX), ENTRIES_VERIFIED_MAX)
        sessions = {session.id: session for session in await store.sessions(workspace_id)}
        await store.asks(workspace_id)
        await store.grants(workspace_id)
        live = await store.live_runs(workspace_id)
        for run in live:
            if run.session_id not in sessions:
                raise StoreDamaged(f"session {run.session_id} of run {run.run_id} is missing")
        _compare(entries, set(sessions), {(run.session_id, run.run_id) for run in live})
        return [await self._lost_session(sessions[run]) for run in dict.fromkeys(run.session_id for run in live)]

    async def _lost_session(self, session: SessionRecord) -> LostSession:
        store = self.door.store
        record, live = await store.lane(session.id)
        host = _host(record, live)
        messages = await store.last_messages(session.id, HISTORY_MESSAGES_MAX)
        own = [message for message in messages if message.run_id == host.run_id]
        # A call that waits for an answer has not begun, so it keeps waiting. Any other may have had an effect, unless
        # the user was asked to approve it and did not.
        asks = [ask for ask in await store.session_asks(session.id, settled=True) if ask.run_id == host.run_id]
        waiting = {ask.tool_call_id for ask in asks if ask.state == "pending"}
        allowed = {ask.tool_call_id for ask in asks if ask.is_allowed or ask.kind == "question"}
        return LostSession(session, host, own, waiting, {ask.tool_call_id for ask in asks} - allowed)

    async def _recover_session(self, state: LaneState, lost: LostSession) -> None:
        """Resume or end the Run that was active and complete its transcript. Queued Runs follow."""
        host = lost.host
        # No tool call waits for an agent's Run: that call was lost with its process.
        resumes_max = 0 if host.options.parent_run_id else RESUMES_MAX
        streaming = next((one for one in lost.messages if one.role == "assistant" and not one.finish), None)

        async def plan(tx: Append) -> None:
            if self._closing:
                raise ShuttingDown("The server is shutting down; try again in a moment.")
            run = tx.state.runs.get(host.run_id)
            if run is None or run.resumes > host.resumes:
                return  # an earlier attempt did this: its append was stored although the store reported a failure
            command = Recover(self.config.runs.on_crash, tx.now, resumes_max)
            is_ending = any(isinstance(event, RunEnded) for event in decide(tx.lane, command))
            calls = tuple(call for call in open_calls(lost.messages) if is_ending or call.id not in lost.waiting)
            if results := tuple(
                result_without_return(call, has_begun=call.id not in lost.unapproved) for call in calls
            ):
                tx.put_message("created", results_message(tx.new_id("m"), host, results, tx.now))
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
