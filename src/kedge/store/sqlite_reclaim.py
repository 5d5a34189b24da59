"""Removal in slices: the rows of hidden sessions, and free pages. Each function runs in the write thread.

A session is hidden when it is deleted, until its last row is removed, and while messages are copied to it, until its
record is stored. Removing or copying a long session in one transaction would delay all other Writes.
"""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from kedge.store import codec
from kedge.store.base import Write

#: Removed in one slice: some milliseconds of work. Items, bytes.
SLICE_ROWS_MAX = 200
SLICE_BYTES_MAX = 1024 * 1024

#: Free pages that stay in the file, because new rows use them soon: 4 MB. Items.
FREE_PAGES_KEPT = 1_024
#: Pages returned to the file system in one slice. Each may move another page. Items.
VACUUM_PAGES_MAX = 256

#: For queries of a table with these two columns. The table of hidden sessions is nearly always empty.
VISIBLE = "(workspace_id, session_id) NOT IN (SELECT workspace_id, session_id FROM hidden_sessions)"
_CUT = (
    "EXISTS (SELECT 1 FROM cut_messages AS cut WHERE cut.workspace_id = messages.workspace_id"
    " AND cut.session_id = messages.session_id AND ordinal BETWEEN first AND last)"
)
#: For queries of messages.
MESSAGE_VISIBLE = f"{VISIBLE} AND NOT {_CUT}"
_DELETED = "(workspace_id, session_id) IN (SELECT workspace_id, session_id FROM hidden_sessions WHERE NOT is_copy)"

#: For each table with many rows of a session: the size of a row, and the statements that remove what belongs to it.
_TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "messages": (
        "length(parts)",
        ("DELETE FROM message_tokens WHERE rowid = ?", "DELETE FROM message_tails WHERE message_ordinal = ?"),
    ),
    "runs": (
        "(SELECT length(prompt) FROM prompts WHERE prompts.workspace_id = runs.workspace_id"
        " AND prompts.run_id = runs.run_id)",
        ("DELETE FROM prompts WHERE (workspace_id, run_id) = (SELECT workspace_id, run_id FROM runs WHERE rowid = ?)",),
    ),
    "file_versions": (
        "(SELECT length(content) FROM file_contents WHERE version_ordinal = file_versions.ordinal)",
        ("DELETE FROM file_contents WHERE version_ordinal = ?",),
    ),
    "asks": ("length(record)", ()),
}


def delete(db: apsw.Connection, workspace_id: str, session_id: str) -> None:
    db.execute("INSERT OR REPLACE INTO hidden_sessions VALUES (?, ?, 0)", (workspace_id, session_id))


def begin_copy(db: apsw.Connection, workspace_id: str, session_id: str) -> None:
    """Hide a new session. A copy that was given up meanwhile stays given up."""
    db.execute("INSERT OR IGNORE INTO hidden_sessions VALUES (?, ?, 1)", (workspace_id, session_id))


def give_up_copies(db: apsw.Connection) -> None:
    """Let `remove_slice` remove the copies that the last process did not complete."""
    db.execute("UPDATE hidden_sessions SET is_copy = 0 WHERE is_copy")


def prepare(db: apsw.Connection, write: Write) -> None:
    """Make a Write possible that uses ids of deleted sessions or messages, and show the copies that it completes."""
    if db.execute("SELECT 1 FROM cut_messages LIMIT 1").fetchone():
        _free_cut_ids(db, write)
    if not db.execute("SELECT 1 FROM hidden_sessions LIMIT 1").fetchone():
        return
    for session in write.sessions:
        db.execute(
            "DELETE FROM hidden_sessions WHERE workspace_id = ? AND session_id = ? AND is_copy",
            (session.workspace_id, session.id),
        )
    for session_id in _sessions_of(write):
        while _remove_from(db, write.workspace_id, session_id):
            pass
    ids: Iterable[tuple[str, str, tuple[str, ...]]] = (
        *(("runs", "workspace_id = ? AND run_id = ?", (run.workspace_id, run.run_id)) for run in write.runs),
        *(("messages", "workspace_id = ? AND id = ?", (write.workspace_id, message.id)) for message in write.messages),
        *(("asks", "id = ?", (ask.id,)) for ask in write.asks),
        *(("file_versions", "id = ?", (version.id,)) for version in write.files),
    )
    for table, condition, values in ids:
        row = db.execute(f"SELECT rowid FROM {table} WHERE {condition} AND {_DELETED}", values).fetchone()
        if row is not None:
            _remove_rows(db, table, [row[0]])


