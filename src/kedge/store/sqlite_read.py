"""What reads the SQLite database: each function runs in the reader's thread, inside one read transaction."""

from __future__ import annotations

from typing import Any

import apsw

from kedge.core.approvals import Ask, Grant
from kedge.core.records import FileVersion, LaneRecord, RunRecord, SessionRecord, WorkspaceRecord
from kedge.core.transcript import Message, Tail
from kedge.errors import RESTORE_BACKUP, MessageNotFound, StoreDamaged
from kedge.store import codec, words
from kedge.store.base import LogEntry, SearchHit
from kedge.store.sqlite_write import unknown_workspace

_RUN = "SELECT runs.record, prompts.prompt FROM runs LEFT JOIN prompts USING (workspace_id, run_id)"
# No two Runs of a Lane have the same seq; the rest is there so that the order never depends on chance.
_BY_SEQ = "seq, runs.workspace_id, runs.run_id"
# Whether it has tails is asked in the same query: hardly any message has, and one more query for each would double the
# cost of a long transcript.
_MESSAGE = (
    "SELECT ordinal, EXISTS (SELECT 1 FROM message_tails WHERE message = ordinal), id, session_id, role, parts,"
    " created_at, updated_at, run_id, model, provider, is_summary FROM messages"
)


def transactions(db: apsw.Connection) -> int:
    """How many the database has counted."""
    row: Any = db.execute("SELECT number FROM transactions").fetchone()
    return int(row[0])


def bounds(db: apsw.Connection, workspace_id: str) -> tuple[int, int]:
    found = db.execute("SELECT floor, head FROM workspaces WHERE id = ?", (workspace_id,)).fetchone()
    if found is None:
        raise unknown_workspace(workspace_id)
    return int(found[0]), int(found[1])


def entries(db: apsw.Connection, workspace_id: str, after: int, limit: int) -> list[LogEntry]:
    found = db.execute(
        "SELECT floor, floor_hash, head, head_hash FROM workspaces WHERE id = ?", (workspace_id,)
    ).fetchone()
    if found is None:
        raise unknown_workspace(workspace_id)
    floor, floor_hash, head, head_hash = found
    start = max(after, floor)
    count = min(limit, head - start)
    if count <= 0:
        return []
    previous = floor_hash if start == floor else _hash_at(db, workspace_id, start)
    rows = [
        codec.LogRow(*row)
        for row in db.execute(
            "SELECT position, session_id, kind, run_id, payload, hash FROM log"
            " WHERE workspace_id = ? AND position > ? ORDER BY position LIMIT ?",
            (workspace_id, start, count),
        )
    ]
    checked = codec.checked_entries(workspace_id, previous, start, rows)
    if len(checked) < count:
        raise codec.damaged(workspace_id, start + len(checked) + 1, "the entry is missing")
    if rows[-1].position == head and rows[-1].hash != head_hash:
        raise codec.damaged(workspace_id, head, "the entry is not the one that was written last")
    return checked


def _hash_at(db: apsw.Connection, workspace_id: str, position: int) -> bytes:
    found = db.execute(
        "SELECT hash FROM log WHERE workspace_id = ? AND position = ?", (workspace_id, position)
    ).fetchone()
    if found is None:
        raise codec.damaged(workspace_id, position, "the entry is missing")
    return bytes(found[0])


def workspaces(db: apsw.Connection) -> list[WorkspaceRecord]:
    rows = db.execute("SELECT id, path, created_at, base FROM workspaces ORDER BY rowid")
    return [WorkspaceRecord(*row) for row in rows]


def sessions(db: apsw.Connection, workspace_id: str) -> list[SessionRecord]:
    rows = db.execute(
        "SELECT record FROM sessions WHERE workspace_id = ? ORDER BY updated_at DESC, id", (workspace_id,)
    )
    return [codec.decode_session(record) for (record,) in rows]


def session(db: apsw.Connection, workspace_id: str, session_id: str) -> SessionRecord | None:
    found = db.execute(
        "SELECT record FROM sessions WHERE id = ? AND workspace_id = ?", (session_id, workspace_id)
    ).fetchone()
    return codec.decode_session(found[0]) if found else None


