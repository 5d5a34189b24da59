"""The store in memory, for tests, the simulator, and servers that keep no data.

It uses no threads, files or clock: the calls alone determine what happens, and in which order. As in a real store, a
Write is queued and happens in a later step of the loop, even if its caller was cancelled; and the result of a read
may be stale when the caller resumes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from kedge.core.approvals import Ask, Grant
from kedge.core.audit import AuditEntry
from kedge.core.records import EVERY_RUN, FileVersion, LaneRecord, RunRecord, RunSpan, SessionRecord, WorkspaceRecord
from kedge.core.run_facts import RunFacts
from kedge.core.transcript import Message, Tail
from kedge.core.users import UserRecord
from kedge.errors import StoreUnavailable
from kedge.store import codec, memory_checks, memory_files, memory_removal, memory_reports
from kedge.store.base import CopiedMessages, KnownWorkspace, LogEntry, SearchHit, Write
from kedge.store.memory_leases import MemoryLeases, StoredLease, StoredNode
from kedge.store.memory_reports import by_seq, is_within, run_bytes
from kedge.store.memory_users import MemoryUsers, add_audit

Key = tuple[str, str]  # workspace_id, and the id of a Run or message, or the digest of an attachment
Owned = Ask | Grant  # belong to a session, but have globally unique ids


@dataclass(slots=True)
class WorkspaceLog:
    """A workspace and its log. `ended` is a unique index: the (session_id, run_id) of each RunEnded in `rows`."""

    record: WorkspaceRecord
    floor: int
    floor_hash: bytes
    rows: list[codec.LogRow] = field(default_factory=list)
    ended: set[tuple[str, str | None]] = field(default_factory=set)

    @property
    def head(self) -> int:
        return self.floor + len(self.rows)

    @property
    def head_hash(self) -> bytes:
        return self.rows[-1].hash if self.rows else self.floor_hash


@dataclass(slots=True)
class StoredMessage:
    message: Message
    tails: list[Tail] = field(default_factory=list)


@dataclass(slots=True)
class MemoryData:
    """The stored data. It outlives the store that wrote it."""

    logs: dict[str, WorkspaceLog] = field(default_factory=dict)
    sessions: dict[str, SessionRecord] = field(default_factory=dict)
    lanes: dict[str, tuple[str, LaneRecord]] = field(default_factory=dict)  # with the workspace_id
    runs: dict[Key, RunRecord] = field(default_factory=dict)
    live: dict[Key, RunRecord] = field(default_factory=dict)  # the Runs that have not ended
    messages: dict[Key, StoredMessage] = field(default_factory=dict)  # in the order of their first Write
    transcripts: dict[str, dict[Key, StoredMessage]] = field(default_factory=dict)  # the same messages by session_id
    #: Copies that no Write has completed yet, by workspace_id and the id of the new session.
    copies: dict[Key, list[Message]] = field(default_factory=dict)
    #: The sessions among them that were given up.
    abandoned: set[Key] = field(default_factory=set)
    asks: dict[str, Ask] = field(default_factory=dict)
    grants: dict[str, Grant] = field(default_factory=dict)
    files: dict[str, FileVersion] = field(default_factory=dict)
    originals: dict[str, bytes] = field(default_factory=dict)  # by version id
    attachments: dict[Key, bytes] = field(default_factory=dict)  # by digest
    attachment_uses: set[tuple[str, str, str]] = field(default_factory=set)  # workspace_id, session_id, digest
    facts: dict[int, RunFacts] = field(default_factory=dict)  # by ordinal, in the order in which they were stored
    users: dict[str, UserRecord] = field(default_factory=dict)  # by name
    audit: dict[int, AuditEntry] = field(default_factory=dict)  # by ordinal, as above
    nodes: dict[str, StoredNode] = field(default_factory=dict)  # by name
    leases: dict[str, StoredLease] = field(default_factory=dict)  # by workspace_id
    #: The stores with leases that are open: the fence decides what each of them may write.
    shared_by: set[MemoryStore] = field(default_factory=set)
    #: The only other store that may use it: one from before a simulated crash must not write any more.
    owner: MemoryStore | None = None


class MemoryStore:
    """`leases`: those of its node, if several stores are open on the same data."""

    def __init__(self, data: MemoryData | None = None, leases: MemoryLeases | None = None) -> None:
        self.data = data or MemoryData()
        self.leases = leases
        self.users = MemoryUsers(self._own_data)

    def reopened(self) -> MemoryStore:
        """Return another store with the same data, as a new process would. Opening it disables this one."""
        return MemoryStore(self.data)

    async def open(self) -> None:
        if self.leases is not None:
            self.data.shared_by.add(self)
            return
        self.data.owner = self
        self.data.abandoned |= self.data.copies.keys()

    async def close(self) -> None:
        # Queued Writes happen first.
        await asyncio.sleep(0)
        self.data.shared_by.discard(self)
        if self.data.owner is self:
            self.data.owner = None

    # The log

    async def append(self, write: Write) -> int:
        self._own_data()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        loop.call_soon(self._append_queued, write, done)
        return await done

    def _append_queued(self, write: Write, done: asyncio.Future[int]) -> None:
        try:
            head = self._append(write)
        except Exception as error:  # must reach the caller
            if not done.done():  # cancelled otherwise
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(head)

    def _append(self, write: Write) -> int:
        data = self._own_data()
        codec.check_write(write)
        log = self._writable(write.workspace_id)
        rows = codec.log_rows(write, log.head, log.head_hash)
        positions = codec.accepted_positions(rows)
        runs = [replace(run, position=positions.get((run.session_id, run.run_id), run.position)) for run in write.runs]
        memory_checks.check(data, log, write, rows, runs)
        # Nothing below can fail: a Write is atomic.
        log.rows += rows
        log.ended |= {(row.session_id, row.run_id) for row in rows if row.kind == "RunEnded"}
        if write.lane is not None:
            data.lanes[write.lane.lane.session_id] = (write.workspace_id, write.lane.lane)
        memory_removal.cut_messages(data, write)
        for session in write.sessions:
            _put_session(data, session)
        for content in write.attachments:
            data.attachments.setdefault((write.workspace_id, content.digest), content.data)
        for run in runs:
            _put_run(data, run)
        memory_reports.add_facts(data, codec.ended_facts(write))
        for message in write.messages:
            _put_message(data, write.workspace_id, message)
        records: tuple[RunRecord | Message, ...] = (*runs, *write.messages)
        for record in records:
            for digest in codec.digests_of(record):
                data.attachment_uses.add((write.workspace_id, record.session_id, digest))
        for tail in write.tails:
            data.messages[write.workspace_id, tail.message_id].tails.append(tail)
        data.asks |= {ask.id: ask for ask in write.asks}
        data.grants |= {grant.id: grant for grant in write.grants}
        memory_files.put(data, write)
        for grant_id in write.deleted_grants:
            if grant_id in data.grants and data.grants[grant_id].workspace_id == write.workspace_id:
                del data.grants[grant_id]
        add_audit(data, write.audit)
        for session_id in write.deleted_sessions:
            memory_removal.delete_session(data, write.workspace_id, session_id)
        return log.head

    async def read(self, workspace_id: str, after: int, limit: int) -> list[LogEntry]:
        log = self._log(workspace_id)
        start = max(after, log.floor)
        first = start - log.floor
        previous = log.rows[first - 1].hash if 0 < first <= len(log.rows) else log.floor_hash
        rows = log.rows[first : first + max(limit, 0)]
        entries = codec.checked_entries(workspace_id, previous, start, rows)
        await asyncio.sleep(0)
        return entries

    async def bounds(self, workspace_id: str) -> tuple[int, int]:
        log = self._log(workspace_id)
        bounds = (log.floor, log.head)
        await asyncio.sleep(0)
        return bounds

    async def trim(self, workspace_id: str, keep: int) -> None:
        log = self._writable(workspace_id)
        count = len(log.rows) - max(keep, 0)
        if count > 0:
            removed, log.rows = log.rows[:count], log.rows[count:]
            log.floor, log.floor_hash = removed[-1].position, removed[-1].hash
            log.ended -= {(row.session_id, row.run_id) for row in removed if row.kind == "RunEnded"}
        await asyncio.sleep(0)

    async def verify(self, workspace_id: str) -> int:
        return len(await self.read(workspace_id, 0, len(self._log(workspace_id).rows)))

    # Records

    async def workspace(self, path: str, new: WorkspaceRecord) -> WorkspaceRecord:
        logs = self._own_data().logs
        codec.check_texts((path, new.id))
        record = next((log.record for log in logs.values() if log.record.path == path), None)
        if record is None:
            if new.id in logs:
                raise codec.belongs_elsewhere("workspace", new.id)
            record = replace(new, path=path)
            logs[new.id] = WorkspaceLog(record, new.base, codec.first_hash(new.id, new.base))
        await asyncio.sleep(0)
        return record

    async def workspace_at(self, path: str) -> WorkspaceRecord | None:
        codec.check_texts((path,))
        await asyncio.sleep(0)
        return next((log.record for log in self._own_data().logs.values() if log.record.path == path), None)

    async def workspaces(self) -> list[WorkspaceRecord]:
        result = [log.record for log in self._own_data().logs.values()]
        await asyncio.sleep(0)
        return result

    async def known_workspaces(self, after: str, limit: int) -> list[KnownWorkspace]:
        ids = sorted(workspace_id for workspace_id in self._own_data().logs if workspace_id > after)
        result = [memory_removal.known(self.data, workspace_id) for workspace_id in ids[: max(limit, 0)]]
        await asyncio.sleep(0)
        return result

    async def known_workspace(self, workspace_id: str) -> KnownWorkspace | None:
        data = self._own_data()
        result = memory_removal.known(data, workspace_id) if workspace_id in data.logs else None
        await asyncio.sleep(0)
        return result

    async def remove_workspace(self, workspace_id: str, audit: tuple[AuditEntry, ...] = ()) -> None:
        self._writable(workspace_id)
        data = self._own_data()
        for session in [one for one in data.sessions.values() if one.workspace_id == workspace_id]:
            memory_removal.delete_session(data, workspace_id, session.id)
        memory_removal.forget(data.grants, workspace_id, "")
        memory_reports.remove_facts(data, workspace_id)
        del data.logs[workspace_id]
        data.leases.pop(workspace_id, None)
        add_audit(data, audit)
        await asyncio.sleep(0)

    async def purge(self) -> bool:
        return False  # `remove_workspace` has freed everything

    async def live_workspaces(self) -> list[WorkspaceRecord]:
        data = self._own_data()
        live = {run.workspace_id for run in data.live.values()}
        result = [log.record for workspace_id, log in data.logs.items() if workspace_id in live]
        await asyncio.sleep(0)
        return result

    async def sessions(
        self,
        workspace_id: str,
        after: tuple[int, str] | None = None,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[SessionRecord]:
        result = [session for session in self._own_data().sessions.values() if session.workspace_id == workspace_id]
        result.sort(key=lambda session: (-session.updated_at, session.id))
        if after is not None:
            start = (-after[0], after[1])
            result = [session for session in result if (-session.updated_at, session.id) > start]
        await asyncio.sleep(0)
        return codec.page(result[:limit], lambda session: len(codec.encode_session(session)), bytes_max)

    async def session(self, workspace_id: str, session_id: str) -> SessionRecord | None:
        result = self._own_data().sessions.get(session_id)
        await asyncio.sleep(0)
        return result if result and result.workspace_id == workspace_id else None

    async def lane(self, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        data = self._own_data()
        _, lane = data.lanes.get(session_id, ("", LaneRecord(session_id)))
        live = by_seq(run for run in data.live.values() if run.session_id == session_id)
        await asyncio.sleep(0)
        return lane, live

    async def run(self, workspace_id: str, run_id: str) -> RunRecord | None:
        result = self._own_data().runs.get((workspace_id, run_id))
        await asyncio.sleep(0)
        return result

    async def attachment(self, workspace_id: str, digest: str) -> bytes:
        data = self._own_data().attachments.get((workspace_id, digest))
        await asyncio.sleep(0)
        return codec.check_attachment(workspace_id, digest, data)

    async def runs(
        self, session_id: str, limit: int, bytes_max: int | None = None, within: RunSpan = EVERY_RUN
    ) -> list[RunRecord]:
        runs = (run for run in self._own_data().runs.values() if run.session_id == session_id)
        result = by_seq(run for run in runs if is_within(run, within))
        await asyncio.sleep(0)
        return codec.page(result[::-1][: max(limit, 0)], run_bytes, bytes_max)[::-1]

    async def run_facts(
        self, after: int, limit: int, since: int, until: int, workspace_id: str | None = None
    ) -> tuple[list[RunFacts], int]:
        result = memory_reports.facts_page(self._own_data(), after, limit, since, until, workspace_id)
        await asyncio.sleep(0)
        return result

    async def live_runs(self, workspace_id: str) -> list[RunRecord]:
        live = by_seq(run for run in self._own_data().live.values() if run.workspace_id == workspace_id)
        live.sort(key=lambda run: run.session_id)
        await asyncio.sleep(0)
        return live

    async def messages(
        self,
        session_id: str,
        after: str | None,
        limit: int,
        bytes_max: int | None = None,
        before: str | None = None,
        run_id: str | None = None,
    ) -> list[Message]:
        page = memory_removal.page_of_messages(self._own_data(), session_id, after, before, run_id, limit, bytes_max)
        shown = [codec.merged(stored.message, stored.tails) for stored in page]
        await asyncio.sleep(0)
        return shown

    async def last_messages(self, session_id: str, limit: int, first: str = "") -> list[Message]:
        result = list(self._own_data().transcripts.get(session_id, {}).values())
        result = result[next((index for index, stored in enumerate(result) if stored.message.id == first), 0) :]
        shown = [codec.merged(stored.message, stored.tails) for stored in result[max(len(result) - max(limit, 0), 0) :]]
        await asyncio.sleep(0)
        return shown

    async def message(self, workspace_id: str, message_id: str) -> Message | None:
        stored = self._own_data().messages.get((workspace_id, message_id))
        result = codec.merged(stored.message, stored.tails) if stored else None
        await asyncio.sleep(0)
        return result

    async def message_runs(self, session_id: str, message_id: str) -> tuple[set[str], set[str]]:
        return memory_removal.message_runs(self._own_data(), session_id, message_id)

    async def copy_messages(
        self, workspace_id: str, source: str, target: str, after: str, until: str, new_ids: Sequence[str]
    ) -> CopiedMessages:
        messages = await self.messages(source, after or None, len(self._own_data().messages))
        end = next((index for index, message in enumerate(messages) if message.id == until), None)
        if end is None:
            raise codec.unknown_message(until, source)
        self._writable(workspace_id)
        return memory_removal.add_copies(self._own_data(), workspace_id, target, messages[:end], new_ids)

    async def reclaim(self) -> bool:
        await asyncio.sleep(0)
        return memory_removal.remove_slice(self._own_data())

    async def search(self, workspace_id: str, query: str, limit: int) -> list[SearchHit]:
        hits = memory_reports.search_hits(self._own_data(), workspace_id, query, limit)
        await asyncio.sleep(0)
        return hits

    # Approvals and undo

    async def asks(self, workspace_id: str) -> list[Ask]:
        result = _pending(ask for ask in self._own_data().asks.values() if ask.workspace_id == workspace_id)
        await asyncio.sleep(0)
        return result

    async def session_asks(self, session_id: str, *, settled: bool = False) -> list[Ask]:
        result = _pending((ask for ask in self._own_data().asks.values() if ask.session_id == session_id), settled)
        await asyncio.sleep(0)
        return result

    async def ask(self, workspace_id: str, ask_id: str) -> Ask | None:
        result = self._own_data().asks.get(ask_id)
        await asyncio.sleep(0)
        return result if result and result.workspace_id == workspace_id else None

    async def grants(self, workspace_id: str) -> list[Grant]:
        result = [grant for grant in self._own_data().grants.values() if grant.workspace_id == workspace_id]
        await asyncio.sleep(0)
        return result

    async def file_versions(self, workspace_id: str, session_id: str, run_id: str | None) -> list[FileVersion]:
        result = memory_files.versions(self._own_data(), workspace_id, session_id, run_id)
        await asyncio.sleep(0)
        return result

    async def file_version(self, workspace_id: str, version_id: str) -> FileVersion | None:
        result = memory_files.version(self._own_data(), workspace_id, version_id)
        await asyncio.sleep(0)
        return result

    async def original(self, workspace_id: str, version_id: str) -> bytes:
        await asyncio.sleep(0)
        return memory_files.original(self._own_data(), workspace_id, version_id)  # a content does not change

    def _own_data(self) -> MemoryData:
        if self.data.owner is not self and self not in self.data.shared_by:
            raise StoreUnavailable("the store is closed, not open yet, or replaced by another one")
        return self.data

    def _log(self, workspace_id: str) -> WorkspaceLog:
        log = self._own_data().logs.get(workspace_id)
        if log is None:
            raise codec.unknown_workspace(workspace_id)
        return log

    def _writable(self, workspace_id: str) -> WorkspaceLog:
        log = self._log(workspace_id)
        if self.leases is not None:
            self.leases.check(workspace_id)
        return log


def _pending(asks: Iterable[Ask], settled: bool = False) -> list[Ask]:
    """Filter; the order is that of the first Write, not of the times, since a clock may be set."""
    return [ask for ask in asks if settled or ask.state == "pending"]


def _put_session(data: MemoryData, session: SessionRecord) -> None:
    data.sessions[session.id] = session
    key = (session.workspace_id, session.id)
    if key not in data.abandoned:
        for message in data.copies.pop(key, ()):
            _put_message(data, session.workspace_id, message)


def _put_run(data: MemoryData, run: RunRecord) -> None:
    key = (run.workspace_id, run.run_id)
    data.runs[key] = run
    if run.state == "ended":
        data.live.pop(key, None)
    else:
        data.live[key] = run


def _put_message(data: MemoryData, workspace_id: str, message: Message) -> None:
    key = (workspace_id, message.id)
    stored = data.messages.get(key)
    if stored is None:
        data.messages[key] = StoredMessage(message)
        data.transcripts.setdefault(message.session_id, {})[key] = data.messages[key]
    else:
        stored.message, stored.tails = message, []
