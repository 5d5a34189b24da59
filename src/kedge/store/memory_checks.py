"""The checks of a Write to the memory store: all of them before it changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kedge.core.approvals import Ask, Grant
from kedge.core.records import LaneRecord, RunRecord
from kedge.core.transcript import Message
from kedge.store import codec, memory_files, memory_removal
from kedge.store.base import Write

if TYPE_CHECKING:
    from kedge.store.memory import MemoryData, Owned, WorkspaceLog


def check(data: MemoryData, log: WorkspaceLog, write: Write, rows: list[codec.LogRow], runs: list[RunRecord]) -> None:
    """Raise an error if the Write must be refused. Change nothing."""
    if write.lane is not None:
        session_id, expected = write.lane.lane.session_id, write.lane.expected_version
        owner, lane = data.lanes.get(session_id, (write.workspace_id, LaneRecord(session_id)))
        if owner != write.workspace_id:
            raise codec.belongs_elsewhere("the Lane of session", session_id)
        if lane.version != expected:
            raise codec.lane_moved_on(session_id, expected, lane.version)
    ended: set[tuple[str, str | None]] = set()
    for row in rows:
        if row.kind == "RunEnded":
            run = data.runs.get((write.workspace_id, str(row.run_id)))
            recorded = run is not None and run.session_id == row.session_id and run.state == "ended"
            key = (row.session_id, row.run_id)
            if recorded or key in log.ended or key in ended:
                raise codec.run_has_ended(str(row.run_id))
            ended.add(key)
    for session in write.sessions:
        codec.encode_session(session)  # refuses invalid values
        held = data.sessions.get(session.id)
        if held is not None and held.workspace_id != session.workspace_id:
            raise codec.belongs_elsewhere("session", session.id)
    sessions_of_runs: dict[str, str] = {}
    for run in runs:
        codec.encode_run(run, run.position)
        codec.encode_prompt(run.prompt)
        known = data.runs.get((run.workspace_id, run.run_id), run).session_id
        if sessions_of_runs.setdefault(run.run_id, known) != run.session_id:
            raise codec.belongs_elsewhere("Run", run.run_id)
        _check_attachments(data, write, run)
    memory_removal.check_cuts(data, write)
    _check_messages(data, write)
    _check_approvals(data, write)


def _check_messages(data: MemoryData, write: Write) -> None:
    sessions_of_messages: dict[str, str] = {}
    for message in write.messages:
        codec.encode_parts(message.parts)
        stored = data.messages.get((write.workspace_id, message.id))
        known = stored.message.session_id if stored else message.session_id
        if sessions_of_messages.setdefault(message.id, known) != message.session_id:
            raise codec.belongs_elsewhere("message", message.id)
        _check_attachments(data, write, message)
    for tail in write.tails:
        stored = data.messages.get((write.workspace_id, tail.message_id))
        held = stored.message.session_id if stored else sessions_of_messages.get(tail.message_id)
        if held != tail.session_id:
            raise codec.no_message_for_tail(tail.message_id)


def _check_attachments(data: MemoryData, write: Write, record: RunRecord | Message) -> None:
    new = {content.digest for content in write.attachments}
    for digest in codec.digests_of(record):
        if digest not in new and (write.workspace_id, digest) not in data.attachments:
            raise codec.no_attachment(digest)


def _check_approvals(data: MemoryData, write: Write) -> None:
    # A Write may name one id twice: the second time it is measured against the first.
    asks: dict[str, Ask] = {}
    for ask in write.asks:
        codec.encode_ask(ask)
        held = asks.get(ask.id) or data.asks.get(ask.id, ask)
        _check_owner("Ask", held, ask)
        if held.state != "pending" and held != ask:
            raise codec.ask_is_settled(ask.id)
        asks[ask.id] = ask
    grants: dict[str, Grant] = {}
    for grant in write.grants:
        codec.encode_grant(grant)
        _check_owner("grant", grants.setdefault(grant.id, data.grants.get(grant.id, grant)), grant)
    memory_files.check(data, write)


def _check_owner(what: str, stored: Owned, new: Owned) -> None:
    if (stored.workspace_id, stored.session_id) != (new.workspace_id, new.session_id):
        raise codec.belongs_elsewhere(what, new.id)
