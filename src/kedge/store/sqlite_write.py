"""Changes of the SQLite database. Each public function runs in the write thread, inside its own savepoint.

A function that raises is rolled back, so checks and changes may come in any order.
"""

from __future__ import annotations

import apsw

from kedge.core import audit, run_facts
from kedge.core.approvals import Ask, Grant
from kedge.core.audit import AuditEntry
from kedge.core.records import AttachmentContent, FileVersion, LaneRecord, RunRecord, SessionRecord, WorkspaceRecord
from kedge.core.run_facts import RunFacts
from kedge.core.transcript import Message, Tail
from kedge.store import codec, sqlite_reclaim
from kedge.store.base import LaneWrite, Write
from kedge.store.search_tokens import searched_text, tokens

#: Entries removed in one transaction: trimming a long log must not delay other writes. Items.
TRIM_ENTRIES_MAX = 1_000
#: Content copied in one transaction: some milliseconds of work. Bytes.
COPY_BYTES_MAX = 256 * 1024
#: How much longer a byte for the search index takes than others. Ratio.
INDEX_COST = 5


def append(db: apsw.Connection, write: Write) -> int:
    codec.check_write(write)
    log = db.execute("SELECT head, head_hash FROM workspaces WHERE id = ?", (write.workspace_id,)).fetchone()
    if log is None:
        raise codec.unknown_workspace(write.workspace_id)
    rows = codec.log_rows(write, *log)
    sqlite_reclaim.prepare(db, write)
    if write.lane is not None:
        _put_lane(db, write.workspace_id, write.lane)
    _append_rows(db, write.workspace_id, rows)
    for session_id, message_id in write.cuts:
        sqlite_reclaim.cut(db, write.workspace_id, session_id, message_id)
    for session in write.sessions:
        _put_session(db, session)
    for content in write.attachments:
        _put_attachment(db, write.workspace_id, content)
    positions = codec.accepted_positions(rows)
    for run in write.runs:
        _put_run(db, run, positions.get((run.session_id, run.run_id), run.position))
        if run.run_id not in write.unchanged_prompts:
            _put_prompt(db, run)
    for facts in codec.ended_facts(write):
        _add_facts(db, facts)
    for message in write.messages:
        _put_message(db, write.workspace_id, message, codec.encode_parts(message.parts), search_text(message))
    for tail in write.tails:
        _add_tail(db, write.workspace_id, tail)
    for ask in write.asks:
        _put_ask(db, ask)
    for grant in write.grants:
        _put_grant(db, grant)
    for version in write.files:
        _put_file(db, version, write.originals.get(version.id))
    for entry in write.audit:
        add_audit(db, entry)
    for grant_id in write.deleted_grants:
        db.execute("DELETE FROM grants WHERE id = ? AND workspace_id = ?", (grant_id, write.workspace_id))
    for session_id in write.deleted_sessions:
        delete_session(db, write.workspace_id, session_id)
    return rows[-1].position if rows else int(log[0])


# --- The log ---------------------------------------------------------------------------------------------------------


def _append_rows(db: apsw.Connection, workspace_id: str, rows: list[codec.LogRow]) -> None:
    if not rows:
        return
    for row in rows:
        # The log may have been trimmed of the first RunEnded; the record still has the state.
        if row.kind == "RunEnded" and _has_ended(db, workspace_id, row):
            raise codec.run_has_ended(str(row.run_id))
        try:
            db.execute(
                "INSERT INTO log (workspace_id, position, session_id, kind, run_id, payload, hash)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (workspace_id, row.position, row.session_id, row.kind, row.run_id, row.payload, row.hash),
            )
        except apsw.ConstraintError as error:
            if row.kind != "RunEnded":
                raise
            raise codec.run_has_ended(str(row.run_id)) from error
    db.execute(
        "UPDATE workspaces SET head = ?, head_hash = ? WHERE id = ?", (rows[-1].position, rows[-1].hash, workspace_id)
    )


def _has_ended(db: apsw.Connection, workspace_id: str, row: codec.LogRow) -> bool:
    ended = db.execute(
        "SELECT 1 FROM runs WHERE workspace_id = ? AND run_id = ? AND session_id = ? AND state = 'ended'",
        (workspace_id, row.run_id, row.session_id),
    )
    return ended.fetchone() is not None


