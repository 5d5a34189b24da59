"""Removal in slices: the rows of hidden sessions and cut messages. Each function runs in a transaction.

A session is hidden when it is deleted, until its last row is removed, and while messages are copied to it, until its
record is stored. A copy belongs to the store object that writes it, of which each connection holds a shared advisory
lock: if no connection holds it, the process has ended, and any other one gives the copy up.
"""

from __future__ import annotations

from collections.abc import Iterable

from kedge.store import codec
from kedge.store.base import Write
from kedge.store.postgres_connect import PostgresConnection
from kedge.store.postgres_fence import Fence, copy_given_up

#: Removed in one slice: some milliseconds of work. Items, bytes.
SLICE_ROWS_MAX = 200
SLICE_BYTES_MAX = 1024 * 1024

#: For each table with many rows of a session: its key, and the size of a row.
_TABLES = {
    "messages": ("ordinal", "octet_length(parts)"),
    "runs": ("run_id", "octet_length(prompt)"),
    "file_versions": ("ordinal", "octet_length(content)"),
    "asks": ("ordinal", "octet_length(record)"),
}


def visible(table: str) -> str:
    """Return a condition for queries of a table with the columns workspace_id and session_id."""
    return (
        "NOT EXISTS (SELECT 1 FROM hidden_sessions AS hidden"
        f" WHERE hidden.workspace_id = {table}.workspace_id AND hidden.session_id = {table}.session_id)"
    )


def message_visible(table: str) -> str:
    """Return a condition for queries of messages."""
    return f"{visible(table)} AND NOT {_cut(table)}"


def _cut(table: str) -> str:
    return (
        f"EXISTS (SELECT 1 FROM cut_messages AS cut WHERE cut.workspace_id = {table}.workspace_id"
        f" AND cut.session_id = {table}.session_id AND {table}.ordinal BETWEEN cut.first AND cut.last)"
    )


# --- Hiding ----------------------------------------------------------------------------------------------------------


async def delete_session(db: PostgresConnection, workspace_id: str, session_id: str) -> None:
    """Hide the session. The rows of tables without a limit per session are removed later, in slices."""
    key = (session_id, workspace_id)
    await db.execute("DELETE FROM grants WHERE session_id = $1 AND workspace_id = $2", *key)
    await db.execute("DELETE FROM lanes WHERE session_id = $1 AND workspace_id = $2", *key)
    await db.execute("DELETE FROM sessions WHERE id = $1 AND workspace_id = $2", *key)
    await _release_attachments(db, workspace_id, session_id)
    await db.execute(
        "INSERT INTO hidden_sessions (workspace_id, session_id, writer) VALUES ($1, $2, '')"
        " ON CONFLICT (workspace_id, session_id) DO UPDATE SET writer = ''",
        workspace_id,
        session_id,
    )
    await _note_leftovers(db, workspace_id)


async def begin_copy(db: PostgresConnection, fence: Fence, workspace_id: str, session_id: str) -> None:
    """Hide a new session. A copy that was given up meanwhile stays given up."""
    key = (workspace_id, session_id)
    is_begun = key in fence.copies
    if not is_begun:
        await db.execute(
            "INSERT INTO hidden_sessions (workspace_id, session_id, writer) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            *key,
            fence.incarnation,
        )
        await _note_leftovers(db, workspace_id)
    writer = await db.fetchval("SELECT writer FROM hidden_sessions WHERE workspace_id = $1 AND session_id = $2", *key)
    if writer == fence.incarnation:
        fence.copies.add(key)
    elif is_begun:
        raise copy_given_up(session_id)


async def cut(db: PostgresConnection, workspace_id: str, session_id: str, message_id: str) -> None:
    """Hide the messages of the session from this one on."""
    changed = await db.fetch(
        "INSERT INTO cut_messages (workspace_id, session_id, first, last)"
        " SELECT $1::text, $2::text, ordinal,"
        " (SELECT max(ordinal) FROM messages WHERE session_id = $2::text AND workspace_id = $1::text)"
        f" FROM messages WHERE workspace_id = $1::text AND id = $3::text AND session_id = $2::text"
        f" AND {message_visible('messages')} RETURNING 1",
        workspace_id,
        session_id,
        message_id,
    )
    if not changed:
        raise codec.unknown_message(message_id, session_id)
    await _note_leftovers(db, workspace_id)


async def _note_leftovers(db: PostgresConnection, workspace_id: str) -> None:
    await db.execute("UPDATE workspaces SET has_leftovers = TRUE WHERE id = $1 AND NOT has_leftovers", workspace_id)


