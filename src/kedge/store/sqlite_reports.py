"""Reads of the SQLite database over all sessions of a workspace: the search, and the facts of ended Runs."""

from __future__ import annotations

from typing import Any

import apsw

from kedge.core.run_facts import RunFacts
from kedge.core.transcript import Message
from kedge.store import codec, search_tokens
from kedge.store.base import SearchHit
from kedge.store.sqlite_reclaim import MESSAGE_VISIBLE


def search_hits(db: apsw.Connection, workspace_id: str, query: str, limit: int) -> list[SearchHit]:
    prefixes = search_tokens.query_tokens(query)
    if not prefixes or limit <= 0:
        return []
    # Tokens contain no quote: quoted, FTS5 cannot take them for operators.
    pattern = " ".join(f'"{prefix}"*' for prefix in prefixes)
    rows = db.execute(
        "SELECT id, session_id, parts FROM message_tokens JOIN messages ON ordinal = message_tokens.rowid"
        f" WHERE message_tokens MATCH ? AND workspace_id = ? AND {MESSAGE_VISIBLE}"
        " ORDER BY message_tokens.rowid DESC LIMIT ?",
        (pattern, workspace_id, limit),
    )
    hits: list[SearchHit] = []
    for message_id, session_id, parts in rows:
        message = Message(message_id, session_id, "user", codec.decode_parts(parts, f"message {message_id}"), 0, 0)
        snippet = search_tokens.snippet(search_tokens.searched_text(message), prefixes)
        hits.append(SearchHit(session_id, message_id, snippet))
    return hits


def facts_page(
    db: apsw.Connection, after: int, limit: int, since: int, until: int, workspace_id: str | None
) -> tuple[list[RunFacts], int]:
    # In the order of the rowids, whatever the times: a clock may be set. A removed workspace is unknown.
    rows: list[tuple[Any, ...]] = db.execute(
        "SELECT ordinal, facts FROM run_facts WHERE ordinal > ?1 AND ended_at >= ?2 AND ended_at < ?3"
        " AND (?4 IS NULL OR workspace_id = ?4) AND workspace_id IN (SELECT id FROM workspaces)"
        " ORDER BY ordinal LIMIT ?5",
        (after, since, until, workspace_id, max(limit, 0)),
    ).fetchall()
    return [codec.decode_facts(facts) for _, facts in rows], int(rows[-1][0]) if rows and len(rows) == limit else 0
