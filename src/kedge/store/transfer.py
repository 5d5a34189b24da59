"""Copies of whole stores, row by row, between databases of both kinds.

A copy has the same Positions and hashes as its original: a client resumes its stream on the copy. What no read returns
(rows of deleted sessions, cut messages, copies of messages that are not complete, removed workspaces) is left out. The
search index is made again from the messages.

`TABLES` are the tables of a copy. Their columns are the same for both databases, and their order is: by number of
insertion, or by key, byte by byte. So two stores have the same content if all tables have the same digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from kedge.core.transcript import Message
from kedge.core.users import UserRecord
from kedge.errors import RESTORE_BACKUP, StoreDamaged, StoreError
from kedge.store import codec
from kedge.store.base import Store

#: A slice of rows: as much as is held in memory. The last row may be larger: an attachment, or a message. Items, bytes.
SLICE_ROWS_MAX = 1_000
SLICE_BYTES_MAX = 1024 * 1024

Row = tuple[Any, ...]

#: The columns of each table. In this order, a row follows those that it refers to.
TABLES: dict[str, tuple[str, ...]] = {
    "workspaces": ("id", "path", "created_at", "base", "floor", "floor_hash", "head", "head_hash"),
    "log": ("workspace_id", "position", "session_id", "kind", "run_id", "payload", "hash"),
    "sessions": ("workspace_id", "id", "updated_at", "record"),
    "lanes": ("workspace_id", "session_id", "version", "next_seq", "mark"),
    "attachments": ("workspace_id", "digest", "content"),
    # `is_stored`: 1 if the content is stored.
    "attachment_uses": ("workspace_id", "session_id", "digest", "is_stored"),
    "runs": ("workspace_id", "run_id", "session_id", "seq", "state", "accepted_at", "ended_at", "record", "prompt"),
    "messages": (
        "workspace_id",
        "id",
        "session_id",
        "role",
        "parts",
        "created_at",
        "updated_at",
        "run_id",
        "model",
        "provider",
        "is_summary",
    ),
    "message_tails": ("workspace_id", "message_id", "session_id", "part", "kind", "text"),
    "asks": ("workspace_id", "id", "session_id", "state", "record"),
    "grants": ("workspace_id", "id", "session_id", "record"),
    "file_versions": ("workspace_id", "id", "session_id", "run_id", "record", "content"),
    "run_facts": ("workspace_id", "ended_at", "facts"),
    "users": ("name", "role", "token_digest", "created_at"),
    "audit": ("workspace_id", "author", "entry"),
}


#: Counts the workspaces and the users: the target of a copy must have none.
COUNTS = "SELECT (SELECT count(*) FROM workspaces), (SELECT count(*) FROM users)"


class TableQuery(Struct, frozen=True):
    """The rows of a table in one database."""

    #: The columns by which they are ordered.
    key: tuple[str, ...]
    #: What follows FROM.
    source: str
    where: str = "TRUE"
    #: Expressions for columns of other names.
    columns: dict[str, str] = {}

    def selected(self, table: str) -> list[str]:
        return [self.columns.get(name, name) for name in TABLES[table]]


class StoreRows(Protocol):
    """The rows of an open store. No other process uses it, except for a check of a database."""

    @property
    def name(self) -> str: ...

    @property
    def store(self) -> Store:
        """The same store, for reads."""
        ...

    async def rows(self, table: str, after: Row) -> list[tuple[Row, Row]]:
        """Return one slice of the rows after this key, each with its key; empty: none is left. `()`: from the first."""
        ...

    async def close(self) -> None: ...


class CopyTarget(StoreRows, Protocol):
    """A store that is empty, and that no server can open before `publish` has returned.

    `close` without `publish` removes everything."""

    async def add(self, table: str, rows: list[Row]) -> None: ...

    async def publish(self) -> None:
        """Make the rows durable, and let servers open the store."""


class Tally(Struct):
    """The number, size and digest of rows."""

    rows: int = 0
    size_bytes: int = 0
    digest: str = ""


class TransferProgress(Struct, frozen=True):
    #: "copy", "check" or "compare".
    step: str
    table: str
    #: Of all tables so far.
    rows: int
    size_bytes: int


Report = Callable[[TransferProgress], None]


class CopyReport(Struct, frozen=True):
    source: str
    target: str
    tables: dict[str, Tally]
    #: Checked entries of the logs.
    entries: int


async def slices(store: StoreRows, table: str) -> AsyncIterator[list[Row]]:
    after: Row = ()
    while part := await store.rows(table, after):
        after = part[-1][0]
        yield [row for _, row in part]


class Counter:
    """Counts and digests the rows of each table, and reports the progress."""

    def __init__(self, step: str, report: Report) -> None:
        self.tables: dict[str, Tally] = {}
        self._step, self._report = step, report
        self._rows = self._size_bytes = 0

    def begin(self, table: str) -> None:
        self._tally = self.tables[table] = Tally()
        self._digest = hashlib.sha256()
        self._table = table

    def add(self, rows: list[Row]) -> None:
        for row in rows:
            data = msgspec.msgpack.encode(row)
            self._digest.update(data)
            self._tally.rows += 1
            self._tally.size_bytes += len(data)
            self._rows += 1
            self._size_bytes += len(data)
        self._report(TransferProgress(self._step, self._table, self._rows, self._size_bytes))

    def end(self) -> None:
        self._tally.digest = self._digest.hexdigest()


async def copy_store(source: StoreRows, target: CopyTarget, report: Report) -> CopyReport:
    """Copy everything, compare the two, and publish the copy. StoreDamaged if a row of the source is damaged."""
    copied = Counter("copy", report)
    for table in TABLES:
        copied.begin(table)
        async for rows in slices(source, table):
            for row in rows:
                check_row(table, row)
            await target.add(table, rows)
            copied.add(rows)
        copied.end()
    compared = Counter("compare", report)
    for table in TABLES:
        compared.begin(table)
        async for rows in slices(target, table):
            compared.add(rows)
        compared.end()
        if compared.tables[table] != copied.tables[table]:
            raise StoreError(
                f"the copy in {target.name} differs from {source.name} in the table {table}: it has "
                f"{compared.tables[table].rows} rows, expected {copied.tables[table].rows}; copy again"
            )
    entries = 0
    for workspace in await target.store.workspaces():
        entries += await target.store.verify(workspace.id)
    if entries != copied.tables["log"].rows:
        raise StoreDamaged(
            f"the logs in {source.name} have {copied.tables['log'].rows} entries, expected {entries}", RESTORE_BACKUP
        )
    await target.publish()
    return CopyReport(source.name, target.name, copied.tables, entries)


def content_of(counts: Sequence[int] | None) -> str:
    """Return the content of a store for an error, from the row of COUNTS; empty: none."""
    return " and ".join(
        f"{count} {kind}" for count, kind in zip(counts or (), ("workspaces", "users"), strict=False) if count
    )


# --- Rows ------------------------------------------------------------------------------------------------------------


def message_of(row: Row) -> Message:
    """Return the message of a row, without its tails."""
    _, message_id, session_id, role, parts, *rest = row
    rest[-1] = bool(rest[-1])
    return Message(message_id, session_id, role, codec.decode_parts(parts, f"message {message_id}"), *rest)


def check_row(table: str, row: Row) -> None:
    """Raise StoreDamaged if the row cannot be decoded, or if its columns do not match its record.

    The entries of the log are checked by `Store.verify`."""
    match table:
        case "sessions":
            session = codec.decode_session(row[3])
            _check("session", row, (session.workspace_id, session.id, session.updated_at))
        case "attachments":
            codec.check_attachment(*row)
        case "attachment_uses":
            if not row[3]:
                codec.check_attachment(row[0], row[2], None)
        case "runs":
            try:
                run = codec.decode_run(row[7], row[8] or b"")
            except StoreDamaged as error:
                raise StoreDamaged(f"Run {row[1]}: {error.damage}", RESTORE_BACKUP) from error
            ids = (run.workspace_id, run.run_id, run.session_id, run.seq, run.state, run.accepted_at, run.ended_at)
            _check("Run", row, ids)
        case "messages":
            message_of(row)
        case "asks":
            ask = codec.decode_ask(row[4])
            _check("Ask", row, (ask.workspace_id, ask.id, ask.session_id, ask.state))
        case "grants":
            grant = codec.decode_grant(row[3])
            _check("grant", row, (grant.workspace_id, grant.id, grant.session_id))
        case "file_versions":
            version = codec.decode_file(row[4])
            _check("file version", row, (version.workspace_id, version.id, version.session_id, version.run_id))
        case "run_facts":
            facts = codec.decode_facts(row[2])
            _check("facts of Run", (*row[:2], facts.run_id), (facts.workspace_id, facts.ended_at, facts.run_id))
        case "users":
            try:
                msgspec.convert(dict(zip(TABLES["users"], row, strict=True)), UserRecord)
            except msgspec.ValidationError as error:
                raise StoreDamaged(f"cannot read user {row[0]}: {error}", RESTORE_BACKUP) from error
        case "audit":
            entry = codec.decode_audit(row[2])
            _check("an audit entry of", row, (entry.workspace_id, entry.author))
        case _:
            pass


def _check(what: str, row: Row, expected: Row) -> None:
    if row[: len(expected)] != expected:
        raise StoreDamaged(f"the columns of {what} {row[1]} do not match its record", RESTORE_BACKUP)
