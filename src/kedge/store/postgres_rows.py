"""Rows of the PostgreSQL database that several reads use, and the reads over all sessions of a workspace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kedge.core.records import RunRecord, WorkspaceRecord
from kedge.core.run_facts import RunFacts
from kedge.core.transcript import Message, Tail
from kedge.store import codec, search_tokens
from kedge.store.base import KnownWorkspace, LogEntry, SearchHit
from kedge.store.postgres_connect import PostgresConnection, unescaped
from kedge.store.postgres_reclaim import message_visible
from kedge.store.postgres_records import workspace_prefix

VISIBLE_MESSAGE = message_visible("messages")

_COLUMNS = (
    "ordinal, workspace_id, id, session_id, role, parts, created_at, updated_at, run_id, model, provider, is_summary"
)

_KNOWN = (
    "SELECT id, path, created_at, base, (SELECT count(*) FROM sessions WHERE workspace_id = workspaces.id),"
    " (SELECT count(*) FROM runs WHERE workspace_id = workspaces.id AND state <> 'ended'),"
    " (SELECT count(*) FROM grants WHERE workspace_id = workspaces.id),"
    " (SELECT coalesce(max(updated_at), 0) FROM sessions WHERE workspace_id = workspaces.id) FROM workspaces"
)


async def known_of(db: PostgresConnection, condition: str, *values: str | int) -> list[KnownWorkspace]:
    rows = await db.fetch(f"{_KNOWN} WHERE {condition}", *values)
    return [KnownWorkspace(WorkspaceRecord(*row[:4]), *row[4:]) for row in rows]


def runs_of(rows: Sequence[Any]) -> list[RunRecord]:
    return [codec.decode_run(row[0], row[1] or b"") for row in rows]


# --- The log ---------------------------------------------------------------------------------------------------------

# One statement, so one snapshot: the end of the log, the hash before the first entry, and the entries.
_LOG = """
SELECT workspaces.floor, workspaces.floor_hash, workspaces.head, workspaces.head_hash, before.hash,
    entries.position, entries.session_id, entries.kind, entries.run_id, entries.payload, entries.hash
