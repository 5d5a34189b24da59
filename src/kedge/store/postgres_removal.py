"""Removal of workspaces from the PostgreSQL database: at once for readers, in slices on disk.

A removed workspace moves to a table of its own, in one transaction: then it is unknown. Its rows are deleted slice by
slice, so that other writes come in between, by this process or by any other one.
"""

from __future__ import annotations

from kedge.core.audit import AuditEntry
from kedge.store import postgres_reclaim, postgres_write
from kedge.store.postgres_connect import PostgresConnection
from kedge.store.postgres_fence import Fence
from kedge.store.postgres_records import add_audit

#: Rows deleted in one transaction: some milliseconds of work. Items.
SLICE_ROWS_MAX = 200


async def remove(db: PostgresConnection, fence: Fence, workspace_id: str, audit: tuple[AuditEntry, ...]) -> None:
    await postgres_write.lock_one(db, fence, workspace_id)
    await db.execute("DELETE FROM workspaces WHERE id = $1", workspace_id)
    await db.execute("INSERT INTO removed_workspaces (id) VALUES ($1) ON CONFLICT DO NOTHING", workspace_id)
    await add_audit(db, audit)


async def purge(db: PostgresConnection) -> bool:
    """Delete some rows of a removed workspace; return True if there may be more."""
    # One that another process purges now is left to it.
    workspace_id = await db.fetchval("SELECT id FROM removed_workspaces LIMIT 1 FOR UPDATE SKIP LOCKED")
    if workspace_id is None:
        return False
    session_id = await db.fetchval("SELECT id FROM sessions WHERE workspace_id = $1 LIMIT 1", workspace_id)
    if session_id is not None:
        await postgres_reclaim.delete_session(db, workspace_id, session_id)
        return True
    if await postgres_reclaim.remove_from_workspace(db, workspace_id):
        return True
    for table, key in (("log", "position"), ("run_facts", "ordinal")):
        removed = await db.fetch(
            f"DELETE FROM {table} WHERE workspace_id = $1 AND {key} IN"
            f" (SELECT {key} FROM {table} WHERE workspace_id = $1 LIMIT {SLICE_ROWS_MAX}) RETURNING 1",
            workspace_id,
        )
        if removed:
            return True
    await db.execute("DELETE FROM grants WHERE workspace_id = $1", workspace_id)
    await db.execute("DELETE FROM removed_workspaces WHERE id = $1", workspace_id)
    return True