def _free_cut_ids(db: apsw.Connection, write: Write) -> None:
    """Remove the cuts that contain messages of this Write completely: only then a row may be replaced."""
    for message in write.messages:
        key = (write.workspace_id, message.id)
        owner = f"SELECT session_id FROM messages WHERE workspace_id = ? AND id = ? AND {_CUT}"
        while row := db.execute(owner, key).fetchone():
            _remove_cut(db, write.workspace_id, str(row[0]))


def _sessions_of(write: Write) -> set[str]:
    sessions = {session_id for session_id, _ in write.events} | {session.id for session in write.sessions}
    for records in (write.runs, write.messages, write.tails, write.asks, write.grants, write.files):
        sessions |= {record.session_id for record in records}
    return sessions if write.lane is None else sessions | {write.lane.lane.session_id}


def remove_slice(db: apsw.Connection) -> bool:
    """Remove some of what is deleted, or return some free pages; return False if there is nothing to do."""
    row = db.execute("SELECT workspace_id, session_id FROM hidden_sessions WHERE NOT is_copy LIMIT 1").fetchone()
    if row is not None:
        return _remove_from(db, *row)
    if cut := db.execute("SELECT workspace_id, session_id FROM cut_messages LIMIT 1").fetchone():
        return _remove_cut(db, *cut)
    return _remove_attachment(db) or _release_pages(db)


def remove_from_workspace(db: apsw.Connection, workspace_id: str) -> bool:
    """Remove some of the hidden sessions and attachments of a removed workspace; return False if none is left."""
    key = (workspace_id,)
    db.execute("UPDATE hidden_sessions SET is_copy = 0 WHERE workspace_id = ?", key)
    row = db.execute("SELECT session_id FROM hidden_sessions WHERE workspace_id = ? LIMIT 1", key).fetchone()
    if row is not None:
        return _remove_from(db, workspace_id, str(row[0]))
    db.execute("INSERT INTO freed_attachments SELECT ordinal FROM attachments WHERE workspace_id = ?", key)
    db.execute("DELETE FROM attachments WHERE workspace_id = ?", key)
    return _remove_attachment(db)


def cut(db: apsw.Connection, workspace_id: str, session_id: str, message_id: str) -> None:
    """Hide the messages of the session from this one on."""
    first = db.execute(
        f"SELECT ordinal FROM messages WHERE workspace_id = ? AND id = ? AND session_id = ? AND {MESSAGE_VISIBLE}",
        (workspace_id, message_id, session_id),
    ).fetchone()
    if first is None:
        raise codec.unknown_message(message_id, session_id)
    db.execute(
        "INSERT INTO cut_messages SELECT ?1, ?2, ?3, max(ordinal) FROM messages"
        " WHERE session_id = ?2 AND workspace_id = ?1",
        (workspace_id, session_id, first[0]),
    )