def trim(db: apsw.Connection, workspace_id: str, keep: int) -> bool:
    """Remove some of the oldest entries; return True if more are to be removed."""
    log = db.execute("SELECT floor, head FROM workspaces WHERE id = ?", (workspace_id,)).fetchone()
    if log is None:
        raise codec.unknown_workspace(workspace_id)
    floor, head = log
    target = head - max(keep, 0)
    new_floor = min(target, floor + TRIM_ENTRIES_MAX)
    if new_floor <= floor:
        return False
    floor_hash = db.execute(
        "SELECT hash FROM log WHERE workspace_id = ? AND position = ?", (workspace_id, new_floor)
    ).fetchone()
    if floor_hash is None:
        raise codec.damaged(workspace_id, new_floor, "the entry is missing")
    db.execute("DELETE FROM log WHERE workspace_id = ? AND position <= ?", (workspace_id, new_floor))
    db.execute("UPDATE workspaces SET floor = ?, floor_hash = ? WHERE id = ?", (new_floor, floor_hash[0], workspace_id))
    return bool(new_floor < target)


# --- Records ---------------------------------------------------------------------------------------------------------


def workspace(db: apsw.Connection, path: str, new: WorkspaceRecord) -> WorkspaceRecord:
    codec.check_texts((path, new.id))
    row = db.execute("SELECT id, path, created_at, base FROM workspaces WHERE path = ?", (path,)).fetchone()
    if row is not None:
        return WorkspaceRecord(*row)
    start = codec.first_hash(new.id, new.base)
    try:
        db.execute(
            "INSERT INTO workspaces (id, path, created_at, base, floor, floor_hash, head, head_hash)"
            " VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?4, ?5)",
            (new.id, path, new.created_at, new.base, start),
        )
    except apsw.ConstraintError as error:
        raise codec.belongs_elsewhere("workspace", new.id) from error
    return WorkspaceRecord(new.id, path, new.created_at, new.base)


def _put_lane(db: apsw.Connection, workspace_id: str, write: LaneWrite) -> None:
    lane: LaneRecord = write.lane
    row = db.execute("SELECT version, workspace_id FROM lanes WHERE session_id = ?", (lane.session_id,)).fetchone()
    version, owner = row or (0, workspace_id)
    if owner != workspace_id:
        raise codec.belongs_elsewhere("the Lane of session", lane.session_id)
    if version != write.expected_version:
        raise codec.lane_moved_on(lane.session_id, write.expected_version, version)
    db.execute(
        "INSERT OR REPLACE INTO lanes (session_id, workspace_id, version, next_seq, mark) VALUES (?, ?, ?, ?, ?)",
        (lane.session_id, workspace_id, lane.version, lane.next_seq, lane.mark),
    )


def _put_session(db: apsw.Connection, session: SessionRecord) -> None:
    changed = db.execute(
        "INSERT INTO sessions (id, workspace_id, updated_at, record) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET updated_at = excluded.updated_at, record = excluded.record"
        " WHERE workspace_id = excluded.workspace_id RETURNING 1",
        (session.id, session.workspace_id, session.updated_at, codec.encode_session(session)),
    ).fetchall()
    if not changed:
        raise codec.belongs_elsewhere("session", session.id)


def _put_run(db: apsw.Connection, run: RunRecord, position: int) -> None:
    body = codec.encode_run(run, position)
    changed = db.execute(
        "INSERT INTO runs (workspace_id, run_id, session_id, seq, state, accepted_at, ended_at, record)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (workspace_id, run_id)"
        " DO UPDATE SET seq = excluded.seq, state = excluded.state, accepted_at = excluded.accepted_at,"
        " ended_at = excluded.ended_at, record = excluded.record"
        " WHERE session_id = excluded.session_id RETURNING 1",
        (run.workspace_id, run.run_id, run.session_id, run.seq, run.state, run.accepted_at, run.ended_at, body),
    ).fetchall()
    if not changed:
        raise codec.belongs_elsewhere("Run", run.run_id)


