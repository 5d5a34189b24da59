"""Removal of workspaces from the SQLite database: at once for readers, in slices on disk.

A removed workspace moves to a table of its own, in one transaction: then it is unknown. Its rows are deleted slice by
slice, so that other writes come in between, by this process or by a later one.
"""

from __future__ import annotations

import apsw

from kedge.core.audit import AuditEntry
from kedge.store import codec, sqlite_reclaim
from kedge.store.sqlite_write import add_audit, delete_session

#: Log entries deleted in one transaction: some milliseconds, in which other writes wait. Items.
SLICE_ROWS_MAX = 200


def remove(db: apsw.Connection, workspace_id: str, audit: tuple[AuditEntry, ...]) -> None:
    db.execute("DELETE FROM workspaces WHERE id = ?", (workspace_id,))
    if db.changes() == 0:
        raise codec.unknown_workspace(workspace_id)
    db.execute("INSERT INTO removed_workspaces (id) VALUES (?)", (workspace_id,))
    for entry in audit:
        add_audit(db, entry)


def purge(db: apsw.Connection) -> bool:
    """Delete some rows of a removed workspace; return True if there may be more."""
    row = db.execute("SELECT id FROM removed_workspaces LIMIT 1").fetchone()
    if row is None:
        return False
    workspace_id = str(row[0])
    key = (workspace_id,)
    if session := db.execute("SELECT id FROM sessions WHERE workspace_id = ? LIMIT 1", key).fetchone():
        delete_session(db, workspace_id, str(session[0]))
        return True
    if sqlite_reclaim.remove_from_workspace(db, workspace_id):
        return True
    db.execute(
        "DELETE FROM log WHERE workspace_id = ?1 AND position IN"
        f" (SELECT position FROM log WHERE workspace_id = ?1 LIMIT {SLICE_ROWS_MAX})",
        key,
    )
    if db.changes():
        return True
    db.execute(
        "DELETE FROM run_facts WHERE ordinal IN"
        f" (SELECT ordinal FROM run_facts WHERE workspace_id = ? LIMIT {SLICE_ROWS_MAX})",
        key,
    )
    if db.changes():
        return True
    db.execute("DELETE FROM grants WHERE workspace_id = ?", key)
    db.execute("DELETE FROM removed_workspaces WHERE id = ?", key)
    return True
