"""What a new process does first: no Run may stay "running" because its process is gone.

Workspace by workspace, all that will be needed is read before anything is written. One in which something is not whole
is set aside as it is: none of its Runs is started, resumed or ended, and the others go on without it.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack

from msgspec import Struct

from kedge.agent.history import HISTORY_MESSAGES_MAX
from kedge.config.schema import Config
from kedge.core.commands import RESUMES_MAX, Recover
from kedge.core.events import Change, LaneEvent, RunAccepted, RunEnded
from kedge.core.records import LaneRecord, RunRecord, WorkspaceRecord
from kedge.core.transcript import Finish, Message, ToolCall, ToolResult
from kedge.engine.door import Door
from kedge.engine.lane_state import Addition, OpenLane
from kedge.engine.ports import Clock, Ids
from kedge.engine.run_end import Verdict, close_run, cut_off_results
from kedge.engine.workspaces import Workspaces
from kedge.errors import StoreDamaged, StoreUnavailable, VersionConflict
from kedge.store.base import LogEntry, Store

log = logging.getLogger("kedge.engine")

#: The newest entries of each log that are checked before the server starts: some ten milliseconds. Whoever reads older
#: ones has them checked then. Items.
ENTRIES_CHECKED_MAX = 1_000


class Lost(Struct, frozen=True):
    """A session in which Runs are live and their process is gone."""

    session_id: str
    #: The Run that was active, the messages of it, and its calls that wait for people.
    host: RunRecord
    own: list[Message]
    waiting: set[str]


class Recovery(Struct, frozen=True):
    store: Store
    door: Door
    workspaces: Workspaces
    clock: Clock
    ids: Ids
    config: Config

    async def go_on(self) -> list[OpenLane]:
        """Make whole what the last process left; the Lanes in which there was something."""
        found: list[tuple[WorkspaceRecord, list[Lost]]] = []
        # All are read before any is written: a start that fails here has cost no Run one of its resumptions.
        for record in await self.store.workspaces():
            try:
                found.append((record, await self._looked_at(record)))
            except StoreDamaged as error:
                self.workspaces.set_aside(record, error)
        lanes: list[OpenLane] = []
        with ExitStack() as held:  # until all are known: a Run that is over at once must not close it for the others
            for record, sessions in found:
                try:
                    lanes += await self._go_on(record, sessions, held)
                # The second: the log and the records contradict each other, and nobody else writes them.
                except (StoreDamaged, VersionConflict) as error:
                    self.workspaces.set_aside(record, error)
        return lanes

    async def _go_on(self, record: WorkspaceRecord, sessions: list[Lost], held: ExitStack) -> list[OpenLane]:
        try:
            await self.store.trim(record.id, self.config.server.log_entries_max)
        except StoreUnavailable as error:  # a full disk, for example: it can wait, those who only look need not
            log.warning("the log of %s was not made shorter: %s", record.path, error)
        lanes: list[OpenLane] = []
        for lost in sessions:
            workspace = await self.workspaces.reopen(record.path)
            held.enter_context(workspace.in_use())
            lane = await self.workspaces.lane(workspace, lost.session_id)
            await self._recover(lane, lost)
            lanes.append(lane)
        return lanes

    async def _looked_at(self, record: WorkspaceRecord) -> list[Lost]:
        """Its sessions with live Runs. StoreDamaged if something that is needed to go on is not whole."""
        floor, head = await self.store.bounds(record.id)
        entries = await self.store.read(record.id, max(floor, head - ENTRIES_CHECKED_MAX), ENTRIES_CHECKED_MAX)
        known = {session.id for session in await self.store.sessions(record.id)}
        await self.store.asks(record.id)
        await self.store.grants(record.id)
        live = await self.store.live_runs(record.id)
        for run in live:
            if run.session_id not in known:
                raise StoreDamaged(f"session {run.session_id} of run {run.run_id} is missing")
        _compare(entries, known, {(run.session_id, run.run_id) for run in live})
        return [await self._lost(session_id) for session_id in dict.fromkeys(run.session_id for run in live)]

    async def _lost(self, session_id: str) -> Lost:
        record, live = await self.store.lane(session_id)
        host = _host(record, live)
        messages = await self.store.last_messages(session_id, HISTORY_MESSAGES_MAX)
        own = [message for message in messages if message.run_id == host.run_id]
        # A call that people had not answered yet has not begun: it goes on to wait. Any other may have had an effect.
        waiting = {ask.tool_call_id for ask in await self.store.session_asks(session_id)}
        return Lost(session_id, host, own, waiting)

    async def _recover(self, lane: OpenLane, lost: Lost) -> None:
        """Resume or end the Run that was active, with its transcript made whole; queued Runs go on behind it."""
        host, own, waiting = lost.host, lost.own, lost.waiting
        # Nobody waits for an agent's Run any more: the call it served was cut off with its process.
        resumes_max = 0 if host.options.parent_run_id else RESUMES_MAX

        def compose(events: tuple[LaneEvent, ...], runs: dict[str, RunRecord]) -> Addition:
            ends = any(isinstance(event, RunEnded) for event in events)
            calls = tuple(call for call in _open_calls(own) if ends or call.id not in waiting)
            return _made_whole(host, own, calls, events, runs, self.clock.now_ms(), self.ids)

        command = Recover(self.config.runs.on_crash, self.clock.now_ms(), resumes_max)
        await self.door.command(lane, command, compose=compose)


def _compare(entries: list[LogEntry], sessions: set[str], live: set[tuple[str, str]]) -> None:
    """What the log says of Runs must be what their records say: they are written together. The log keeps the Runs of
    sessions that were deleted."""
    accepted = {(entry.session_id, entry.event.run_id) for entry in entries if isinstance(entry.event, RunAccepted)}
    ended = {(entry.session_id, entry.event.run_id) for entry in entries if isinstance(entry.event, RunEnded)}
    for session_id, run_id in accepted - ended - live:
        if session_id in sessions:
            raise StoreDamaged(f"the log says that run {run_id} is live, and it is not")
    for _, run_id in ended & live:
        raise StoreDamaged(f"the log says that run {run_id} has ended, and it is live")


def _host(record: LaneRecord, live: list[RunRecord]) -> RunRecord:
    """The active Run. These records are written together, so that it is damage if they do not fit together."""
    hosts = [run for run in live if run.state == "active" and run.folded_into is None]
    seqs = {run.seq for run in live}
    if len(hosts) != 1 or len(seqs) < len(live) or max(seqs) >= record.next_seq:
        raise StoreDamaged(f"the Lane of session {record.session_id} does not fit its runs")
    return hosts[0]


def _made_whole(
    host: RunRecord,
    own: list[Message],
    calls: tuple[ToolCall, ...],
    events: tuple[LaneEvent, ...],
    runs: dict[str, RunRecord],
    now: int,
    ids: Ids,
) -> Addition:
    streaming = next((message for message in own if message.role == "assistant" and not message.finish), None)
    cut_off = cut_off_results(ids.new("m"), host, calls, now)
    before: list[tuple[Change, Message]] = [("created", cut_off)] if cut_off else []
    if any(isinstance(event, RunEnded) for event in events):
        blank = Message(ids.new("m"), host.session_id, "assistant", (), now, now, host.run_id)
        last: tuple[Change, Message] = ("updated", streaming) if streaming else ("created", blank)
        verdict = Verdict("stopped", usage=host.usage, context_tokens=host.context_tokens)
        return close_run(events, runs, verdict, last, before, now)
    if streaming:
        cut = Finish("error", now, "interrupted", "The server process was lost; this step was begun again.")
        before.append(("updated", streaming.closed(cut)))
    return Addition(before)


def _open_calls(own: list[Message]) -> tuple[ToolCall, ...]:
    answered = {result.tool_call_id for message in own for result in message.all(ToolResult)}
    return tuple(call for message in own for call in message.all(ToolCall) if call.id not in answered)