async def prepare(db: PostgresConnection, write: Write) -> set[str]:
    """Make a Write possible that uses ids of deleted sessions or messages, and show the copies that it completes.

    Return the ids of the sessions with these copies."""
    await _free_cut_ids(db, write)
    shown = await db.fetch(
        "DELETE FROM hidden_sessions WHERE workspace_id = $1 AND session_id = ANY($2::text[]) AND writer <> ''"
        " RETURNING session_id",
        write.workspace_id,
        [session.id for session in write.sessions],
    )
    deleted = await db.fetch(
        "SELECT session_id FROM hidden_sessions WHERE workspace_id = $1 AND session_id = ANY($2::text[])"
        " AND writer = ''",
        write.workspace_id,
        list(_sessions_of(write)),
    )
    for (session_id,) in deleted:
        while await _remove_from(db, write.workspace_id, session_id):
            pass
    ids: tuple[tuple[str, str, list[str]], ...] = (
        ("runs", "run_id", [run.run_id for run in write.runs]),
        ("messages", "id", [message.id for message in write.messages]),
        ("asks", "id", [ask.id for ask in write.asks]),
        ("file_versions", "id", [version.id for version in write.files]),
    )
    for table, column, names in ids:
        if names:
            rows = await db.fetch(
                f"SELECT {_TABLES[table][0]} FROM {table} WHERE workspace_id = $1 AND {column} = ANY($2::text[])"
                " AND EXISTS (SELECT 1 FROM hidden_sessions AS hidden WHERE hidden.workspace_id = $1"
                f" AND hidden.session_id = {table}.session_id AND writer = '')",
                write.workspace_id,
                names,
            )
            await _remove_rows(db, table, write.workspace_id, [row[0] for row in rows])
    return {row[0] for row in shown}


async def _free_cut_ids(db: PostgresConnection, write: Write) -> None:
    """Remove the cuts that contain messages of this Write completely: only then a row may be replaced."""
    ids = [message.id for message in write.messages]
    while ids:
        session_id = await db.fetchval(
            "SELECT session_id FROM messages WHERE workspace_id = $1 AND id = ANY($2::text[])"
            f" AND {_cut('messages')} LIMIT 1",
            write.workspace_id,
            ids,
        )
        if session_id is None:
            return
        await _remove_cut(db, write.workspace_id, session_id)


def _sessions_of(write: Write) -> set[str]:
    sessions = {session_id for session_id, _ in write.events} | {session.id for session in write.sessions}
    for records in (write.runs, write.messages, write.tails, write.asks, write.grants, write.files):
        sessions |= {record.session_id for record in records}
    return sessions if write.lane is None else sessions | {write.lane.lane.session_id}


# --- Removal ---------------------------------------------------------------------------------------------------------


async def work_left(db: PostgresConnection, fence: Fence) -> tuple[str, str, str] | None:
    """Return the next thing to remove, of a workspace that this store may write to: its table, workspace and id."""
    values = (fence.incarnation, list(fence.tokens), list(fence.tokens.values()))
    may_write = (
        "holder IN ('', $1) AND NOT EXISTS (SELECT 1 FROM unnest($2::text[], $3::int8[]) AS claimed (id, token)"
        " WHERE claimed.id = workspaces.id AND claimed.token <> workspaces.token)"
    )
    row = await db.fetchrow(
        "(SELECT 'hidden_sessions', workspace_id, session_id FROM hidden_sessions JOIN workspaces ON id = workspace_id"
        f" WHERE writer = '' AND {may_write} LIMIT 1) UNION ALL"
        " (SELECT 'cut_messages', workspace_id, session_id FROM cut_messages JOIN workspaces ON id = workspace_id"
        f" WHERE {may_write} LIMIT 1) UNION ALL"
        " (SELECT 'attachments', workspace_id, digest FROM attachments JOIN workspaces ON id = workspace_id"
        f" WHERE is_unused AND {may_write} LIMIT 1) LIMIT 1",
        *values,
    )
    return (row[0], row[1], row[2]) if row else None


async def remove(db: PostgresConnection, table: str, workspace_id: str, item_id: str) -> None:
    """Remove a slice of what `work_left` has returned. The workspace is locked."""
    if table == "hidden_sessions":
        await _remove_from(db, workspace_id, item_id)
    elif table == "cut_messages":
        await _remove_cut(db, workspace_id, item_id)
    else:
        await db.execute(
            "DELETE FROM attachments WHERE workspace_id = $1 AND digest = $2 AND is_unused", workspace_id, item_id
        )


async def give_up_copies(db: PostgresConnection, fence: Fence) -> bool:
    """Let the copies be removed whose process has ended; return False if there are none."""
    writers = await db.fetch(
        "SELECT DISTINCT writer FROM hidden_sessions WHERE writer NOT IN ('', $1)", fence.incarnation
    )
    changed = False
    for (writer,) in writers:
        if await db.fetchval("SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))", writer):
            await db.execute("UPDATE hidden_sessions SET writer = '' WHERE writer = $1", writer)
            changed = True
    return changed


