"""What the stores keep, as bytes and back, and the log's hash chain. JSON only; equal values give equal bytes.

Every store goes through here, so that what one of them accepts, refuses or gives back, the others do too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from itertools import groupby
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from kedge.core.approvals import Ask, Grant
from kedge.core.events import EVENT_TYPES, Event, RetryReported
from kedge.core.records import FileVersion, Prompt, RunRecord, SessionRecord
from kedge.core.transcript import PART_TYPES, Message, Part, Tail, with_tails
from kedge.errors import RESTORE_BACKUP, StoreDamaged, StoreError, VersionConflict, WrongType
from kedge.store.base import LogEntry, Write

T = TypeVar("T")


class _Stored(msgspec.Struct):
    """An event in the log: its class name, and its fields."""

    t: str
    d: msgspec.Raw


class _StoredPart(msgspec.Struct):
    type: str
    data: msgspec.Raw


_encoder = msgspec.json.Encoder()
_event_decoder = msgspec.json.Decoder(_Stored)
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
_fields_decoder = msgspec.json.Decoder(dict[str, Any])

#: The prompt is kept apart: it may be megabytes, and stays the same while the rest of the Run changes with each Step.
_RUN_FIELDS = tuple(name for name in RunRecord.__struct_fields__ if name not in ("prompt", "position"))
#: The content is kept apart: it is bytes, may be megabytes, and stays the same when the change is undone.
_FILE_FIELDS = tuple(name for name in FileVersion.__struct_fields__ if name != "before")


def _encode(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise not_unicode(error) from error


def not_unicode(error: UnicodeEncodeError) -> WrongType:
    return WrongType(f"a text holds {error.object[error.start]!r}, half of a character; send well-formed Unicode")


def _decode(decoder: msgspec.json.Decoder[T], data: bytes, what: str) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"{what} cannot be read: {error}") from error


# --- The log ---------------------------------------------------------------------------------------------------------


class LogRow(Struct, frozen=True):
    """One entry of the log, as it is kept. `kind` and `run_id` repeat what the payload says, for the indexes."""

    position: int
    session_id: str
    kind: str
    run_id: str | None
    payload: bytes
    hash: bytes


def encode_event(event: Event) -> bytes:
    if isinstance(event, RetryReported):
        _check_finite(event.wait_s)
    return _encode({"t": type(event).__name__, "d": event})


def decode_event(data: bytes, what: str = "an event") -> Event:
    stored = _decode(_event_decoder, data, what)
    decoder = _event_decoders.get(stored.t)
    if decoder is None:
        raise StoreDamaged(f"{what} is of the unknown kind {stored.t!r}; it may be from a newer kedge: use that one")
    event: Event = _decode(decoder, stored.d, what)
    return event


def run_id_of(event: Event) -> str | None:
    return getattr(event, "run_id", None)


def first_hash(workspace_id: str, base: int) -> bytes:
    """What the first entry's hash builds upon: entries of one workspace do not fit into the log of another."""
    return hashlib.sha256(b"kedge log" + base.to_bytes(8, "big") + workspace_id.encode()).digest()


def chain_hash(previous: bytes, position: int, session_id: str, payload: bytes) -> bytes:
    name = session_id.encode()
    # The length keeps apart what would otherwise run together: session "a" with payload "bc", "ab" with "c".
    head = previous + position.to_bytes(8, "big") + len(name).to_bytes(4, "big") + name
    return hashlib.sha256(head + payload).digest()


def log_rows(write: Write, head: int, head_hash: bytes) -> list[LogRow]:
    """The entries of this Write, behind a log that ends in `head`."""
    rows: list[LogRow] = []
    for position, (session_id, event) in enumerate(write.events, head + 1):
        payload = encode_event(event)
        head_hash = chain_hash(head_hash, position, session_id, payload)
        rows.append(LogRow(position, session_id, type(event).__name__, run_id_of(event), payload, head_hash))
    return rows


def checked_entries(workspace_id: str, previous: bytes, start: int, rows: Iterable[LogRow]) -> list[LogEntry]:
    """The entries in these rows, which must follow each other from `start` and the hash `previous` on."""
    entries: list[LogEntry] = []
    for expected, row in enumerate(rows, start + 1):
        if row.position != expected:
            raise damaged(workspace_id, expected, "the entry is missing")
        if row.hash != chain_hash(previous, row.position, row.session_id, row.payload):
            raise damaged(workspace_id, expected, "the entry does not fit the one before it")
        event = decode_event(row.payload, f"the entry at {expected} of workspace {workspace_id}")
        if row.kind != type(event).__name__ or row.run_id != run_id_of(event):
            raise damaged(workspace_id, expected, "the entry's columns do not fit its content")
        entries.append(LogEntry(row.position, row.session_id, event))
        previous = row.hash
    return entries


def damaged(workspace_id: str, position: int, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"the log of workspace {workspace_id} is damaged at position {position}: {what}", RESTORE_BACKUP
    )


# --- Records ---------------------------------------------------------------------------------------------------------


def encode_session(session: SessionRecord) -> bytes:
    _check_finite(session.usage.cost_usd)
    return _encode(session)


def decode_session(data: bytes) -> SessionRecord:
    return _decode(_session_decoder, data, "a session's record")