def _remove_cut(db: apsw.Connection, workspace_id: str, session_id: str) -> bool:
    """Remove some messages of a cut, and its mark with the last one: a later message may get the same ordinal."""
    key = (workspace_id, session_id)
    first, last = db.execute(
        "SELECT first, last FROM cut_messages WHERE workspace_id = ? AND session_id = ? LIMIT 1", key
    ).fetchone() or (0, 0)
    # In this order, the largest ordinal is in use until the end.
    rows = db.execute(
        f"SELECT ordinal, {_TABLES['messages'][0]} FROM messages WHERE session_id = ?2 AND workspace_id = ?1"
        f" AND ordinal BETWEEN ?3 AND ?4 ORDER BY ordinal LIMIT {SLICE_ROWS_MAX}",
        (*key, first, last),
    )
    removed = _slice(rows)
    _remove_rows(db, "messages", removed)
    if not removed or removed[-1] == last:
        db.execute("DELETE FROM cut_messages WHERE workspace_id = ? AND session_id = ? AND first = ?", (*key, first))
    return True


def _slice(rows: apsw.Cursor) -> list[int]:
    """Return the rowids of the first rows, which have SLICE_BYTES_MAX together."""
    rowids: list[int] = []
    left_bytes = SLICE_BYTES_MAX
    for rowid, size_bytes in rows:
        rowids.append(int(rowid))
        left_bytes -= size_bytes or 0
        if left_bytes <= 0:
            break
    return rowids


def _remove_from(db: apsw.Connection, workspace_id: str, session_id: str) -> bool:
    """Remove some rows of this session, or its mark if no row is left; return False if it is not deleted."""
    key = (workspace_id, session_id)
    is_deleted = "SELECT 1 FROM hidden_sessions WHERE workspace_id = ? AND session_id = ? AND NOT is_copy"
    if not db.execute(is_deleted, key).fetchone():
        return False
    for table, (size, _) in _TABLES.items():
        rows = db.execute(
            f"SELECT rowid, {size} FROM {table} WHERE workspace_id = ? AND session_id = ? LIMIT {SLICE_ROWS_MAX}", key
        )
        if removed := _slice(rows):
            _remove_rows(db, table, removed)
            return True
    release_attachments(db, workspace_id, session_id)  # those of a copy
    db.execute("DELETE FROM cut_messages WHERE workspace_id = ? AND session_id = ?", key)
    db.execute("DELETE FROM hidden_sessions WHERE workspace_id = ? AND session_id = ?", key)
    return True


def release_attachments(db: apsw.Connection, workspace_id: str, session_id: str) -> None:
    """Delete the attachments that only this session uses. Their contents are removed later, in slices."""
    released = db.execute(
        "DELETE FROM attachment_uses WHERE workspace_id = ? AND session_id = ? RETURNING workspace_id, digest",
        (workspace_id, session_id),
    ).fetchall()
    for key in released:
        unused = db.execute(
            "DELETE FROM attachments WHERE workspace_id = ?1 AND digest = ?2 AND NOT EXISTS"
            " (SELECT 1 FROM attachment_uses WHERE workspace_id = ?1 AND digest = ?2) RETURNING ordinal",
            key,
        ).fetchall()
        db.executemany("INSERT INTO freed_attachments VALUES (?)", unused)


def _remove_attachment(db: apsw.Connection) -> bool:
    """Remove the content of a deleted attachment; return False if no such content is left."""
    freed = db.execute(
        "DELETE FROM freed_attachments WHERE ordinal = (SELECT min(ordinal) FROM freed_attachments) RETURNING ordinal"
    ).fetchall()
    db.executemany("DELETE FROM attachment_contents WHERE ordinal = ?", freed)
    return bool(freed)


def _remove_rows(db: apsw.Connection, table: str, rowids: list[int]) -> None:
    for statement in (*_TABLES[table][1], f"DELETE FROM {table} WHERE rowid = ?"):
        db.executemany(statement, [(rowid,) for rowid in rowids])


def _release_pages(db: apsw.Connection) -> bool:
    """Return some free pages to the file system at the next checkpoint; return False if few are left."""
    free = db.pragma("freelist_count")
    assert isinstance(free, int)
    if free <= FREE_PAGES_KEPT:
        return False
    db.execute(f"PRAGMA incremental_vacuum({min(VACUUM_PAGES_MAX, free - FREE_PAGES_KEPT)})").fetchall()
    return True
