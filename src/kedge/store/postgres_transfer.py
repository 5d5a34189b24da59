"""The rows of a PostgreSQL store, for copies and checks."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kedge.errors import StoreError
from kedge.store import migrations, postgres_migrations, postgres_records, postgres_rows
from kedge.store.postgres import PostgresStore
from kedge.store.postgres_connect import DatabaseUrl, PostgresConnection, connect, parse_url, store_error
from kedge.store.postgres_migrations import COPYING
from kedge.store.postgres_reclaim import message_visible, visible
from kedge.store.transfer import (
    COUNTS,
    SLICE_BYTES_MAX,
    SLICE_ROWS_MAX,
    TABLES,
    Row,
    TableQuery,
    content_of,
    message_of,
)

T = TypeVar("T")

_USES = (
    "SELECT 1 FROM attachment_uses AS uses WHERE uses.workspace_id = attachments.workspace_id"
    " AND uses.digest = attachments.digest"
)
_STORED = (
    "(EXISTS (SELECT 1 FROM attachments WHERE attachments.workspace_id = attachment_uses.workspace_id"
    " AND attachments.digest = attachment_uses.digest AND NOT is_unused))::int4"
)


def _known(table: str) -> str:
    return f"{table}.workspace_id IN (SELECT id FROM workspaces)"


_QUERIES = {
    "workspaces": TableQuery(("ordinal",), "workspaces"),
    "log": TableQuery(("workspace_id", "position"), "log", _known("log")),
    "sessions": TableQuery(("id",), "sessions", _known("sessions")),
    "lanes": TableQuery(("session_id",), "lanes", _known("lanes")),
    "attachments": TableQuery(
        ("workspace_id", "digest"),
        "attachments",
        f"{_known('attachments')} AND NOT is_unused"
        f" AND (NOT EXISTS ({_USES}) OR EXISTS ({_USES} AND {visible('uses')}))",
    ),
    "attachment_uses": TableQuery(
        ("workspace_id", "session_id", "digest"),
        "attachment_uses",
        f"{_known('attachment_uses')} AND {visible('attachment_uses')}",
        {"is_stored": _STORED},
    ),
    "runs": TableQuery(("workspace_id", "run_id"), "runs", f"{_known('runs')} AND {visible('runs')}"),
    "messages": TableQuery(
        ("ordinal",),
        "messages",
        f"{_known('messages')} AND {message_visible('messages')}",
        {"is_summary": "is_summary::int4"},
    ),
    "message_tails": TableQuery(
        ("message_ordinal", "number"),
        "message_tails JOIN messages ON ordinal = message_ordinal",
        f"{_known('messages')} AND {message_visible('messages')}",
        {"message_id": "id"},
    ),
    "asks": TableQuery(("ordinal",), "asks", f"{_known('asks')} AND {visible('asks')}"),
    "grants": TableQuery(("ordinal",), "grants", _known("grants")),
    "file_versions": TableQuery(
        ("ordinal",), "file_versions", f"{_known('file_versions')} AND {visible('file_versions')}"
    ),
    "run_facts": TableQuery(("ordinal",), "run_facts", _known("run_facts")),
    "users": TableQuery(("name",), "users"),
    "audit": TableQuery(("ordinal",), "audit"),
}

#: The columns that are not texts.
_TYPES = {
    **dict.fromkeys(("created_at", "updated_at", "accepted_at", "ended_at", "base", "floor", "head"), "int8"),
    **dict.fromkeys(("position", "version", "next_seq", "mark", "seq"), "int8"),
    **dict.fromkeys(("floor_hash", "head_hash", "path_hash", "hash"), "bytea"),
    **dict.fromkeys(("payload", "record", "prompt", "parts", "facts", "content", "entry"), "bytea"),
    "part": "int4",
    "is_summary": "bool",
}
#: For the size of a slice: the columns that can be large.
_LARGE = ("payload", "record", "prompt", "parts", "facts", "content", "text", "entry")


def _slice(table: str, after: Row) -> str:
    query = _QUERIES[table]
    names = [f"key_{number}" for number in range(len(query.key))]
    keys = [f"{column} AS {name}" for column, name in zip(query.key, names, strict=True)]
    columns = query.selected(table)
    values = [f"{column} AS value_{number}" for number, column in enumerate(columns)]
    large = [f"coalesce(octet_length({column}), 0)" for column in columns if column in _LARGE]
    size = " + ".join(large) or "0"
    where, order = query.where, ", ".join(names)
    if after:
        where += f" AND ({', '.join(query.key)}) > ({', '.join(f'${number + 1}' for number in range(len(after)))})"
    rows = (
        f"SELECT {', '.join([*keys, *values])}, {size} AS size FROM {query.source} WHERE {where}"
        f" ORDER BY {', '.join(query.key)} LIMIT {SLICE_ROWS_MAX}"
    )
    return f"{postgres_rows.bounded(rows, 'size', order, str(SLICE_BYTES_MAX))} ORDER BY {order}"


class PostgresRows:
    """One connection reads the tables, and holds the lock of the schema if the store is being copied."""

    def __init__(self, url: DatabaseUrl, store: PostgresStore, db: PostgresConnection) -> None:
        self.name, self.store = str(url), store
        self._url, self._db = url, db

    async def rows(self, table: str, after: Row) -> list[tuple[Row, Row]]:
        key_size, size = len(_QUERIES[table].key), len(TABLES[table])
        rows = await self._run(self._db.fetch(_slice(table, after), *after))
        return [(tuple(row[:key_size]), tuple(row[key_size : key_size + size])) for row in map(tuple, rows)]

    async def close(self) -> None:
        await self.store.close()
        await self._db.close()

    async def _run(self, work: Awaitable[T]) -> T:
        return await _converted(self._url, work)


async def open_rows(location: str, *, locked: bool) -> PostgresRows:
    """Open an existing store. `locked`: StoreError if a server uses it, and none can open it until `close`."""
    url = parse_url(location)

    async def prepare(db: PostgresConnection) -> None:
        stored = await postgres_migrations.stored_state(db, url)
        if stored is None:
            raise StoreError(f"the schema {url.schema!r} of {url} has no store; correct the URL")
        if stored[1] == COPYING:
            raise postgres_migrations.unfinished_copy(url)
        _check_version(url, stored[0])
        if locked:
            await _take_over(db, url)

    store, db = await _open(location, url, prepare)
    return PostgresRows(url, store, db)


# --- The target of a copy --------------------------------------------------------------------------------------------


class PostgresTarget(PostgresRows):
    """The schema belongs to no cluster until the copy is complete, so that every server refuses it."""

    def __init__(self, url: DatabaseUrl, store: PostgresStore, db: PostgresConnection, cluster_id: str) -> None:
        super().__init__(url, store, db)
        self._cluster_id = cluster_id
        self._is_published = False

    async def add(self, table: str, rows: list[Row]) -> None:
        await self._run(self._add(table, rows))

    async def _add(self, table: str, rows: list[Row]) -> None:
        async with self._db.transaction():
            await self._db.execute("SET LOCAL synchronous_commit = off")
            await _insert(self._db, table, rows)

    async def publish(self) -> None:
        # A durable commit, which writes the others, too.
        await self._run(self._db.execute("UPDATE kedge_schema SET cluster_id = $1", self._cluster_id))
        self._is_published = True

    async def close(self) -> None:
        try:
            if not self._is_published:
                await self._run(_empty(self._db, self._cluster_id))
        finally:
            await super().close()


async def open_target(location: str) -> PostgresTarget:
    """Open an empty store; a schema that does not exist is created."""
    url = parse_url(location)
    cluster_id = ""

    async def prepare(db: PostgresConnection) -> None:
        nonlocal cluster_id
        await _take_over(db, url)
        version, cluster_id = await postgres_migrations.stored_state(db, url) or (0, "")
        if cluster_id == COPYING:
            _check_version(url, version)
            cluster_id = ""
        else:
            await postgres_migrations.migrate(db, url, migrations.shipped("postgres_sql"), cluster_id)
            if content := content_of(await db.fetchrow(COUNTS)):
                raise StoreError(
                    f"the schema {url.schema!r} of {url} is not empty: it has {content}; "
                    "add ?schema=NAME with the name of a new one to its URL"
                )
        await _empty(db, COPYING)

    store, db = await _open(location, url, prepare)
    return PostgresTarget(url, store, db, cluster_id)


async def _open(
    location: str, url: DatabaseUrl, prepare: Callable[[PostgresConnection], Awaitable[None]]
) -> tuple[PostgresStore, PostgresConnection]:
    db = await _converted(url, connect(url))
    try:
        await _converted(url, prepare(db))
        store = PostgresStore(location, read_only=True)
        await store.open()
    except BaseException:
        await db.close()
        raise
    return store, db


async def _converted(url: DatabaseUrl, work: Awaitable[T]) -> T:
    try:
        return await work
    except Exception as error:
        raise store_error(error, url) from error


async def _take_over(db: PostgresConnection, url: DatabaseUrl) -> None:
    """Lock the schema. A node that has lost its connections, and not yet its lease, uses it, too."""
    is_free = await postgres_migrations.take_over(db, url)
    names: list[str] = []
    if await db.fetchval("SELECT to_regclass('nodes') IS NOT NULL"):
        live = await db.fetch("SELECT name FROM nodes WHERE expires_at > clock_timestamp() ORDER BY name")
        names = [row[0] for row in live]
    if not is_free or names:
        users = f"node {', '.join(names)}" if names else "a server or another `kedge store copy`"
        raise StoreError(f"the schema {url.schema!r} of {url} is in use by {users}; stop all servers and copy again")


def _check_version(url: DatabaseUrl, version: int) -> None:
    latest = migrations.shipped("postgres_sql")[-1].number
    if version > latest:
        raise postgres_migrations.newer(url, version, latest)
    if version < latest:
        raise StoreError(
            f"the schema {url.schema!r} of {url} was written by an older kedge (schema {version}, current: {latest}); "
            "start and stop a server of this version, which updates it"
        )


async def _empty(db: PostgresConnection, cluster_id: str) -> None:
    """Remove all rows but those of nodes. A schema without workspaces may have some that are being removed."""
    tables = (*TABLES, "message_tokens", "removed_workspaces", "hidden_sessions", "cut_messages")
    async with db.transaction():
        await db.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY")
        await db.execute("UPDATE kedge_schema SET cluster_id = $1", cluster_id)


# --- Insertion -------------------------------------------------------------------------------------------------------


async def _insert(db: PostgresConnection, table: str, rows: list[Row]) -> None:
    columns = TABLES[table]
    match table:
        case "workspaces":
            with_hash = [(*row, hashlib.sha256(row[1].encode()).digest()) for row in rows]
            await _insert_rows(db, table, (*columns, "path_hash"), with_hash)
        case "attachment_uses":
            await _insert_rows(db, table, columns[:-1], [row[:-1] for row in rows])
        case "messages":
            await _insert_rows(db, table, columns, [(*row[:-1], bool(row[-1])) for row in rows])
            await _index(db, rows)
        case "message_tails":
            await db.execute(
                "INSERT INTO message_tails (message_ordinal, part, kind, text)"
                " SELECT ordinal, new.part, new.kind, new.text"
                f" FROM {_new(columns)} JOIN messages USING (workspace_id, session_id)"
                " WHERE messages.id = new.message_id ORDER BY number",
                *zip(*rows, strict=True),
            )
        case _:
            await _insert_rows(db, table, columns, rows)


async def _insert_rows(db: PostgresConnection, table: str, columns: tuple[str, ...], rows: list[Row]) -> None:
    names = ", ".join(columns)
    values: list[Any] = list(zip(*rows, strict=True))
    await db.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM {_new(columns)} ORDER BY number", *values)


def _new(columns: tuple[str, ...]) -> str:
    arrays = ", ".join(f"${number}::{_TYPES.get(name, 'text')}[]" for number, name in enumerate(columns, 1))
    return f"unnest({arrays}) WITH ORDINALITY AS new ({', '.join(columns)}, number)"


async def _index(db: PostgresConnection, rows: list[Row]) -> None:
    """Add the messages to the search index."""
    texts = [(row[0], row[1], postgres_records.indexed_text(row[0], message_of(row))) for row in rows]
    indexed = [text for text in texts if text[2]]
    if indexed:
        await db.execute(
            "INSERT INTO message_tokens (message_ordinal, tokens)"
            " SELECT ordinal, array_to_tsvector(string_to_array(new.tokens, ' '))"
            " FROM unnest($1::text[], $2::text[], $3::text[]) AS new (workspace_id, id, tokens)"
            " JOIN messages USING (workspace_id, id)",
            *zip(*indexed, strict=True),
        )