async def remove_from_workspace(db: PostgresConnection, workspace_id: str) -> bool:
    """Remove some of the hidden sessions and attachments of a removed workspace; return False if none is left."""
    await db.execute("UPDATE hidden_sessions SET writer = '' WHERE workspace_id = $1 AND writer <> ''", workspace_id)
    session_id = await db.fetchval(
        "SELECT session_id FROM hidden_sessions WHERE workspace_id = $1 LIMIT 1", workspace_id
    )
    if session_id is not None:
        return await _remove_from(db, workspace_id, session_id)
    removed = await db.fetch(
        "DELETE FROM attachments WHERE workspace_id = $1 AND digest ="
        " (SELECT digest FROM attachments WHERE workspace_id = $1 LIMIT 1) RETURNING 1",
        workspace_id,
    )
    return bool(removed)


async def _remove_cut(db: PostgresConnection, workspace_id: str, session_id: str) -> None:
    """Remove some messages of a cut, and its mark with the last one."""
    key = (workspace_id, session_id)
    row = await db.fetchrow(
        "SELECT first, last FROM cut_messages WHERE workspace_id = $1 AND session_id = $2 LIMIT 1", *key
    )
    if row is None:
        return
    first, last = row
    removed = await _slice(db, "messages", *key, f"AND ordinal BETWEEN {first:d} AND {last:d}")
    await _remove_rows(db, "messages", workspace_id, removed)
    if not removed or removed[-1] == last:
        await db.execute(
            "DELETE FROM cut_messages WHERE workspace_id = $1 AND session_id = $2 AND first = $3", *key, first
        )
        await _forget_leftovers(db, workspace_id)


async def _slice(
    db: PostgresConnection, table: str, workspace_id: str, session_id: str, condition: str = ""
) -> list[int | str]:
    """Return the keys of the first rows, which have SLICE_BYTES_MAX together."""
    key, size = _TABLES[table]
    rows = await db.fetch(
        f"SELECT key FROM (SELECT key, sum(size) OVER (ORDER BY key) - size AS size_before FROM"
        f" (SELECT {key} AS key, coalesce({size}, 0) AS size FROM {table}"
        f" WHERE session_id = $2 AND workspace_id = $1 {condition} ORDER BY {key} LIMIT {SLICE_ROWS_MAX})"
        f" AS first_rows) AS sized WHERE size_before < {SLICE_BYTES_MAX} ORDER BY key",
        workspace_id,
        session_id,
    )
    return [row[0] for row in rows]


async def _remove_from(db: PostgresConnection, workspace_id: str, session_id: str) -> bool:
    """Remove some rows of this session, or its mark if no row is left; return False if it is not deleted."""
    key = (workspace_id, session_id)
    is_deleted = "SELECT 1 FROM hidden_sessions WHERE workspace_id = $1 AND session_id = $2 AND writer = ''"
    if not await db.fetchval(is_deleted, *key):
        return False
    for table in _TABLES:
        if removed := await _slice(db, table, *key):
            await _remove_rows(db, table, workspace_id, removed)
            return True
    await _release_attachments(db, workspace_id, session_id)  # those of a copy
    await db.execute("DELETE FROM cut_messages WHERE workspace_id = $1 AND session_id = $2", *key)
    await db.execute("DELETE FROM hidden_sessions WHERE workspace_id = $1 AND session_id = $2", *key)
    await _forget_leftovers(db, workspace_id)
    return True


async def _forget_leftovers(db: PostgresConnection, workspace_id: str) -> None:
    await db.execute(
        "UPDATE workspaces SET has_leftovers = FALSE WHERE id = $1"
        " AND NOT EXISTS (SELECT 1 FROM hidden_sessions WHERE workspace_id = $1)"
        " AND NOT EXISTS (SELECT 1 FROM cut_messages WHERE workspace_id = $1)",
        workspace_id,
    )


async def _release_attachments(db: PostgresConnection, workspace_id: str, session_id: str) -> None:
    """Mark the attachments that only this session uses. They are removed later, one by one."""
    await db.execute(
        "WITH released AS"
        " (DELETE FROM attachment_uses WHERE workspace_id = $1 AND session_id = $2 RETURNING digest)"
        " UPDATE attachments SET is_unused = TRUE FROM released"
        " WHERE attachments.workspace_id = $1 AND attachments.digest = released.digest AND NOT EXISTS"
        " (SELECT 1 FROM attachment_uses AS other WHERE other.workspace_id = $1 AND other.digest = released.digest"
        " AND other.session_id <> $2)",
        workspace_id,
        session_id,
    )


async def _remove_rows(db: PostgresConnection, table: str, workspace_id: str, keys: Iterable[int | str]) -> None:
    keys = list(keys)
    if not keys:
        return
    if table == "messages":
        await db.execute("DELETE FROM message_tokens WHERE message_ordinal = ANY($1::int8[])", keys)
        await db.execute("DELETE FROM message_tails WHERE message_ordinal = ANY($1::int8[])", keys)
    kind = "text" if table == "runs" else "int8"
    await db.execute(
        f"DELETE FROM {table} WHERE workspace_id = $1 AND {_TABLES[table][0]} = ANY($2::{kind}[])", workspace_id, keys
    )