def lane(db: apsw.Connection, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
    found = db.execute(
        "SELECT session_id, version, next_seq, mark FROM lanes WHERE session_id = ?", (session_id,)
    ).fetchone()
    live = db.execute(f"{_RUN} WHERE session_id = ? AND state <> 'ended' ORDER BY {_BY_SEQ}", (session_id,))
    return LaneRecord(*found) if found else LaneRecord(session_id), _runs(live)


def run(db: apsw.Connection, workspace_id: str, run_id: str) -> RunRecord | None:
    found = _runs(db.execute(f"{_RUN} WHERE runs.workspace_id = ? AND runs.run_id = ?", (workspace_id, run_id)))
    return found[0] if found else None


def runs(db: apsw.Connection, session_id: str, limit: int) -> list[RunRecord]:
    latest = db.execute(
        f"{_RUN} WHERE session_id = ? ORDER BY seq DESC, runs.workspace_id DESC, runs.run_id DESC LIMIT ?",
        (session_id, max(limit, 0)),
    )
    return _runs(latest)[::-1]


def live_runs(db: apsw.Connection, workspace_id: str) -> list[RunRecord]:
    live = f"{_RUN} WHERE runs.workspace_id = ? AND state <> 'ended' ORDER BY session_id, {_BY_SEQ}"
    return _runs(db.execute(live, (workspace_id,)))


def _runs(rows: apsw.Cursor) -> list[RunRecord]:
    return [codec.decode_run(record, prompt or b"") for record, prompt in rows]


def messages(db: apsw.Connection, session_id: str, after: str | None, limit: int) -> list[Message]:
    behind = -1
    if after is not None:
        found = db.execute(
            "SELECT ordinal FROM messages WHERE session_id = ? AND id = ?", (session_id, after)
        ).fetchone()
        if found is None:
            raise MessageNotFound(f"there is no message {after} in session {session_id}; begin without `after`")
        behind = found[0]
    rows = db.execute(
        f"{_MESSAGE} WHERE session_id = ? AND ordinal > ? ORDER BY ordinal LIMIT ?", (session_id, behind, max(limit, 0))
    ).fetchall()
    return [_message(db, row) for row in rows]


def last_messages(db: apsw.Connection, session_id: str, limit: int) -> list[Message]:
    rows = db.execute(
        f"{_MESSAGE} WHERE session_id = ? ORDER BY ordinal DESC LIMIT ?", (session_id, max(limit, 0))
    ).fetchall()
    return [_message(db, row) for row in reversed(rows)]


def message(db: apsw.Connection, workspace_id: str, message_id: str) -> Message | None:
    found = db.execute(f"{_MESSAGE} WHERE workspace_id = ? AND id = ?", (workspace_id, message_id)).fetchone()
    return _message(db, found) if found else None


def _message(db: apsw.Connection, row: tuple[Any, ...]) -> Message:
    ordinal, has_tails, message_id, session_id, role, parts, *rest = row
    rest[-1] = bool(rest[-1])  # is_summary
    found = Message(message_id, session_id, role, codec.decode_parts(parts, f"message {message_id}"), *rest)
    if not has_tails:
        return found
    tails = db.execute("SELECT part, kind, text FROM message_tails WHERE message = ? ORDER BY number", (ordinal,))
    return codec.merged(found, [Tail(message_id, session_id, part, kind, text) for part, kind, text in tails])


def search(db: apsw.Connection, workspace_id: str, query: str, limit: int) -> list[SearchHit]:
    wanted = words.query_words(query)
    if not wanted or limit <= 0:
        return []
    # Words hold no quote, so that quoted ones are only ever words to FTS5, whatever the query says.
    pattern = " ".join(f'"{word}"*' for word in wanted)
    rows = db.execute(
        "SELECT id, session_id, parts FROM message_words JOIN messages ON ordinal = message_words.rowid"
        " WHERE message_words MATCH ? AND workspace_id = ? ORDER BY message_words.rowid DESC LIMIT ?",
        (pattern, workspace_id, limit),
    )
    hits: list[SearchHit] = []
    for message_id, session_id, parts in rows:
        found = Message(message_id, session_id, "user", codec.decode_parts(parts, f"message {message_id}"), 0, 0)
        hits.append(SearchHit(session_id, message_id, words.snippet(words.searched_text(found), wanted)))
    return hits


def asks(db: apsw.Connection, workspace_id: str) -> list[Ask]:
    rows = db.execute(
        "SELECT record FROM asks WHERE workspace_id = ? AND state = 'pending' ORDER BY ordinal",
        (workspace_id,),
    )
    return [codec.decode_ask(record) for (record,) in rows]


def session_asks(db: apsw.Connection, session_id: str) -> list[Ask]:
    rows = db.execute(
        "SELECT record FROM asks WHERE session_id = ? AND state = 'pending' ORDER BY ordinal", (session_id,)
    )
    return [codec.decode_ask(record) for (record,) in rows]


def ask(db: apsw.Connection, workspace_id: str, ask_id: str) -> Ask | None:
    found = db.execute("SELECT record FROM asks WHERE id = ? AND workspace_id = ?", (ask_id, workspace_id)).fetchone()
    return codec.decode_ask(found[0]) if found else None


def grants(db: apsw.Connection, workspace_id: str) -> list[Grant]:
    rows = db.execute("SELECT record FROM grants WHERE workspace_id = ? ORDER BY ordinal", (workspace_id,))
    return [codec.decode_grant(record) for (record,) in rows]


def file_versions(db: apsw.Connection, workspace_id: str, session_id: str, run_id: str | None) -> list[FileVersion]:
    rows = db.execute(
        "SELECT id, record, version, content FROM file_versions LEFT JOIN file_contents ON version = ordinal"
        " WHERE session_id = ?1 AND workspace_id = ?2 AND (?3 IS NULL OR run_id = ?3) ORDER BY ordinal",
        (session_id, workspace_id, run_id),
    )
    found: list[FileVersion] = []
    for version_id, record, version, content in rows:
        if version is None:
            raise StoreDamaged(f"the content of file version {version_id} is missing", RESTORE_BACKUP)
        found.append(codec.decode_file(record, content))
    return found


def runs_with_files(db: apsw.Connection, session_id: str) -> list[str]:
    rows = db.execute(
        "SELECT run_id FROM file_versions WHERE session_id = ? AND undone = 0 GROUP BY run_id ORDER BY min(ordinal)",
        (session_id,),
    )
    return [str(run_id) for (run_id,) in rows]
