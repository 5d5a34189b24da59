"""The records of many Writes, put into the tables of the PostgreSQL database by one statement for each table.

If a statement changes fewer rows than it has records, a record was refused. The error is that of the first record:
callers that need to know which one was refused pass one record at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import asyncpg

from kedge.core import audit, run_facts
from kedge.core.approvals import Ask, Grant
from kedge.core.audit import AuditEntry
from kedge.core.records import AttachmentContent, FileVersion, RunRecord, SessionRecord
from kedge.core.run_facts import RunFacts
from kedge.core.transcript import Message, Tail
from kedge.store import codec
from kedge.store.base import LaneWrite, Write
from kedge.store.postgres_connect import PostgresConnection
from kedge.store.postgres_reclaim import message_visible
from kedge.store.search_tokens import searched_text, tokens

#: The size of the tokens of a message; PostgreSQL stores up to 1 MiB. Only a text of several 100,000 characters, all of
#: them different words outside of the Basic Multilingual Plane, has more. Bytes.
_TOKENS_BYTES_MAX = 1_000_000

# --- The log and the records -----------------------------------------------------------------------------------------


async def append_rows(db: PostgresConnection, rows: list[tuple[str, codec.LogRow]]) -> None:
    if not rows:
        return
    ends = [(owner, row.run_id, row.session_id) for owner, row in rows if row.kind == "RunEnded"]
    if ends:
        # The log may have been trimmed of the first RunEnded; the record still has the state.
        ended = await db.fetch(
            "SELECT run_id FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY"
            " AS new (workspace_id, run_id, session_id, number)"
            " WHERE EXISTS (SELECT 1 FROM runs WHERE (runs.workspace_id, runs.run_id, runs.session_id)"
            " = (new.workspace_id, new.run_id, new.session_id) AND state = 'ended')"
            " OR EXISTS (SELECT 1 FROM log WHERE (log.workspace_id, log.run_id, log.session_id)"
            " = (new.workspace_id, new.run_id, new.session_id) AND kind = 'RunEnded') ORDER BY number LIMIT 1",
            *zip(*ends, strict=True),
        )
        if ended:
            raise codec.run_has_ended(str(ended[0][0]))
        if repeated := next((end for index, end in enumerate(ends) if end in ends[:index]), None):
            raise codec.run_has_ended(str(repeated[1]))
    try:
        await _insert_rows(db, rows)
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name != "log_run_ends" or not ends:
            raise
        raise codec.run_has_ended(str(ends[0][1])) from error


async def _insert_rows(db: PostgresConnection, rows: list[tuple[str, codec.LogRow]]) -> None:
    """Add the entries, and move the ends of their logs."""
    last = dict(rows)
    await db.execute(
        "WITH moved AS (UPDATE workspaces SET head = last.head, head_hash = last.hash"
        " FROM unnest($8::text[], $9::int8[], $10::bytea[]) AS last (id, head, hash) WHERE workspaces.id = last.id)"
        " INSERT INTO log (workspace_id, position, session_id, kind, run_id, payload, hash)"
        " SELECT * FROM unnest($1::text[], $2::int8[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bytea[])",
        [owner for owner, _ in rows],
        [row.position for _, row in rows],
        [row.session_id for _, row in rows],
        [row.kind for _, row in rows],
        [row.run_id for _, row in rows],
        [row.payload for _, row in rows],
        [row.hash for _, row in rows],
        list(last),
        [row.position for row in last.values()],
        [row.hash for row in last.values()],
    )


async def put_lanes(db: PostgresConnection, writes: list[tuple[str, LaneWrite]]) -> None:
    lanes = [write.lane for _, write in writes]
    changed = await db.fetch(
        "INSERT INTO lanes (session_id, workspace_id, version, next_seq, mark)"
        " SELECT new.session_id, new.workspace_id, new.version, new.next_seq, new.mark"
        " FROM unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $5::int8[], $6::int8[])"
        " AS new (session_id, workspace_id, version, next_seq, mark, expected)"
        " LEFT JOIN lanes USING (session_id) WHERE coalesce(lanes.version, 0) = new.expected"
        " ON CONFLICT (session_id) DO UPDATE SET version = excluded.version, next_seq = excluded.next_seq,"
        " mark = excluded.mark WHERE lanes.workspace_id = excluded.workspace_id RETURNING 1",
        [lane.session_id for lane in lanes],
        [owner for owner, _ in writes],
        [lane.version for lane in lanes],
        [lane.next_seq for lane in lanes],
        [lane.mark for lane in lanes],
        [write.expected_version for _, write in writes],
    )
    if len(changed) < len(writes):
        owner, write = writes[0]
        row = await db.fetchrow("SELECT version, workspace_id FROM lanes WHERE session_id = $1", write.lane.session_id)
        version, stored_owner = row or (0, owner)
        if stored_owner != owner:
            raise codec.belongs_elsewhere("the Lane of session", write.lane.session_id)
        raise codec.lane_moved_on(write.lane.session_id, write.expected_version, version)


async def put_sessions(db: PostgresConnection, sessions: list[SessionRecord]) -> None:
    changed = await db.fetch(
        "INSERT INTO sessions (id, workspace_id, updated_at, record)"
        " SELECT * FROM unnest($1::text[], $2::text[], $3::int8[], $4::bytea[])"
        " ON CONFLICT (id) DO UPDATE SET updated_at = excluded.updated_at, record = excluded.record"
        " WHERE sessions.workspace_id = excluded.workspace_id RETURNING 1",
        [session.id for session in sessions],
        [session.workspace_id for session in sessions],
        [session.updated_at for session in sessions],
        [codec.encode_session(session) for session in sessions],
    )
    if len(changed) < len(sessions):
        raise codec.belongs_elsewhere("session", sessions[0].id)


async def put_runs(db: PostgresConnection, items: list[tuple[Write, RunRecord, int]]) -> None:
    runs = [run for _, run, _ in items]
    changes_prompt = [run.run_id not in write.unchanged_prompts for write, run, _ in items]
    changed = await db.fetch(
        "INSERT INTO runs (workspace_id, run_id, session_id, seq, state, accepted_at, ended_at, record, prompt)"
        " SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[], $5::text[], $6::int8[], $7::int8[],"
        " $8::bytea[], $9::bytea[])"
        " ON CONFLICT (workspace_id, run_id)"
        " DO UPDATE SET seq = excluded.seq, state = excluded.state, accepted_at = excluded.accepted_at,"
        " ended_at = excluded.ended_at, record = excluded.record, prompt = coalesce(excluded.prompt, runs.prompt)"
        " WHERE runs.session_id = excluded.session_id RETURNING 1",
        [run.workspace_id for run in runs],
        [run.run_id for run in runs],
        [run.session_id for run in runs],
        [run.seq for run in runs],
        [run.state for run in runs],
        [run.accepted_at for run in runs],
        [run.ended_at for run in runs],
        [codec.encode_run(run, position) for _, run, position in items],
        [
            codec.encode_prompt(run.prompt) if changes else None
            for run, changes in zip(runs, changes_prompt, strict=True)
        ],
    )
    if len(changed) < len(runs):
        raise codec.belongs_elsewhere("Run", runs[0].run_id)
    changed_prompts = [run for run, changes in zip(runs, changes_prompt, strict=True) if changes]
    await _use_attachments(db, [(run.workspace_id, run) for run in changed_prompts])


async def add_facts(db: PostgresConnection, facts: list[RunFacts]) -> None:
    """Add the facts of ended Runs, and remove the oldest ones beyond the limit.

    A transaction that was rolled back leaves a gap in the ordinals: one of the oldest facts is then removed early."""
    if not facts:
        return
    ordinals = await db.fetch(
        "INSERT INTO run_facts (workspace_id, ended_at, facts)"
        " SELECT workspace_id, ended_at, facts FROM unnest($1::text[], $2::int8[], $3::bytea[]) WITH ORDINALITY"
        " AS new (workspace_id, ended_at, facts, number) ORDER BY number RETURNING ordinal",
        [one.workspace_id for one in facts],
        [one.ended_at for one in facts],
        [codec.encode_facts(one) for one in facts],
    )
    # Without rows that another process removes now: two processes never wait for each other.
    await db.execute(
        "DELETE FROM run_facts WHERE ordinal IN"
        " (SELECT ordinal FROM run_facts WHERE ordinal <= $1 ORDER BY ordinal FOR UPDATE SKIP LOCKED)",
        max(row[0] for row in ordinals) - run_facts.FACTS_MAX,
    )


async def add_audit(db: PostgresConnection, entries: Sequence[AuditEntry]) -> None:
    """Add audit entries, and remove the oldest ones beyond the limit, as for facts."""
    if not entries:
        return
    ordinals = await db.fetch(
        "INSERT INTO audit (workspace_id, author, entry)"
        " SELECT workspace_id, author, entry FROM unnest($1::text[], $2::text[], $3::bytea[]) WITH ORDINALITY"
        " AS new (workspace_id, author, entry, number) ORDER BY number RETURNING ordinal",
        [one.workspace_id for one in entries],
        [one.author for one in entries],
        [codec.encode_audit(one) for one in entries],
    )
    await db.execute(
        "DELETE FROM audit WHERE ordinal IN"
        " (SELECT ordinal FROM audit WHERE ordinal <= $1 ORDER BY ordinal FOR UPDATE SKIP LOCKED)",
        max(row[0] for row in ordinals) - audit.AUDIT_MAX,
    )


# --- Attachments -----------------------------------------------------------------------------------------------------


async def put_attachments(db: PostgresConnection, contents: list[tuple[str, AttachmentContent]]) -> None:
    if contents:
        new = {(owner, content.digest): content.data for owner, content in reversed(contents)}
        await db.execute(
            "INSERT INTO attachments (workspace_id, digest, content)"
            " SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[])"
            " ON CONFLICT (workspace_id, digest) DO UPDATE SET is_unused = FALSE WHERE attachments.is_unused",
            [owner for owner, _ in new],
            [digest for _, digest in new],
            list(new.values()),
        )


async def _use_attachments(db: PostgresConnection, records: Sequence[tuple[str, RunRecord | Message]]) -> None:
    """Keep the attachments that the records name for as long as their sessions."""
    uses = [(owner, record.session_id, digest) for owner, record in records for digest in codec.digests_of(record)]
    if not uses:
        return
    columns = list(zip(*uses, strict=True))
    missing = await db.fetchval(
        "SELECT digest FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS new (workspace_id, digest, number)"
        " WHERE NOT EXISTS (SELECT 1 FROM attachments WHERE (attachments.workspace_id, attachments.digest)"
        " = (new.workspace_id, new.digest) AND NOT is_unused) ORDER BY number LIMIT 1",
        columns[0],
        columns[2],
    )
    if missing is not None:
        raise codec.no_attachment(missing)
    await db.execute(
        "INSERT INTO attachment_uses (workspace_id, session_id, digest)"
        " SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) ON CONFLICT DO NOTHING",
        *columns,
    )


# --- Messages --------------------------------------------------------------------------------------------------------


def workspace_prefix(workspace_id: str) -> str:
    """Return the beginning of the tokens of a workspace. Others may share it: a read checks the workspace too."""
    return blake2b(workspace_id.encode(), digest_size=5).hexdigest()


def indexed_text(workspace_id: str, message: Message) -> str:
    """Return the tokens of a message as the search index stores them, separated by spaces."""
    prefix = workspace_prefix(workspace_id)
    indexed = " ".join(prefix + token for token in tokens(searched_text(message)))
    if len(indexed) * 4 <= _TOKENS_BYTES_MAX or len(encoded := indexed.encode()) <= _TOKENS_BYTES_MAX:
        return indexed
    return encoded[:_TOKENS_BYTES_MAX].decode(errors="ignore")


_PUT_MESSAGES = """
WITH new AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::int8[], $7::int8[],
        $8::text[], $9::text[], $10::text[], $11::bool[], $12::text[]) WITH ORDINALITY
    AS new (workspace_id, id, session_id, role, parts, created_at, updated_at, run_id, model, provider, is_summary,
        tokens, number)
), put AS (
    INSERT INTO messages (workspace_id, id, session_id, role, parts, created_at, updated_at, run_id, model, provider,
        is_summary)
    SELECT workspace_id, id, session_id, role, parts, created_at, updated_at, run_id, model, provider, is_summary
    FROM new ORDER BY number
    ON CONFLICT (id, workspace_id) DO UPDATE SET role = excluded.role, parts = excluded.parts,
        created_at = excluded.created_at, updated_at = excluded.updated_at, run_id = excluded.run_id,
        model = excluded.model, provider = excluded.provider, is_summary = excluded.is_summary
    WHERE messages.session_id = excluded.session_id
    RETURNING ordinal, workspace_id, id
), replaced_tails AS (
    DELETE FROM message_tails WHERE message_ordinal IN (SELECT ordinal FROM put)
), unindexed AS (
    DELETE FROM message_tokens
    WHERE message_ordinal IN (SELECT ordinal FROM put JOIN new USING (workspace_id, id) WHERE new.tokens = '')
), indexed AS (
    INSERT INTO message_tokens (message_ordinal, tokens)
    SELECT ordinal, array_to_tsvector(string_to_array(new.tokens, ' '))
    FROM put JOIN new USING (workspace_id, id) WHERE new.tokens <> ''
    ON CONFLICT (message_ordinal) DO UPDATE SET tokens = excluded.tokens
)
SELECT count(*) FROM put
"""


async def put_messages(db: PostgresConnection, items: Sequence[tuple[str, Message, bytes, str]]) -> None:
    """Put messages, each with its workspace, encoded parts and tokens."""
    messages = [message for _, message, _, _ in items]
    changed = await db.fetchval(
        _PUT_MESSAGES,
        [owner for owner, _, _, _ in items],
        [message.id for message in messages],
        [message.session_id for message in messages],
        [message.role for message in messages],
        [parts for _, _, parts, _ in items],
        [message.created_at for message in messages],
        [message.updated_at for message in messages],
        [message.run_id for message in messages],
        [message.model for message in messages],
        [message.provider for message in messages],
        [message.is_summary for message in messages],
        [indexed for _, _, _, indexed in items],
    )
    if changed < len(items):
        raise codec.belongs_elsewhere("message", messages[0].id)
    await _use_attachments(db, [(owner, message) for owner, message, _, _ in items])


async def add_tails(db: PostgresConnection, tails: list[tuple[str, Tail]]) -> None:
    added = await db.fetch(
        "INSERT INTO message_tails (message_ordinal, part, kind, text)"
        " SELECT ordinal, new.part, new.kind, new.text"
        " FROM unnest($1::text[], $2::text[], $3::text[], $4::int4[], $5::text[], $6::text[]) WITH ORDINALITY"
        " AS new (workspace_id, id, session_id, part, kind, text, number)"
        " JOIN messages USING (workspace_id, id, session_id)"
        f" WHERE {message_visible('messages')} ORDER BY number RETURNING 1",
        [owner for owner, _ in tails],
        [tail.message_id for _, tail in tails],
        [tail.session_id for _, tail in tails],
        [tail.part for _, tail in tails],
        [tail.kind for _, tail in tails],
        [tail.text for _, tail in tails],
    )
    if len(added) < len(tails):
        raise codec.no_message_for_tail(tails[0][1].message_id)


# --- Approvals and undo ----------------------------------------------------------------------------------------------


async def put_asks(db: PostgresConnection, asks: list[Ask]) -> None:
    changed = await db.fetch(
        "INSERT INTO asks (id, workspace_id, session_id, state, record)"
        " SELECT id, workspace_id, session_id, state, record"
        " FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[]) WITH ORDINALITY"
        " AS new (id, workspace_id, session_id, state, record, number) ORDER BY number"
        " ON CONFLICT (id) DO UPDATE SET state = excluded.state, record = excluded.record"
        " WHERE asks.workspace_id = excluded.workspace_id AND asks.session_id = excluded.session_id"
        " AND (asks.state = 'pending' OR asks.record = excluded.record) RETURNING 1",
        [ask.id for ask in asks],
        [ask.workspace_id for ask in asks],
        [ask.session_id for ask in asks],
        [ask.state for ask in asks],
        [codec.encode_ask(ask) for ask in asks],
    )
    if len(changed) < len(asks):
        row = await db.fetchrow("SELECT workspace_id, session_id FROM asks WHERE id = $1", asks[0].id)
        if row is None or tuple(row) != (asks[0].workspace_id, asks[0].session_id):
            raise codec.belongs_elsewhere("Ask", asks[0].id)
        raise codec.ask_is_settled(asks[0].id)


async def put_grants(db: PostgresConnection, grants: list[Grant]) -> None:
    changed = await db.fetch(
        "INSERT INTO grants (id, workspace_id, session_id, record)"
        " SELECT id, workspace_id, session_id, record"
        " FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[]) WITH ORDINALITY"
        " AS new (id, workspace_id, session_id, record, number) ORDER BY number"
        " ON CONFLICT (id) DO UPDATE SET record = excluded.record"
        " WHERE grants.workspace_id = excluded.workspace_id AND grants.session_id = excluded.session_id RETURNING 1",
        [grant.id for grant in grants],
        [grant.workspace_id for grant in grants],
        [grant.session_id for grant in grants],
        [codec.encode_grant(grant) for grant in grants],
    )
    if len(changed) < len(grants):
        raise codec.belongs_elsewhere("grant", grants[0].id)


async def put_files(db: PostgresConnection, items: list[tuple[FileVersion, bytes | None]]) -> None:
    versions = [version for version, _ in items]
    changed = await db.fetch(
        "INSERT INTO file_versions (id, workspace_id, session_id, run_id, record, content)"
        " SELECT id, workspace_id, session_id, run_id, record, content"
        " FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::bytea[]) WITH ORDINALITY"
        " AS new (id, workspace_id, session_id, run_id, record, content, number) ORDER BY number"
        " ON CONFLICT (id) DO UPDATE SET run_id = excluded.run_id, record = excluded.record,"
        " content = coalesce(file_versions.content, excluded.content)"
        " WHERE file_versions.workspace_id = excluded.workspace_id"
        " AND file_versions.session_id = excluded.session_id RETURNING 1",
        [version.id for version in versions],
        [version.workspace_id for version in versions],
        [version.session_id for version in versions],
        [version.run_id for version in versions],
        [codec.encode_file(version) for version in versions],
        [original for _, original in items],
    )
    if len(changed) < len(items):
        raise codec.belongs_elsewhere("file version", versions[0].id)