FROM workspaces
LEFT JOIN log AS before ON before.workspace_id = workspaces.id AND before.position = $2
LEFT JOIN LATERAL (
    SELECT * FROM log WHERE log.workspace_id = workspaces.id AND log.position > greatest($2, workspaces.floor)
    ORDER BY log.position LIMIT $3
) AS entries ON TRUE
WHERE workspaces.id = $1 ORDER BY entries.position
"""


async def log_entries(db: PostgresConnection, workspace_id: str, after: int, limit: int) -> list[LogEntry]:
    rows = await db.fetch(_LOG, workspace_id, after, max(limit, 0))
    if not rows:
        raise codec.unknown_workspace(workspace_id)
    floor, floor_hash, head, head_hash, hash_before = tuple(rows[0])[:5]
    start = max(after, floor)
    count = min(limit, head - start)
    if count <= 0:
        return []
    previous = floor_hash if start == floor else hash_before
    if previous is None:
        raise codec.damaged(workspace_id, start, "the entry is missing")
    entries = [codec.LogRow(*tuple(row)[5:]) for row in rows if row[5] is not None]
    checked = codec.checked_entries(workspace_id, previous, start, entries)
    if len(checked) < count:
        raise codec.damaged(workspace_id, start + len(checked) + 1, "the entry is missing")
    if entries[-1].position == head and entries[-1].hash != head_hash:
        raise codec.damaged(workspace_id, head, "it is not the entry that was written last")
    return checked


# --- Messages --------------------------------------------------------------------------------------------------------


async def messages_of(db: PostgresConnection, selected: str, *values: Any) -> list[Message]:
    """Return messages with their tails, in their order. `selected`: what follows FROM in a query of `messages`."""
    rows = await db.fetch(
        f"SELECT page.*, tails.parts, tails.kinds, tails.texts FROM (SELECT {_COLUMNS} FROM {selected}) AS page"
        " LEFT JOIN LATERAL (SELECT array_agg(part ORDER BY number) AS parts, array_agg(kind ORDER BY number) AS kinds,"
        " array_agg(text ORDER BY number) AS texts FROM message_tails WHERE message_ordinal = page.ordinal) AS tails"
        " ON TRUE ORDER BY page.ordinal",
        *values,
    )
    return [_message(row) for row in rows]


def _message(row: Any) -> Message:
    _, _, message_id, session_id, role, parts, *rest = tuple(row)
    *rest, tail_parts, kinds, texts = rest
    message = Message(message_id, session_id, role, codec.decode_parts(parts, f"message {message_id}"), *rest)
    if tail_parts is None:
        return message
    tails = zip(tail_parts, kinds, texts, strict=True)
    return codec.merged(
        message, [Tail(message_id, session_id, part, kind, unescaped(text)) for part, kind, text in tails]
    )


async def ordinal_of(db: PostgresConnection, session_id: str, message_id: str) -> int:
    ordinal = await db.fetchval(
        f"SELECT ordinal FROM messages WHERE id = $1 AND session_id = $2 AND {VISIBLE_MESSAGE}", message_id, session_id
    )
    if ordinal is None:
        raise codec.unknown_message(message_id, session_id)
    return int(ordinal)


async def page_of_messages(
    db: PostgresConnection,
    session_id: str,
    after: str | None,
    before: str | None,
    run_id: str | None,
    limit: int,
    bytes_max: int | None,
) -> list[Message]:
    """Return a page after a message, or before one. `run_id`: only messages of that Run."""
    bound, order = (after, "ASC") if before is None else (before or None, "DESC")
    ordinal = None if bound is None else await ordinal_of(db, session_id, bound)
    values: list[Any] = [session_id, max(limit, 0)]
    where = "session_id = $1"
    for condition, value in ((f"ordinal {'<' if order == 'DESC' else '>'}", ordinal), ("run_id =", run_id)):
        if value is not None:
            values.append(value)
            where += f" AND {condition} ${len(values)}"
    page = f"SELECT * FROM messages WHERE {where} AND {VISIBLE_MESSAGE} ORDER BY ordinal {order} LIMIT $2"
    if bytes_max is not None:
        page = bounded(page, "octet_length(parts)", f"ordinal {order}", f"${len(values) + 1}")
        values.append(bytes_max)
    return await messages_of(db, f"({page}) AS selected", *values)


def bounded(rows: str, size: str, order: str, bytes_max: str) -> str:
    """Return a query of the first of these rows: up to the one with which they have so many bytes."""
    return (
        f"SELECT * FROM (SELECT *, sum({size}) OVER (ORDER BY {order}) - {size} AS bytes_before FROM ({rows}) AS rows)"
        f" AS sized WHERE bytes_before < greatest({bytes_max}::int8, 1)"
    )


# --- Over all sessions -----------------------------------------------------------------------------------------------


async def search_hits(db: PostgresConnection, workspace_id: str, query: str, limit: int) -> list[SearchHit]:
    prefixes = search_tokens.query_tokens(query)
    if not prefixes or limit <= 0:
        return []
    # Tokens contain no quote: quoted, PostgreSQL cannot take them for operators.
    beginning = workspace_prefix(workspace_id)
    pattern = " & ".join(f"'{beginning}{prefix}':*" for prefix in prefixes)
    rows = await db.fetch(
        "SELECT id, session_id, parts FROM message_tokens JOIN messages ON ordinal = message_ordinal"
        f" WHERE tokens @@ $1::text::tsquery AND workspace_id = $2 AND {VISIBLE_MESSAGE}"
        " ORDER BY ordinal DESC LIMIT $3",
        pattern,
        workspace_id,
        limit,
    )
    hits: list[SearchHit] = []
    for message_id, session_id, parts in rows:
        message = Message(message_id, session_id, "user", codec.decode_parts(parts, f"message {message_id}"), 0, 0)
        snippet = search_tokens.snippet(search_tokens.searched_text(message), prefixes)
        hits.append(SearchHit(session_id, message_id, snippet))
    return hits


async def facts_page(
    db: PostgresConnection, after: int, limit: int, since: int, until: int, workspace_id: str | None
) -> tuple[list[RunFacts], int]:
    # In the order of the ordinals, whatever the times: a clock may be set. A removed workspace is unknown.
    rows = await db.fetch(
        "SELECT ordinal, facts FROM run_facts WHERE ordinal > $1 AND ended_at >= $2 AND ended_at < $3"
        " AND ($4::text IS NULL OR workspace_id = $4) AND workspace_id IN (SELECT id FROM workspaces)"
        " ORDER BY ordinal LIMIT $5",
        after,
        since,
        until,
        workspace_id,
        max(limit, 0),
    )
    return [codec.decode_facts(row[1]) for row in rows], int(rows[-1][0]) if rows and len(rows) == limit else 0
