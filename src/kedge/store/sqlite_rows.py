"""Rows of the SQLite database that several reads use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw

from kedge.core.records import RunRecord, WorkspaceRecord
from kedge.core.transcript import Message, Tail
from kedge.store import codec
from kedge.store.base import KnownWorkspace
from kedge.store.sqlite_reclaim import MESSAGE_VISIBLE

# Few messages have tails; a separate query for each message would double the cost of a long transcript.
MESSAGE = (
    "SELECT ordinal, EXISTS (SELECT 1 FROM message_tails WHERE message_ordinal = ordinal), id, session_id, role, parts,"
    " created_at, updated_at, run_id, model, provider, is_summary FROM messages"
)
#: The column of the encoded parts.
_PARTS = 5

_KNOWN = (
    "SELECT id, path, created_at, base, (SELECT count(*) FROM sessions WHERE workspace_id = workspaces.id),"
    " (SELECT count(*) FROM runs INDEXED BY runs_live WHERE workspace_id = workspaces.id AND state <> 'ended'),"
    " (SELECT count(*) FROM grants WHERE workspace_id = workspaces.id),"
    " (SELECT coalesce(max(updated_at), 0) FROM sessions WHERE workspace_id = workspaces.id) FROM workspaces"
)


def hash_at(db: apsw.Connection, workspace_id: str, position: int) -> bytes:
    row = db.execute(
        "SELECT hash FROM log WHERE workspace_id = ? AND position = ?", (workspace_id, position)
    ).fetchone()
    if row is None:
        raise codec.damaged(workspace_id, position, "the entry is missing")
    return bytes(row[0])


def ordinal_of(db: apsw.Connection, session_id: str, message_id: str) -> int:
    row = db.execute(
        f"SELECT ordinal FROM messages WHERE id = ? AND +session_id = ? AND {MESSAGE_VISIBLE}", (message_id, session_id)
    ).fetchone()
    if row is None:
        raise codec.unknown_message(message_id, session_id)
    return int(row[0])


def message_of(db: apsw.Connection, row: tuple[Any, ...]) -> Message:
    ordinal, has_tails, message_id, session_id, role, parts, *rest = row
    rest[-1] = bool(rest[-1])  # is_summary
    message = Message(message_id, session_id, role, codec.decode_parts(parts, f"message {message_id}"), *rest)
    if not has_tails:
        return message
    tails = db.execute(
        "SELECT part, kind, text FROM message_tails WHERE message_ordinal = ? ORDER BY number", (ordinal,)
    )
    return codec.merged(message, [Tail(message_id, session_id, part, kind, text) for part, kind, text in tails])


def known_of(db: apsw.Connection, condition: str, values: tuple[str | int, ...]) -> list[KnownWorkspace]:
    rows = db.execute(f"{_KNOWN} WHERE {condition}", values)
    return [KnownWorkspace(WorkspaceRecord(*row[:4]), *row[4:]) for row in rows]


def runs_of(rows: Iterable[tuple[Any, ...]]) -> list[RunRecord]:
    return [codec.decode_run(record, prompt or b"") for record, prompt in rows]


def page_of_messages(
    db: apsw.Connection,
    session_id: str,
    after: str | None,
    before: str | None,
    run_id: str | None,
    limit: int,
    bytes_max: int | None,
) -> list[Message]:
    """Return a page after a message, or before one. `run_id`: only messages of that Run."""
    bound, order = (after, "") if before is None else (before or None, "DESC")
    ordinal = None if bound is None else ordinal_of(db, session_id, bound)
    where = "" if ordinal is None else f"AND ordinal {'<' if order else '>'} :ordinal"
    where += "" if run_id is None else " AND run_id = :run_id"
    rows = db.execute(
        f"{MESSAGE} WHERE session_id = :session_id {where} AND {MESSAGE_VISIBLE} ORDER BY ordinal {order} LIMIT :limit",
        {"session_id": session_id, "limit": max(limit, 0), "ordinal": ordinal, "run_id": run_id},
    )
    page = [message_of(db, row) for row in codec.page(rows, lambda row: len(row[_PARTS]), bytes_max)]
    return page[::-1] if order else page
