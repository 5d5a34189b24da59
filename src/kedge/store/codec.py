"""Encoding of records and events as JSON, and the hash chain of the log. Equal values have equal bytes.

All stores use these functions, so that they accept, refuse and return the same values.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from kedge.core.approvals import Ask, Grant
from kedge.core.audit import AuditEntry
from kedge.core.events import EVENT_TYPES, Event, RetryReported, RunEnded
from kedge.core.records import FileVersion, Prompt, RunRecord, SessionRecord, attachment_digest
from kedge.core.run_facts import RunFacts, facts_of
from kedge.core.transcript import PART_TYPES, AttachedFile, Message, Part, Tail, ToolResult, with_tails
from kedge.errors import (
    RESTORE_BACKUP,
    MessageNotFound,
    StoreDamaged,
    StoreError,
    UserExists,
    UserNotFound,
    VersionConflict,
    WorkspaceNotFound,
    WrongType,
)
from kedge.store.base import CopiedMessages, LogEntry, Write

T = TypeVar("T")


class _StoredEvent(msgspec.Struct):
    #: The name of the class.
    type: str
    data: msgspec.Raw


class _StoredPart(msgspec.Struct):
    type: str
    data: msgspec.Raw


_encoder = msgspec.json.Encoder()
_event_decoder = msgspec.json.Decoder(_StoredEvent)
_event_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(kind) for name, kind in EVENT_TYPES.items()
}
_parts_decoder = msgspec.json.Decoder(list[_StoredPart])
_part_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(kind) for name, kind in PART_TYPES.items()
}
_session_decoder = msgspec.json.Decoder(SessionRecord)
_prompt_decoder = msgspec.json.Decoder(Prompt)
_ask_decoder = msgspec.json.Decoder(Ask)
_grant_decoder = msgspec.json.Decoder(Grant)
_file_decoder = msgspec.json.Decoder(FileVersion)
_facts_decoder = msgspec.json.Decoder(RunFacts)
_audit_decoder = msgspec.json.Decoder(AuditEntry)
_fields_decoder = msgspec.json.Decoder(dict[str, Any])

#: The prompt is stored separately: it may have a megabyte, and does not change while the Run changes in each Step.
_RUN_FIELDS = tuple(name for name in RunRecord.__struct_fields__ if name not in ("prompt", "position"))


def _encode(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise not_unicode(error) from error


def not_unicode(error: UnicodeEncodeError) -> WrongType:
    return WrongType(f"a text contains the lone surrogate {error.object[error.start]!r}; send well-formed Unicode")


def _decode(decoder: msgspec.json.Decoder[T], data: bytes, what: str) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"cannot decode {what}: {error}") from error


# --- The log ---------------------------------------------------------------------------------------------------------


class LogRow(Struct, frozen=True):
    """A stored entry of the log. `kind` and `run_id` repeat values of the payload, for the indexes."""

    position: int
    session_id: str
    kind: str
    run_id: str | None
    payload: bytes
    hash: bytes


def encode_event(event: Event) -> bytes:
    if isinstance(event, RetryReported):
        _check_finite(event.wait_s)
    return _encode({"type": type(event).__name__, "data": event})


def decode_event(data: bytes, what: str = "an event") -> Event:
    stored = _decode(_event_decoder, data, what)
    decoder = _event_decoders.get(stored.type)
    if decoder is None:
        raise StoreDamaged(
            f"{what} has the unknown type {stored.type!r}; a newer kedge may have written it: upgrade kedge"
        )
    event: Event = _decode(decoder, stored.data, what)
    return event


def run_id_of(event: Event) -> str | None:
    return getattr(event, "run_id", None)


def first_hash(workspace_id: str, base: int) -> bytes:
    """Return the predecessor hash of the first entry. It differs between workspaces: logs cannot be swapped."""
    return hashlib.sha256(b"kedge log" + base.to_bytes(8, "big") + workspace_id.encode()).digest()


def chain_hash(previous: bytes, position: int, session_id: str, payload: bytes) -> bytes:
    name = session_id.encode()
    # The length separates session "a" with payload "bc" from session "ab" with payload "c".
    head = previous + position.to_bytes(8, "big") + len(name).to_bytes(4, "big") + name
    return hashlib.sha256(head + payload).digest()


def log_rows(write: Write, head: int, head_hash: bytes) -> list[LogRow]:
    """Return the entries of this Write, for a log that ends at `head`."""
    rows: list[LogRow] = []
    for position, (session_id, event) in enumerate(write.events, head + 1):
        payload = encode_event(event)
        head_hash = chain_hash(head_hash, position, session_id, payload)
        rows.append(LogRow(position, session_id, type(event).__name__, run_id_of(event), payload, head_hash))
    return rows


def checked_entries(workspace_id: str, previous: bytes, start: int, rows: Iterable[LogRow]) -> list[LogEntry]:
    """Verify and decode rows that must follow position `start`, whose hash is `previous`, without a gap."""
    entries: list[LogEntry] = []
    for expected, row in enumerate(rows, start + 1):
        if row.position != expected:
            raise damaged(workspace_id, expected, "the entry is missing")
        if row.hash != chain_hash(previous, row.position, row.session_id, row.payload):
            raise damaged(workspace_id, expected, "the hash of the entry does not match")
        event = decode_event(row.payload, f"the entry at {expected} of workspace {workspace_id}")
        if row.kind != type(event).__name__ or row.run_id != run_id_of(event):
            raise damaged(workspace_id, expected, "the columns of the entry do not match its payload")
        entries.append(LogEntry(row.position, row.session_id, event))
        previous = row.hash
    return entries


def damaged(workspace_id: str, position: int, reason: str) -> StoreDamaged:
    return StoreDamaged(
        f"the log of workspace {workspace_id} is damaged at position {position}: {reason}", RESTORE_BACKUP
    )


def damaged_database(path: str, reason: str) -> StoreDamaged:
    return StoreDamaged(f"the database {path} is damaged ({reason})", RESTORE_BACKUP)


# --- Records ---------------------------------------------------------------------------------------------------------


def encode_session(session: SessionRecord) -> bytes:
    _check_finite(session.usage.cost_usd)
    return _encode(session)


def decode_session(data: bytes) -> SessionRecord:
    return _decode(_session_decoder, data, "the record of a session")


def encode_run(run: RunRecord, position: int) -> bytes:
    """Encode the record, with this position and without its prompt."""
    _check_finite(run.usage.cost_usd, run.child_usage.cost_usd, run.options.timeout_s, run.options.budget_usd)
    body = {name: getattr(run, name) for name in _RUN_FIELDS}
    body["position"] = position
    return _encode(body)


def encode_prompt(prompt: Prompt) -> bytes:
    return _encode(prompt)


def decode_run(body: bytes, prompt: bytes) -> RunRecord:
    fields = _decode(_fields_decoder, body, "the record of a Run")
    fields["prompt"] = _decode(_prompt_decoder, prompt, "the prompt of a Run")
    return _convert(fields, RunRecord, "the record of a Run")


def encode_ask(ask: Ask) -> bytes:
    return _encode(ask)


def decode_ask(data: bytes) -> Ask:
    return _decode(_ask_decoder, data, "the record of an Ask")


def encode_grant(grant: Grant) -> bytes:
    return _encode(grant)


def decode_grant(data: bytes) -> Grant:
    return _decode(_grant_decoder, data, "the record of a grant")


def encode_file(version: FileVersion) -> bytes:
    return _encode(version)


def decode_file(body: bytes) -> FileVersion:
    return _decode(_file_decoder, body, "the record of a file version")


def encode_facts(facts: RunFacts) -> bytes:
    return _encode(facts)


def decode_facts(body: bytes) -> RunFacts:
    return _decode(_facts_decoder, body, "the facts of a Run")


def encode_audit(entry: AuditEntry) -> bytes:
    return _encode(entry)


def decode_audit(body: bytes) -> AuditEntry:
    return _decode(_audit_decoder, body, "an audit entry")


def _convert(fields: dict[str, Any], kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise StoreDamaged(f"cannot decode {what}: {error}") from error


def _check_finite(*numbers: float | None) -> None:
    """Refuse infinity and NaN, which JSON would turn into null."""
    for number in numbers:
        if number is not None and not math.isfinite(number):
            raise WrongType(f"cannot store the number {number}; send a finite number")


def encode_parts(parts: tuple[Part, ...]) -> bytes:
    return _encode([{"type": part.kind, "data": part} for part in parts])


def decode_parts(data: bytes, what: str = "the parts of a message") -> tuple[Part, ...]:
    parts: list[Part] = []
    for stored in _decode(_parts_decoder, data, what):
        decoder = _part_decoders.get(stored.type)
        if decoder is None:
            raise StoreDamaged(
                f"{what} has the unknown type {stored.type!r}; a newer kedge may have written it: upgrade kedge"
            )
        parts.append(_decode(decoder, stored.data, what))
    return tuple(parts)


def merged(message: Message, tails: list[Tail]) -> Message:
    """Add the tails to the message, in time linear in their length."""
    joined: list[Tail] = []
    for (part, kind), group in groupby(tails, key=lambda tail: (tail.part, tail.kind)):
        text = "".join(tail.text for tail in group)
        joined.append(Tail(message.id, message.session_id, part, kind, text))
    return with_tails(message, joined) if joined else message


def page(items: Iterable[T], size_of: Callable[[T], int], bytes_max: int | None) -> list[T]:
    """Return the items up to the one with which they have `bytes_max` bytes; all if that is None."""
    if bytes_max is None:
        return list(items)
    result: list[T] = []
    size = 0
    for item in items:
        result.append(item)
        size += size_of(item)
        if size >= bytes_max:
            break
    return result


def copied_messages(copies: Sequence[tuple[str, Message]]) -> CopiedMessages:
    """Describe a slice of a copy: the ids of the originals, and the copies."""
    complete = [
        (copy.id, original)
        for original, copy in copies
        if copy.is_summary and copy.finish and copy.finish.reason == "end_turn"
    ]
    return CopiedMessages(len(copies), copies[-1][0] if copies else "", *(complete[-1] if complete else ("", "")))


# --- Writes ----------------------------------------------------------------------------------------------------------


def check_write(write: Write) -> None:
    """Refuse values that no store can hold, before anything is changed.

    A record of another workspace is a bug of the caller, and must not reach the rows of that workspace."""
    owners = [session.workspace_id for session in write.sessions]
    owners += (run.workspace_id for run in write.runs)
    owners += (ask.workspace_id for ask in write.asks)
    owners += (grant.workspace_id for grant in write.grants)
    owners += (version.workspace_id for version in write.files)
    owners += (entry.workspace_id for entry in write.audit)
    for owner in owners:
        if owner != write.workspace_id:
            raise StoreError(f"a Write to workspace {write.workspace_id} contains a record of workspace {owner}")
    texts = [write.workspace_id, *write.deleted_sessions, *write.deleted_grants]
    texts += (session_id for session_id, _ in write.events)
    if write.lane is not None:
        texts.append(write.lane.lane.session_id)
    texts += (content.digest for content in write.attachments)
    for message in write.messages:
        texts += (message.id, message.session_id, message.run_id, message.model, message.provider)
    for tail in write.tails:
        texts += (tail.message_id, tail.session_id, tail.text)
    texts += (name for cut in write.cuts for name in cut)
    texts += (text for entry in write.audit for text in msgspec.structs.astuple(entry) if isinstance(text, str))
    check_texts(texts)


def content_bytes(write: Write) -> int:
    """Estimate the size of what can be large in a Write, from the lengths of its texts and files."""
    size = sum(map(len, write.originals.values())) + sum(len(tail.text) for tail in write.tails)
    size += sum(len(content.data) for content in write.attachments)
    size += sum(len(run.prompt.text) for run in write.runs if run.run_id not in write.unchanged_prompts)
    for message in write.messages:
        for part in message.parts:
            size += sum(len(value) for value in msgspec.structs.astuple(part) if isinstance(value, str))
            if isinstance(part, ToolResult):
                size += sum(map(len, part.images))
    return size


def digests_of(record: RunRecord | Message) -> list[str]:
    """Return the digests of the attachments that the record names. An unread file has none."""
    files = record.prompt.attachments if isinstance(record, RunRecord) else record.all(AttachedFile)
    return [file.digest for file in files if file.digest]


def check_attachment(workspace_id: str, digest: str, data: bytes | None) -> bytes:
    if data is None or attachment_digest(data) != digest:
        reason = "is missing" if data is None else "does not match its digest"
        raise StoreDamaged(f"attachment {digest} of workspace {workspace_id} {reason}", RESTORE_BACKUP)
    return data


def check_texts(texts: Iterable[str]) -> None:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise not_unicode(error) from error


def accepted_positions(rows: list[LogRow]) -> dict[tuple[str, str], int]:
    """Map (session_id, run_id) to the Position of the RunAccepted in this Write."""
    return {(row.session_id, row.run_id): row.position for row in rows if row.kind == "RunAccepted" and row.run_id}


def audit_page(rows: list[tuple[int, AuditEntry]], limit: int) -> tuple[list[AuditEntry], int]:
    """Return the entries of a page by ordinal, and the ordinal before which the next page begins; 0: it is the last."""
    return [entry for _, entry in rows], rows[-1][0] if rows and len(rows) == limit else 0


def ended_facts(write: Write) -> list[RunFacts]:
    """Return the facts of the Runs that this Write ends. A Run ends once, so it is counted once."""
    records = {(run.session_id, run.run_id): run for run in write.runs}
    ends = [(session_id, event) for session_id, event in write.events if isinstance(event, RunEnded)]
    return [facts_of(run, event) for session_id, event in ends if (run := records.get((session_id, event.run_id)))]


# Errors with the same text in all stores.


def unknown_workspace(workspace_id: str) -> WorkspaceNotFound:
    return WorkspaceNotFound(f"workspace {workspace_id} not found; create it first")


def unknown_message(message_id: str, session_id: str) -> MessageNotFound:
    return MessageNotFound(f"message {message_id} not found in session {session_id}; start without `after`")


def lane_moved_on(session_id: str, expected: int, version: int) -> VersionConflict:
    return VersionConflict(f"the Lane of session {session_id} is at version {version}, not {expected}; read it again")


def run_has_ended(run_id: str) -> VersionConflict:
    return VersionConflict(f"Run {run_id} has already ended; a Run ends once")


def ask_is_settled(ask_id: str) -> VersionConflict:
    return VersionConflict(f"Ask {ask_id} is already settled; the first answer counts")


def belongs_elsewhere(what: str, record_id: str) -> VersionConflict:
    return VersionConflict(f"{what} {record_id} already exists in another workspace or session; use another id")


def no_message_for_tail(message_id: str) -> VersionConflict:
    return VersionConflict(f"message {message_id} not found in this session; store it before its tails")


def no_original(workspace_id: str, version_id: str) -> StoreDamaged:
    return StoreDamaged(f"file version {version_id} of workspace {workspace_id} has no content", RESTORE_BACKUP)


def user_exists(name: str) -> UserExists:
    return UserExists(f"User {name} already exists. For a new token, revoke it first: kedge users revoke {name}")


def unknown_user(name: str) -> UserNotFound:
    return UserNotFound(f"User {name[:100]} not found. List them with: kedge users list")


def no_attachment(digest: str) -> VersionConflict:
    return VersionConflict(f"the content of attachment {digest} is not stored; store it with the records that name it")
