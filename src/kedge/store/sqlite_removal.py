"""Removal of workspaces from the SQLite database: at once for readers, in slices on disk.

A removed workspace moves to a table of its own, in one transaction: then it is unknown. Its rows are deleted slice by
slice, so that other writes come in between, by this process or by a later one.
"""

from __future__ import annotations

from typing import Any

import apsw

from kedge.store import codec
from kedge.store.sqlite_write import delete_session

#: Rows deleted in one transaction: some milliseconds, in which other writes wait. Items.
SLICE_ROWS_MAX = 200
#: File contents and attachments deleted in one transaction. Each may have megabytes. Items.
SLICE_CONTENTS_MAX = 4


def remove(db: apsw.Connection, workspace_id: str) -> None:
    db.execute("DELETE FROM workspaces WHERE id = ?", (workspace_id,))
    if db.changes() == 0:
        raise codec.unknown_workspace(workspace_id)
    db.execute("INSERT INTO removed_workspaces (id) VALUES (?)", (workspace_id,))


def purge(db: apsw.Connection) -> bool:
    """Delete some rows of a removed workspace; return True if there may be more."""
    row = db.execute("SELECT id FROM removed_workspaces LIMIT 1").fetchone()
    if row is None:
        return False
    workspace_id = str(row[0])
    session = db.execute("SELECT id FROM sessions WHERE workspace_id = ? LIMIT 1", (workspace_id,)).fetchone()
    if session is not None:
        if not _purge_session(db, workspace_id, str(session[0])):
            delete_session(db, workspace_id, str(session[0]))
        return True
    if _delete(db, "log", "position", "workspace_id = ?", (workspace_id,), SLICE_ROWS_MAX):
        return True
    db.execute("DELETE FROM grants WHERE workspace_id = ?", (workspace_id,))
    db.execute("DELETE FROM removed_workspaces WHERE id = ?", (workspace_id,))
    return True


def _purge_session(db: apsw.Connection, workspace_id: str, session_id: str) -> bool:
    """Delete some of the rows of which a session may have many; return False if there were none."""
    key, of_session = (session_id, workspace_id), "session_id = ? AND workspace_id = ?"
    messages = _some(db, "messages", "ordinal", of_session, key, SLICE_ROWS_MAX)
    for table, column in (("message_tokens", "rowid"), ("message_tails", "message_ordinal"), ("messages", "ordinal")):
        db.executemany(f"DELETE FROM {table} WHERE {column} = ?", messages)
    versions = _some(db, "file_versions", "ordinal", of_session, key, SLICE_CONTENTS_MAX)
    for table, column in (("file_contents", "version_ordinal"), ("file_versions", "ordinal")):
        db.executemany(f"DELETE FROM {table} WHERE {column} = ?", versions)
    runs = _some(db, "runs", "run_id", of_session, key, SLICE_ROWS_MAX)
    for table in ("prompts", "runs"):
        db.executemany(
            f"DELETE FROM {table} WHERE run_id = ? AND workspace_id = ?", [(run_id, workspace_id) for (run_id,) in runs]
        )
    asks = _delete(db, "asks", "ordinal", of_session, key, SLICE_ROWS_MAX)
    contents = _delete(db, "attachments", "ordinal", "workspace_id = ?", (workspace_id,), SLICE_CONTENTS_MAX)
    return bool(messages or versions or runs or asks or contents)


def _some(
    db: apsw.Connection, table: str, column: str, where: str, key: tuple[str, ...], limit: int
) -> list[tuple[Any, ...]]:
    return db.execute(f"SELECT {column} FROM {table} WHERE {where} LIMIT {limit}", key).fetchall()


def _delete(db: apsw.Connection, table: str, column: str, where: str, key: tuple[str, ...], limit: int) -> int:
    chosen = f"SELECT {column} FROM {table} WHERE {where} LIMIT {limit}"
    db.execute(f"DELETE FROM {table} WHERE {where} AND {column} IN ({chosen})", key + key)
    return db.changes()