def _put_prompt(db: apsw.Connection, run: RunRecord) -> None:
    _use_attachments(db, run.workspace_id, run)
    db.execute(
        "INSERT INTO prompts (workspace_id, run_id, prompt) VALUES (?, ?, ?)"
        " ON CONFLICT (workspace_id, run_id) DO UPDATE SET prompt = excluded.prompt",
        (run.workspace_id, run.run_id, codec.encode_prompt(run.prompt)),
    )


def _add_facts(db: apsw.Connection, facts: RunFacts) -> None:
    """Add the facts of an ended Run, and remove the oldest ones beyond the limit."""
    db.execute(
        "INSERT INTO run_facts (workspace_id, ended_at, facts) VALUES (?, ?, ?)",
        (facts.workspace_id, facts.ended_at, codec.encode_facts(facts)),
    )
    db.execute("DELETE FROM run_facts WHERE ordinal <= ?", (db.last_insert_rowid() - run_facts.FACTS_MAX,))


def add_audit(db: apsw.Connection, entry: AuditEntry) -> None:
    """Add an audit entry, and remove the oldest ones beyond the limit."""
    db.execute(
        "INSERT INTO audit (workspace_id, author, entry) VALUES (?, ?, ?)",
        (entry.workspace_id, entry.author, codec.encode_audit(entry)),
    )
    db.execute("DELETE FROM audit WHERE ordinal <= ?", (db.last_insert_rowid() - audit.AUDIT_MAX,))


# --- Attachments -----------------------------------------------------------------------------------------------------


def _put_attachment(db: apsw.Connection, workspace_id: str, content: AttachmentContent) -> None:
    key = (workspace_id, content.digest)
    if not db.execute("SELECT 1 FROM attachments WHERE workspace_id = ? AND digest = ?", key).fetchone():
        db.execute("INSERT INTO attachment_contents (content) VALUES (?)", (content.data,))
        db.execute("INSERT INTO attachments VALUES (?, ?, ?)", (*key, db.last_insert_rowid()))


def _use_attachments(db: apsw.Connection, workspace_id: str, record: RunRecord | Message) -> None:
    """Keep the attachments that the record names for as long as its session."""
    for digest in codec.digests_of(record):
        key = (workspace_id, digest)
        if not db.execute("SELECT 1 FROM attachments WHERE workspace_id = ? AND digest = ?", key).fetchone():
            raise codec.no_attachment(digest)
        db.execute(
            "INSERT INTO attachment_uses (workspace_id, session_id, digest) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (workspace_id, record.session_id, digest),
        )


# --- Messages --------------------------------------------------------------------------------------------------------


def search_text(message: Message) -> str:
    """Return the tokens of a message as the search index stores them."""
    return " ".join(tokens(searched_text(message)))


def _put_message(db: apsw.Connection, workspace_id: str, message: Message, parts: bytes, indexed: str) -> None:
    changed = db.execute(
        "INSERT INTO messages"
        " (workspace_id, id, session_id, role, parts, created_at, updated_at, run_id, model, provider, is_summary)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (workspace_id, id) DO UPDATE SET role = excluded.role, parts = excluded.parts,"
        " created_at = excluded.created_at, updated_at = excluded.updated_at, run_id = excluded.run_id,"
        " model = excluded.model, provider = excluded.provider, is_summary = excluded.is_summary"
        " WHERE session_id = excluded.session_id RETURNING ordinal",
        (
            workspace_id,
            message.id,
            message.session_id,
            message.role,
            parts,
            message.created_at,
            message.updated_at,
            message.run_id,
            message.model,
            message.provider,
            int(message.is_summary),
        ),
    ).fetchall()
    if not changed:
        raise codec.belongs_elsewhere("message", message.id)
    _use_attachments(db, workspace_id, message)
    ordinal = changed[0][0]
    db.execute("DELETE FROM message_tails WHERE message_ordinal = ?", (ordinal,))
    if indexed:
        db.execute("INSERT OR REPLACE INTO message_tokens (rowid, tokens) VALUES (?, ?)", (ordinal, indexed))
    else:
        db.execute("DELETE FROM message_tokens WHERE rowid = ?", (ordinal,))


