"""The store in a PostgreSQL database, which several processes may use at the same time.

- Every change of a workspace is made in a transaction that holds the lock of its row. So its Positions have the order
  of the commits, without a gap, and a reader that follows the log never skips one.
- Concurrent Writes of one process share a transaction (`postgres_appends`). A durable Write is committed with
  `synchronous_commit`, others without.
- A store may claim workspaces (`leases`). A workspace that another store has claimed is not written (`postgres_fence`).
- The log is a hash chain, as in the other stores. PostgreSQL has checksums of its pages (`initdb --data-checksums`).
- The process keeps up to eight connections. They need a session each, so a proxy that shares them by transaction does
  not work.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from kedge.core.approvals import Ask, Grant
from kedge.core.audit import AuditEntry
from kedge.core.records import EVERY_RUN, FileVersion, LaneRecord, RunRecord, RunSpan, SessionRecord, WorkspaceRecord
from kedge.core.run_facts import RunFacts
from kedge.core.transcript import Message
from kedge.errors import LeaseLost, WorkspaceNotFound
from kedge.store import (
    codec,
    postgres_reclaim,
    postgres_records,
    postgres_removal,
    postgres_rows,
    postgres_write,
)
from kedge.store.base import CopiedMessages, KnownWorkspace, LogEntry, SearchHit, Write
from kedge.store.data_directory import DataDirectory
from kedge.store.leases import LEASE_S, Claimed, HeldBy, NodeInfo, NodeLoad, NodeState
from kedge.store.postgres_connect import PostgresConnection
from kedge.store.postgres_database import PostgresDatabase
from kedge.store.postgres_leases import PostgresLeases
from kedge.store.postgres_rows import VISIBLE_MESSAGE, bounded, messages_of, ordinal_of, runs_of
from kedge.store.postgres_users import PostgresUsers

P = ParamSpec("P")
T = TypeVar("T")

#: Entries that `verify` checks in one request. Items.
_VERIFY_ENTRIES = 1_000
#: How much longer a byte for the search index takes than others. Ratio.
_INDEX_COST = 5

_RUN = "SELECT record, prompt FROM runs"
# A seq is unique in a Lane; the other columns make the order deterministic in any case.
_BY_SEQ = "seq, workspace_id, run_id"
_RUN_VISIBLE, _ASK_VISIBLE, _FILE_VISIBLE = map(postgres_reclaim.visible, ("runs", "asks", "file_versions"))
#: The largest integer of PostgreSQL.
_UPDATED_AT_MAX = 2**63 - 1


def _read(
    *, is_long: bool = False, has_queries: bool = False
) -> Callable[
    [Callable[Concatenate[PostgresStore, PostgresConnection, P], Awaitable[T]]],
    Callable[Concatenate[PostgresStore, P], Coroutine[Any, Any, T]],
]:
    """Run a method on a connection for reads. `has_queries`: in one transaction, so that all queries see one state."""

    def decorate(
        method: Callable[Concatenate[PostgresStore, PostgresConnection, P], Awaitable[T]],
    ) -> Callable[Concatenate[PostgresStore, P], Coroutine[Any, Any, T]]:
        @wraps(method)
        async def read(store: PostgresStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
            async def in_snapshot(db: PostgresConnection) -> T:
                if not has_queries:
                    return await method(store, db, *args, **kwargs)
                async with db.transaction(isolation="repeatable_read", readonly=True):
                    return await method(store, db, *args, **kwargs)

            return await store.database.read(in_snapshot, is_long=is_long)

        return read

    return decorate


class PostgresStore:
    """`url`: `postgresql://user:password@host/database?schema=NAME`. `directory` is locked while the store is open."""

    def __init__(
        self,
        url: str,
        directory: DataDirectory | None = None,
        *,
        cluster_id: str = "",
        lease_s: float = LEASE_S,
        on_lease_lost: Callable[[str], None] | None = None,
        read_only: bool = False,
    ) -> None:
        self.database = PostgresDatabase(url, directory, cluster_id, read_only=read_only)
        self._leases = PostgresLeases(self.database, lease_s)
        self._fence = self.database.fence
        if on_lease_lost is not None:
            self._fence.on_lost = on_lease_lost
        self._change = self.database.change
        self.users = PostgresUsers(self.database)

    @property
    def incarnation(self) -> str:
        """The id of this store object, by which others recognise what it writes and holds."""
        return self._fence.incarnation

    async def open(self) -> None:
        await self.database.open()

    async def close(self) -> None:
        await self.database.close()

    # --- The log ------------------------------------------------------------------------------------------------------

    async def append(self, write: Write) -> int:
        return await self.database.append(write)

    async def trim(self, workspace_id: str, keep: int) -> None:
        while await self._change(lambda db: postgres_write.trim(db, self._fence, workspace_id, keep), durable=False):
            pass

    async def verify(self, workspace_id: str) -> int:
        position, head = await self.bounds(workspace_id)
        checked = 0
        while position < head:
            entries = await self.read(workspace_id, position, min(_VERIFY_ENTRIES, head - position))
            if not entries:
                break  # trimmed meanwhile
            checked += len(entries)
            position = entries[-1].position
        return checked

    @_read()
    async def bounds(self, db: PostgresConnection, workspace_id: str) -> tuple[int, int]:
        row = await db.fetchrow("SELECT floor, head FROM workspaces WHERE id = $1", workspace_id)
        if row is None:
            raise codec.unknown_workspace(workspace_id)
        return int(row[0]), int(row[1])

    @_read(is_long=True)
    async def read(self, db: PostgresConnection, workspace_id: str, after: int, limit: int) -> list[LogEntry]:
        return await postgres_rows.log_entries(db, workspace_id, after, limit)

    # --- Records ------------------------------------------------------------------------------------------------------

    async def workspace(self, path: str, new: WorkspaceRecord) -> WorkspaceRecord:
        if (known := await self.workspace_at(path)) is not None:
            return known  # without a write: a known workspace can be opened when the disk is full
        return await self._change(lambda db: postgres_write.workspace(db, path, new))

    @_read()
    async def workspace_at(self, db: PostgresConnection, path: str) -> WorkspaceRecord | None:
        codec.check_texts((path,))
        digest = hashlib.sha256(path.encode()).digest()
        row = await db.fetchrow("SELECT id, path, created_at, base FROM workspaces WHERE path_hash = $1", digest)
        return WorkspaceRecord(*row) if row else None

    @_read()
    async def workspaces(self, db: PostgresConnection) -> list[WorkspaceRecord]:
        rows = await db.fetch("SELECT id, path, created_at, base FROM workspaces ORDER BY ordinal")
        return [WorkspaceRecord(*row) for row in rows]

    @_read(is_long=True)
    async def known_workspaces(self, db: PostgresConnection, after: str, limit: int) -> list[KnownWorkspace]:
        return await postgres_rows.known_of(db, "id > $1 ORDER BY id LIMIT $2", after, max(limit, 0))

    @_read()
    async def known_workspace(self, db: PostgresConnection, workspace_id: str) -> KnownWorkspace | None:
        known = await postgres_rows.known_of(db, "id = $1", workspace_id)
        return known[0] if known else None

    async def remove_workspace(self, workspace_id: str, audit: tuple[AuditEntry, ...] = ()) -> None:
        await self._change(lambda db: postgres_removal.remove(db, self._fence, workspace_id, audit))

    async def purge(self) -> bool:
        if not await self._has_removed():
            return False
        return await self._change(postgres_removal.purge, durable=False)

    @_read()
    async def _has_removed(self, db: PostgresConnection) -> bool:
        return await db.fetchval("SELECT 1 FROM removed_workspaces LIMIT 1") is not None

    @_read()
    async def live_workspaces(self, db: PostgresConnection) -> list[WorkspaceRecord]:
        rows = await db.fetch(
            "SELECT id, path, created_at, base FROM workspaces"
            " WHERE id IN (SELECT workspace_id FROM runs WHERE state <> 'ended') ORDER BY ordinal"
        )
        return [WorkspaceRecord(*row) for row in rows]

    @_read(is_long=True)
    async def sessions(
        self,
        db: PostgresConnection,
        workspace_id: str,
        after: tuple[int, str] | None = None,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[SessionRecord]:
        order = "updated_at DESC, id"
        query = (
            "SELECT record, updated_at, id FROM sessions WHERE workspace_id = $1 AND updated_at <= $2"
            f" AND (updated_at < $2 OR id > $3) ORDER BY {order} LIMIT $4"
        )
        values: list[Any] = [workspace_id, *(after or (_UPDATED_AT_MAX, "")), limit]
        if bytes_max is not None:
            query = f"{bounded(query, 'octet_length(record)', order, '$5')} ORDER BY {order}"
            values.append(bytes_max)
        return [codec.decode_session(row[0]) for row in await db.fetch(query, *values)]

    @_read()
    async def session(self, db: PostgresConnection, workspace_id: str, session_id: str) -> SessionRecord | None:
        record = await db.fetchval(
            "SELECT record FROM sessions WHERE id = $1 AND workspace_id = $2", session_id, workspace_id
        )
        return codec.decode_session(record) if record is not None else None

    @_read(has_queries=True)
    async def lane(self, db: PostgresConnection, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        row = await db.fetchrow(
            "SELECT session_id, version, next_seq, mark FROM lanes WHERE session_id = $1", session_id
        )
        live = await db.fetch(
            f"{_RUN} WHERE session_id = $1 AND state <> 'ended' AND {_RUN_VISIBLE} ORDER BY {_BY_SEQ}", session_id
        )
        return LaneRecord(*row) if row else LaneRecord(session_id), runs_of(live)

    @_read()
    async def run(self, db: PostgresConnection, workspace_id: str, run_id: str) -> RunRecord | None:
        query = f"{_RUN} WHERE workspace_id = $1 AND run_id = $2 AND {_RUN_VISIBLE}"
        runs = runs_of(await db.fetch(query, workspace_id, run_id))
        return runs[0] if runs else None

    @_read(is_long=True)
    async def attachment(self, db: PostgresConnection, workspace_id: str, digest: str) -> bytes:
        content = await db.fetchval(
            "SELECT content FROM attachments WHERE workspace_id = $1 AND digest = $2 AND NOT is_unused",
            workspace_id,
            digest,
        )
        return codec.check_attachment(workspace_id, digest, content)

    @_read(is_long=True)
    async def runs(
        self,
        db: PostgresConnection,
        session_id: str,
        limit: int,
        bytes_max: int | None = None,
        within: RunSpan = EVERY_RUN,
    ) -> list[RunRecord]:
        order = "seq DESC, workspace_id DESC, run_id DESC"
        query = (
            f"SELECT record, prompt, seq, workspace_id, run_id FROM runs WHERE session_id = $1 AND {_RUN_VISIBLE}"
            " AND seq < $2 AND accepted_at <= $3 AND (ended_at IS NULL OR ended_at >= $4)"
            f" ORDER BY {order} LIMIT $5"
        )
        values = [session_id, within.before_seq, within.until, within.since, max(limit, 0)]
        if bytes_max is not None:
            size = "(octet_length(record) + coalesce(octet_length(prompt), 0))"
            query = f"{bounded(query, size, order, '$6')} ORDER BY {order}"
            values.append(bytes_max)
        return runs_of(await db.fetch(query, *values))[::-1]

    @_read(is_long=True)
    async def run_facts(
        self, db: PostgresConnection, after: int, limit: int, since: int, until: int, workspace_id: str | None = None
    ) -> tuple[list[RunFacts], int]:
        return await postgres_rows.facts_page(db, after, limit, since, until, workspace_id)

    @_read(is_long=True)
    async def live_runs(self, db: PostgresConnection, workspace_id: str) -> list[RunRecord]:
        live = f"{_RUN} WHERE workspace_id = $1 AND state <> 'ended' AND {_RUN_VISIBLE} ORDER BY session_id, {_BY_SEQ}"
        return runs_of(await db.fetch(live, workspace_id))

    @_read(is_long=True, has_queries=True)
    async def messages(
        self,
        db: PostgresConnection,
        session_id: str,
        after: str | None,
        limit: int,
        bytes_max: int | None = None,
        before: str | None = None,
        run_id: str | None = None,
    ) -> list[Message]:
        return await postgres_rows.page_of_messages(db, session_id, after, before, run_id, limit, bytes_max)

    @_read(is_long=True)
    async def last_messages(
        self, db: PostgresConnection, session_id: str, limit: int, first: str = ""
    ) -> list[Message]:
        selected = (
            "(SELECT * FROM messages WHERE session_id = $1 AND ordinal >= coalesce((SELECT ordinal FROM messages"
            f" WHERE id = $2 AND session_id = $1 AND {VISIBLE_MESSAGE}), 0)"
            f" AND {VISIBLE_MESSAGE} ORDER BY ordinal DESC LIMIT $3) AS selected"
        )
        return await messages_of(db, selected, session_id, first, max(limit, 0))

    @_read()
    async def message(self, db: PostgresConnection, workspace_id: str, message_id: str) -> Message | None:
        selected = f"messages WHERE workspace_id = $1 AND id = $2 AND {VISIBLE_MESSAGE}"
        messages = await messages_of(db, selected, workspace_id, message_id)
        return messages[0] if messages else None

    @_read(is_long=True, has_queries=True)
    async def message_runs(self, db: PostgresConnection, session_id: str, message_id: str) -> tuple[set[str], set[str]]:
        rows = await db.fetch(
            f"SELECT DISTINCT run_id, ordinal >= $1 FROM messages WHERE session_id = $2 AND {VISIBLE_MESSAGE}",
            await ordinal_of(db, session_id, message_id),
            session_id,
        )
        before, since = ({str(run_id) for run_id, is_since in rows if is_since == side} for side in (False, True))
        return before, since

    async def copy_messages(
        self, workspace_id: str, source: str, target: str, after: str, until: str, new_ids: Sequence[str]
    ) -> CopiedMessages:
        rows = await self._copies(workspace_id, source, target, after, until, new_ids)
        if not rows:
            return CopiedMessages(0)
        copies = [(workspace_id, *copy) for _, copy in rows]

        async def add(db: PostgresConnection) -> None:
            await postgres_write.lock_one(db, self._fence, workspace_id)
            await postgres_reclaim.begin_copy(db, self._fence, workspace_id, target)
            await postgres_records.put_messages(db, copies)

        await self._change(add, durable=False)
        return codec.copied_messages([(original, message) for original, (message, _, _) in rows])

    @_read(is_long=True, has_queries=True)
    async def _copies(
        self,
        db: PostgresConnection,
        workspace_id: str,
        source: str,
        target: str,
        after: str,
        until: str,
        new_ids: Sequence[str],
    ) -> list[tuple[str, tuple[Message, bytes, str]]]:
        """Return the originals of one slice by id, and their copies with encoded parts and tokens."""
        start, end = (await ordinal_of(db, source, after) if after else -1), await ordinal_of(db, source, until)
        page = (
            f"SELECT * FROM messages WHERE session_id = $1 AND ordinal > $2 AND ordinal < $3 AND {VISIBLE_MESSAGE}"
            " ORDER BY ordinal LIMIT $4"
        )
        selected = f"({bounded(page, 'octet_length(parts)', 'ordinal', '$5')}) AS selected"
        values = (source, start, end, len(new_ids), postgres_write.COPY_BYTES_MAX)
        copies: list[tuple[str, tuple[Message, bytes, str]]] = []
        left_bytes = postgres_write.COPY_BYTES_MAX
        for new_id, original in zip(new_ids, await messages_of(db, selected, *values), strict=False):
            copy = replace(original, id=new_id, session_id=target)
            parts = codec.encode_parts(copy.parts)
            indexed = postgres_records.indexed_text(workspace_id, copy)
            copies.append((original.id, (copy, parts, indexed)))
            left_bytes -= len(parts) + _INDEX_COST * len(indexed)
            if left_bytes <= 0:
                break
        return copies

    async def reclaim(self) -> bool:
        work = await self._work_left()
        if work is None:
            return await self._change(lambda db: postgres_reclaim.give_up_copies(db, self._fence), durable=False)
        table, workspace_id, item_id = work

        async def remove(db: PostgresConnection) -> None:
            await postgres_write.lock_one(db, self._fence, workspace_id)
            await postgres_reclaim.remove(db, table, workspace_id, item_id)

        with contextlib.suppress(WorkspaceNotFound, LeaseLost):  # meanwhile: another process removes the rest
            await self._change(remove, durable=False)
        return True

    @_read()
    async def _work_left(self, db: PostgresConnection) -> tuple[str, str, str] | None:
        return await postgres_reclaim.work_left(db, self._fence)

    @_read(is_long=True)
    async def search(self, db: PostgresConnection, workspace_id: str, query: str, limit: int) -> list[SearchHit]:
        return await postgres_rows.search_hits(db, workspace_id, query, limit)

    # --- Approvals and undo -------------------------------------------------------------------------------------------

    @_read()
    async def asks(self, db: PostgresConnection, workspace_id: str) -> list[Ask]:
        rows = await db.fetch(
            "SELECT record FROM asks WHERE workspace_id = $1 AND state = 'pending'"
            f" AND {_ASK_VISIBLE} ORDER BY ordinal",
            workspace_id,
        )
        return [codec.decode_ask(row[0]) for row in rows]

    @_read()
    async def session_asks(self, db: PostgresConnection, session_id: str, *, settled: bool = False) -> list[Ask]:
        rows = await db.fetch(
            "SELECT record FROM asks WHERE session_id = $1 AND ($2 OR state = 'pending')"
            f" AND {_ASK_VISIBLE} ORDER BY ordinal",
            session_id,
            settled,
        )
        return [codec.decode_ask(row[0]) for row in rows]

    @_read()
    async def ask(self, db: PostgresConnection, workspace_id: str, ask_id: str) -> Ask | None:
        query = f"SELECT record FROM asks WHERE id = $1 AND workspace_id = $2 AND {_ASK_VISIBLE}"
        record = await db.fetchval(query, ask_id, workspace_id)
        return codec.decode_ask(record) if record is not None else None

    @_read()
    async def grants(self, db: PostgresConnection, workspace_id: str) -> list[Grant]:
        rows = await db.fetch("SELECT record FROM grants WHERE workspace_id = $1 ORDER BY ordinal", workspace_id)
        return [codec.decode_grant(row[0]) for row in rows]

    @_read()
    async def file_versions(
        self, db: PostgresConnection, workspace_id: str, session_id: str, run_id: str | None
    ) -> list[FileVersion]:
        rows = await db.fetch(
            "SELECT record FROM file_versions WHERE session_id = $1 AND workspace_id = $2"
            f" AND ($3::text IS NULL OR run_id = $3) AND {_FILE_VISIBLE} ORDER BY ordinal",
            session_id,
            workspace_id,
            run_id,
        )
        return [codec.decode_file(row[0]) for row in rows]

    @_read()
    async def file_version(self, db: PostgresConnection, workspace_id: str, version_id: str) -> FileVersion | None:
        query = f"SELECT record FROM file_versions WHERE id = $1 AND workspace_id = $2 AND {_FILE_VISIBLE}"
        record = await db.fetchval(query, version_id, workspace_id)
        return codec.decode_file(record) if record is not None else None

    @_read(is_long=True)
    async def original(self, db: PostgresConnection, workspace_id: str, version_id: str) -> bytes:
        query = f"SELECT content FROM file_versions WHERE id = $1 AND workspace_id = $2 AND {_FILE_VISIBLE}"
        content = await db.fetchval(query, version_id, workspace_id)
        if content is None:
            raise codec.no_original(workspace_id, version_id)
        return bytes(content)

    # --- Leases and wake-ups ------------------------------------------------------------------------------------------

    async def register(self, node: NodeInfo) -> None:
        await self._leases.register(node)

    async def heartbeat(self, load: NodeLoad) -> None:
        await self._leases.heartbeat(load)

    async def unregister(self) -> None:
        await self._leases.unregister()

    async def nodes(self) -> list[NodeState]:
        return await self._leases.nodes()

    async def claim(self, workspace_id: str) -> Claimed | HeldBy:
        return await self._leases.claim(workspace_id)

    async def release(self, workspace_id: str) -> None:
        await self._leases.release(workspace_id)

    async def holder(self, workspace_id: str) -> NodeInfo | None:
        return await self._leases.holder(workspace_id)

    async def orphans(self, limit: int) -> list[WorkspaceRecord]:
        return await self._leases.orphans(limit)

    def listen(self, callback: Callable[[frozenset[str]], None]) -> None:
        """Call back when any process releases workspaces, with their ids, or with an empty set: look at all.

        A hint only: a callback may come late, twice or never."""
        self.database.listen(callback)