def encode_run(run: RunRecord, position: int) -> tuple[bytes, bytes]:
    """(the record with this position but without its prompt, the prompt)."""
    _check_finite(run.usage.cost_usd, run.options.timeout_s, run.options.budget_usd)
    body = {name: getattr(run, name) for name in _RUN_FIELDS}
    body["position"] = position
    return _encode(body), _encode(run.prompt)


def decode_run(body: bytes, prompt: bytes) -> RunRecord:
    content = _decode(_fields_decoder, body, "a Run's record")
    content["prompt"] = _decode(_prompt_decoder, prompt, "a Run's prompt")
    try:
        return msgspec.convert(content, RunRecord)
    except msgspec.ValidationError as error:
        raise StoreDamaged(f"a Run's record cannot be read: {error}") from error


def encode_ask(ask: Ask) -> bytes:
    return _encode(ask)


def decode_ask(data: bytes) -> Ask:
    return _decode(_ask_decoder, data, "an Ask's record")


def encode_grant(grant: Grant) -> bytes:
    return _encode(grant)


def decode_grant(data: bytes) -> Grant:
    return _decode(_grant_decoder, data, "a grant's record")


def encode_file(version: FileVersion) -> bytes:
    """The record without the file's content."""
    return _encode({name: getattr(version, name) for name in _FILE_FIELDS})


def decode_file(body: bytes, before: bytes | None) -> FileVersion:
    content = _decode(_fields_decoder, body, "a file version's record")
    content["before"] = before
    try:
        return msgspec.convert(content, FileVersion)
    except msgspec.ValidationError as error:
        raise StoreDamaged(f"a file version's record cannot be read: {error}") from error


def _check_finite(*numbers: float | None) -> None:
    """JSON has no word for them: they would come back as null."""
    for number in numbers:
        if number is not None and not math.isfinite(number):
            raise WrongType(f"{number} is not a number that can be stored")


def encode_parts(parts: tuple[Part, ...]) -> bytes:
    return _encode([{"type": part.kind, "data": part} for part in parts])


def decode_parts(data: bytes, what: str = "a message's parts") -> tuple[Part, ...]:
    parts: list[Part] = []
    for stored in _decode(_parts_decoder, data, what):
        decoder = _part_decoders.get(stored.type)
        if decoder is None:
            raise StoreDamaged(f"{what}: the kind {stored.type!r} is unknown; it may be from a newer kedge")
        parts.append(_decode(decoder, stored.data, what))
    return tuple(parts)


def merged(message: Message, tails: list[Tail]) -> Message:
    """The message with its tails; at a cost of their length, however many there are."""
    joined: list[Tail] = []
    for (part, kind), group in groupby(tails, key=lambda tail: (tail.part, tail.kind)):
        text = "".join(tail.text for tail in group)
        joined.append(Tail(message.id, message.session_id, part, kind, text))
    return with_tails(message, joined) if joined else message


# --- Writes ----------------------------------------------------------------------------------------------------------


def check_write(write: Write) -> None:
    """Refuses what no store can keep, before anything is changed.

    A Write that holds a record of another workspace is a fault of ours, and must not reach that one's rows."""
    owners = [session.workspace_id for session in write.sessions]
    owners += (run.workspace_id for run in write.runs)
    owners += (ask.workspace_id for ask in write.asks)
    owners += (grant.workspace_id for grant in write.grants)
    owners += (version.workspace_id for version in write.files)
    for owner in owners:
        if owner != write.workspace_id:
            raise StoreError(f"a Write to workspace {write.workspace_id} holds a record of workspace {owner}")
    texts = [write.workspace_id, *write.deleted_sessions, *write.deleted_grants]
    texts += (session_id for session_id, _ in write.events)
    if write.lane is not None:
        texts.append(write.lane.lane.session_id)
    for message in write.messages:
        texts += (message.id, message.session_id, message.run_id, message.model, message.provider)
    for tail in write.tails:
        texts += (tail.message_id, tail.session_id, tail.text)
    check_texts(texts)


def check_texts(texts: Iterable[str]) -> None:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise not_unicode(error) from error


def accepted_positions(rows: list[LogRow]) -> dict[tuple[str, str], int]:
    """(session_id, run_id) -> Position of the RunAccepted in this Write."""
    return {(row.session_id, row.run_id): row.position for row in rows if row.kind == "RunAccepted" and row.run_id}


# The refusals, worded once for all stores.


def lane_moved_on(session_id: str, expected: int, version: int) -> VersionConflict:
    return VersionConflict(f"the Lane of session {session_id} is at version {version}, not {expected}; read it again")


def run_has_ended(run_id: str) -> VersionConflict:
    return VersionConflict(f"Run {run_id} has ended already; a Run ends once")


def ask_is_settled(ask_id: str) -> VersionConflict:
    return VersionConflict(f"Ask {ask_id} is settled already; the first answer stands")


def belongs_elsewhere(what: str, record_id: str) -> VersionConflict:
    return VersionConflict(f"{what} {record_id} exists already and belongs to another place; use another id")


def no_message_for_tail(message_id: str) -> VersionConflict:
    return VersionConflict(f"message {message_id} is not in this session, so nothing can be added to it; put it first")
