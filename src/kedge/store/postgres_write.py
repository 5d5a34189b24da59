"""Changes of the PostgreSQL database, for many Writes at once.

`apply` runs in a transaction that has locked the rows of its workspaces. It has two modes:

- fast: the Writes have no id in common, and each table is changed by one statement for all of them.
- careful: one Write, and one statement for each of its records, so that an error names the first refused record.

A refused Write may have changed rows: the caller rolls back. It then repeats the Writes carefully, one by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kedge.core.records import RunRecord, WorkspaceRecord
from kedge.core.transcript import Message
from kedge.store import codec, postgres_reclaim, postgres_records
from kedge.store.base import Write
from kedge.store.postgres_connect import PostgresConnection
from kedge.store.postgres_fence import Fence

T = TypeVar("T")

#: Entries removed in one transaction: trimming a long log must not delay other writes. Items.
TRIM_ENTRIES_MAX = 1_000
#: Content copied in one transaction: some milliseconds of work. Bytes.
COPY_BYTES_MAX = 256 * 1024


@dataclass(slots=True)
class LockedWorkspace:
    """The row of a workspace, locked until the end of the transaction."""

    head: int
    head_hash: bytes
    holder: str
    token: int
    has_leftovers: bool
    is_changed: bool = False


async def lock(db: PostgresConnection, ids: Iterable[str], *, skip: bool = False) -> dict[str, LockedWorkspace]:
    """Lock the rows, in the order of their ids. `skip`: omit those that another transaction has locked."""
    rows = await db.fetch(
        "SELECT id, head, head_hash, holder, token, has_leftovers FROM workspaces WHERE id = ANY($1::text[])"
        f" ORDER BY id FOR UPDATE {'SKIP LOCKED' if skip else ''}",
        sorted(set(ids)),
    )
    return {row[0]: LockedWorkspace(*row[1:]) for row in rows}


async def lock_one(db: PostgresConnection, fence: Fence, workspace_id: str) -> LockedWorkspace:
    """Lock a workspace that this store may write to."""
    codec.check_texts((workspace_id,))
    locked = (await lock(db, (workspace_id,))).get(workspace_id)
    if locked is None:
        raise codec.unknown_workspace(workspace_id)
    fence.check(workspace_id, locked.holder, locked.token)
    return locked


# --- Groups of Writes ------------------------------------------------------------------------------------------------


def grouped(writes: Sequence[Write]) -> list[list[Write]]:
    """Split into groups for the fast mode, in order. A Write that hides or removes something is a group of its own."""
    groups: list[list[Write]] = []
    used: set[tuple[str, ...]] = set()
    is_open = False
    for write in writes:
        keys = _keys(write)
        is_alone = bool(write.cuts or write.deleted_sessions or write.deleted_grants) or has_repeated_ids(write)
        if is_alone or not is_open or used & keys:
            groups.append([write])
            used = keys
        else:
            groups[-1].append(write)
            used |= keys
        is_open = not is_alone
    return groups


def _keys(write: Write) -> set[tuple[str, ...]]:
    """Return the records that a Write changes, or on which its checks depend."""
    owner = write.workspace_id
    keys: set[tuple[str, ...]] = {("session", session.id) for session in write.sessions}
    if write.lane is not None:
        keys.add(("lane", write.lane.lane.session_id))
    keys |= {("run", owner, run.run_id) for run in write.runs}
    keys |= {("run", owner, str(codec.run_id_of(event))) for _, event in write.events if event_is_end(event)}
    keys |= {("message", owner, message.id) for message in write.messages}
    keys |= {("message", owner, tail.message_id) for tail in write.tails}
    keys |= {("ask", ask.id) for ask in write.asks}
    keys |= {("grant", grant.id) for grant in write.grants}
    keys |= {("file", version.id) for version in write.files}
    keys |= {("digest", owner, content.digest) for content in write.attachments}
    for record in _naming(write):
        keys |= {("digest", owner, digest) for digest in codec.digests_of(record)}
    return keys


def event_is_end(event: object) -> bool:
    return type(event).__name__ == "RunEnded"


def has_repeated_ids(write: Write) -> bool:
    """Return True if the Write has two records with one id: one statement cannot replace a row twice."""
    ends = [(session_id, codec.run_id_of(event)) for session_id, event in write.events if event_is_end(event)]
    ids: tuple[list[Any], ...] = (
        [session.id for session in write.sessions],
        [run.run_id for run in write.runs],
        [message.id for message in write.messages],
        [ask.id for ask in write.asks],
        [grant.id for grant in write.grants],
        [version.id for version in write.files],
        ends,
    )
    return any(len(set(names)) < len(names) for names in ids)


def _naming(write: Write) -> list[RunRecord | Message]:
    """Return the records whose attachments must be stored."""
    runs = [run for run in write.runs if run.run_id not in write.unchanged_prompts]
    return [*runs, *write.messages]


# --- Applying --------------------------------------------------------------------------------------------------------


async def apply(
    db: PostgresConnection,
    fence: Fence,
    workspaces: dict[str, LockedWorkspace],
    writes: Sequence[Write],
    *,
    careful: bool,
) -> list[int]:
    """Apply the Writes; return the Position of the last entry for each of them."""

    def parts(items: Iterable[T]) -> list[list[T]]:
        listed = list(items)
        return [[item] for item in listed] if careful else [listed] if listed else []

    rows: list[tuple[Write, list[codec.LogRow]]] = []
    heads: list[int] = []
    for write in writes:
        rows.append((write, await _begin(db, fence, workspaces, write)))
        heads.append(workspaces[write.workspace_id].head)
    for lanes in parts((write.workspace_id, write.lane) for write in writes if write.lane is not None):
        await postgres_records.put_lanes(db, lanes)
    await postgres_records.append_rows(db, [(write.workspace_id, row) for write, added in rows for row in added])
    for write in writes:
        for session_id, message_id in write.cuts:
            await postgres_reclaim.cut(db, write.workspace_id, session_id, message_id)
    for sessions in parts(session for write in writes for session in write.sessions):
        await postgres_records.put_sessions(db, sessions)
    await postgres_records.put_attachments(
        db, [(write.workspace_id, content) for write in writes for content in write.attachments]
    )
    for runs in parts((write, run, _position(run, added)) for write, added in rows for run in write.runs):
        await postgres_records.put_runs(db, runs)
    await postgres_records.add_facts(db, [facts for write in writes for facts in codec.ended_facts(write)])
    for messages in parts((write.workspace_id, message) for write in writes for message in write.messages):
        await postgres_records.put_messages(
            db,
            [
                (owner, one, codec.encode_parts(one.parts), postgres_records.indexed_text(owner, one))
                for owner, one in messages
            ],
        )
    for tails in parts((write.workspace_id, tail) for write in writes for tail in write.tails):
        await postgres_records.add_tails(db, tails)
    for asks in parts(ask for write in writes for ask in write.asks):
        await postgres_records.put_asks(db, asks)
    for grants in parts(grant for write in writes for grant in write.grants):
        await postgres_records.put_grants(db, grants)
    for files in parts((version, write.originals.get(version.id)) for write in writes for version in write.files):
        await postgres_records.put_files(db, files)
    await postgres_records.add_audit(db, [entry for write in writes for entry in write.audit])
    for write in writes:
        if write.deleted_grants:
            await db.execute(
                "DELETE FROM grants WHERE id = ANY($1::text[]) AND workspace_id = $2",
                write.deleted_grants,
                write.workspace_id,
            )
        for session_id in write.deleted_sessions:
            await postgres_reclaim.delete_session(db, write.workspace_id, session_id)
        if write.cuts or write.deleted_sessions:
            workspaces[write.workspace_id].has_leftovers = True  # for the next group
    return heads


async def _begin(
    db: PostgresConnection, fence: Fence, workspaces: dict[str, LockedWorkspace], write: Write
) -> list[codec.LogRow]:
    """Check a Write against its workspace, and return its log entries."""
    codec.check_write(write)
    locked = workspaces.get(write.workspace_id)
    if locked is None:
        raise codec.unknown_workspace(write.workspace_id)
    fence.check(write.workspace_id, locked.holder, locked.token)
    rows = codec.log_rows(write, locked.head, locked.head_hash)
    fence.check_copies(write, await postgres_reclaim.prepare(db, write) if locked.has_leftovers else set())
    if rows:
        locked.head, locked.head_hash, locked.is_changed = rows[-1].position, rows[-1].hash, True
    return rows


def _position(run: RunRecord, rows: list[codec.LogRow]) -> int:
    return codec.accepted_positions(rows).get((run.session_id, run.run_id), run.position)


# --- Workspaces ------------------------------------------------------------------------------------------------------


async def workspace(db: PostgresConnection, path: str, new: WorkspaceRecord) -> WorkspaceRecord:
    """Return the workspace of this path; store `new` if none exists."""
    codec.check_texts((path, new.id))
    digest = hashlib.sha256(path.encode()).digest()
    start = codec.first_hash(new.id, new.base)
    # If another process stores this path now, the statement waits for the end of its transaction.
    await db.execute(
        "INSERT INTO workspaces (id, path, path_hash, created_at, base, floor, floor_hash, head, head_hash)"
        " VALUES ($1, $2, $3, $4, $5, $5, $6, $5, $6) ON CONFLICT DO NOTHING",
        new.id,
        path,
        digest,
        new.created_at,
        new.base,
        start,
    )
    row = await db.fetchrow("SELECT id, path, created_at, base FROM workspaces WHERE path_hash = $1", digest)
    if row is None:
        raise codec.belongs_elsewhere("workspace", new.id)
    return WorkspaceRecord(*row)


async def trim(db: PostgresConnection, fence: Fence, workspace_id: str, keep: int) -> bool:
    """Remove some of the oldest entries; return True if more are to be removed."""
    locked = await lock_one(db, fence, workspace_id)
    floor = await db.fetchval("SELECT floor FROM workspaces WHERE id = $1", workspace_id)
    target = locked.head - max(keep, 0)
    new_floor = min(target, floor + TRIM_ENTRIES_MAX)
    if new_floor <= floor:
        return False
    floor_hash = await db.fetchval(
        "SELECT hash FROM log WHERE workspace_id = $1 AND position = $2", workspace_id, new_floor
    )
    if floor_hash is None:
        raise codec.damaged(workspace_id, new_floor, "the entry is missing")
    await db.execute("DELETE FROM log WHERE workspace_id = $1 AND position <= $2", workspace_id, new_floor)
    await db.execute(
        "UPDATE workspaces SET floor = $2, floor_hash = $3 WHERE id = $1", workspace_id, new_floor, floor_hash
    )
    return bool(new_floor < target)