def add_copies(
    db: apsw.Connection, workspace_id: str, session_id: str, copies: list[tuple[Message, bytes, str]]
) -> None:
    """Add messages, with their encoded parts and tokens, to a session that is not visible yet."""
    sqlite_reclaim.begin_copy(db, workspace_id, session_id)
    for message, parts, indexed in copies:
        _put_message(db, workspace_id, message, parts, indexed)


def _add_tail(db: apsw.Connection, workspace_id: str, tail: Tail) -> None:
    db.execute(
        "INSERT INTO message_tails (message_ordinal, number, part, kind, text) SELECT ordinal,"
        " (SELECT coalesce(max(number), 0) + 1 FROM message_tails WHERE message_ordinal = ordinal), ?, ?, ?"
        f" FROM messages WHERE workspace_id = ? AND id = ? AND session_id = ? AND {sqlite_reclaim.MESSAGE_VISIBLE}",
        (tail.part, tail.kind, tail.text, workspace_id, tail.message_id, tail.session_id),
    )
    if db.changes() == 0:
        raise codec.no_message_for_tail(tail.message_id)


# --- Approvals and undo ----------------------------------------------------------------------------------------------


def _put_ask(db: apsw.Connection, ask: Ask) -> None:
    body = codec.encode_ask(ask)
    row = db.execute("SELECT workspace_id, session_id, state, record FROM asks WHERE id = ?", (ask.id,)).fetchone()
    if row is not None:
        workspace_id, session_id, state, record = row
        if (workspace_id, session_id) != (ask.workspace_id, ask.session_id):
            raise codec.belongs_elsewhere("Ask", ask.id)
        if state != "pending" and codec.decode_ask(record) != ask:
            raise codec.ask_is_settled(ask.id)
    db.execute(
        "INSERT INTO asks (id, workspace_id, session_id, asked_at, state, record) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id)"
        " DO UPDATE SET asked_at = excluded.asked_at, state = excluded.state, record = excluded.record",
        (ask.id, ask.workspace_id, ask.session_id, ask.asked_at, ask.state, body),
    )


def _put_grant(db: apsw.Connection, grant: Grant) -> None:
    changed = db.execute(
        "INSERT INTO grants (id, workspace_id, session_id, record) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET record = excluded.record"
        " WHERE workspace_id = excluded.workspace_id AND session_id = excluded.session_id RETURNING 1",
        (grant.id, grant.workspace_id, grant.session_id, codec.encode_grant(grant)),
    ).fetchall()
    if not changed:
        raise codec.belongs_elsewhere("grant", grant.id)


def _put_file(db: apsw.Connection, version: FileVersion, original: bytes | None) -> None:
    changed = db.execute(
        "INSERT INTO file_versions (id, workspace_id, session_id, run_id, record) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET run_id = excluded.run_id, record = excluded.record"
        " WHERE workspace_id = excluded.workspace_id AND session_id = excluded.session_id RETURNING ordinal",
        (
            version.id,
            version.workspace_id,
            version.session_id,
            version.run_id,
            codec.encode_file(version),
        ),
    ).fetchall()
    if not changed:
        raise codec.belongs_elsewhere("file version", version.id)
    if original is not None:
        db.execute(
            "INSERT INTO file_contents (version_ordinal, content) VALUES (?, ?) ON CONFLICT DO NOTHING",
            (changed[0][0], original),
        )


# --- Deletion --------------------------------------------------------------------------------------------------------


def delete_session(db: apsw.Connection, workspace_id: str, session_id: str) -> None:
    """Hide the session. The rows of tables without a limit per session are removed later, in slices."""
    key = (session_id, workspace_id)
    db.execute("DELETE FROM grants WHERE session_id = ? AND workspace_id = ?", key)
    db.execute("DELETE FROM lanes WHERE session_id = ? AND workspace_id = ?", key)
    db.execute("DELETE FROM sessions WHERE id = ? AND workspace_id = ?", key)
    sqlite_reclaim.release_attachments(db, workspace_id, session_id)
    sqlite_reclaim.delete(db, workspace_id, session_id)
