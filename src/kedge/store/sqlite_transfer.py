"""The rows of a SQLite store, for copies and checks."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import apsw

from kedge.disk_space import full_disk
from kedge.errors import StoreError, StoreUnavailable
from kedge.store import codec, sqlite_connect, sqlite_write
from kedge.store.data_directory import DataDirectory
from kedge.store.sqlite import SqliteStore
from kedge.store.sqlite_connect import DATABASE, HEAD_FILE
from kedge.store.sqlite_reclaim import MESSAGE_VISIBLE, VISIBLE
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

#: The directory of a copy that is not complete, inside its data directory. No server opens it.
_UNFINISHED = "unfinished-copy"

_KNOWN = "workspace_id IN (SELECT id FROM workspaces)"
_USES = (
    "SELECT 1 FROM attachment_uses AS uses WHERE uses.workspace_id = attachments.workspace_id"
    " AND uses.digest = attachments.digest"
)
_HIDDEN_USE = "(uses.workspace_id, uses.session_id) IN (SELECT workspace_id, session_id FROM hidden_sessions)"

_QUERIES = {
    "workspaces": TableQuery(("rowid",), "workspaces"),
    "log": TableQuery(("workspace_id", "position"), "log", _KNOWN),
    "sessions": TableQuery(("id",), "sessions", _KNOWN),
    "lanes": TableQuery(("session_id",), "lanes", _KNOWN),
    "attachments": TableQuery(
        ("workspace_id", "digest"),
        "attachments LEFT JOIN attachment_contents USING (ordinal)",
        f"{_KNOWN} AND (NOT EXISTS ({_USES}) OR EXISTS ({_USES} AND NOT {_HIDDEN_USE}))",
    ),
    "attachment_uses": TableQuery(
        ("workspace_id", "session_id", "digest"),
        "attachment_uses",
        f"{_KNOWN} AND {VISIBLE}",
        {
            "is_stored": "EXISTS (SELECT 1 FROM attachments AS stored WHERE stored.workspace_id ="
            " attachment_uses.workspace_id AND stored.digest = attachment_uses.digest)"
        },
    ),
    "runs": TableQuery(
        ("runs.workspace_id", "runs.run_id"),
        "runs LEFT JOIN prompts USING (workspace_id, run_id)",
        f"{_KNOWN} AND {VISIBLE}",
    ),
    "messages": TableQuery(("ordinal",), "messages", f"{_KNOWN} AND {MESSAGE_VISIBLE}"),
    "message_tails": TableQuery(
        ("message_ordinal", "number"),
        "message_tails JOIN messages ON ordinal = message_ordinal",
        f"{_KNOWN} AND {MESSAGE_VISIBLE}",
        {"message_id": "id"},
    ),
    "asks": TableQuery(("ordinal",), "asks", f"{_KNOWN} AND {VISIBLE}"),
    "grants": TableQuery(("ordinal",), "grants", _KNOWN),
    "file_versions": TableQuery(
        ("ordinal",), "file_versions LEFT JOIN file_contents ON version_ordinal = ordinal", f"{_KNOWN} AND {VISIBLE}"
    ),
    "run_facts": TableQuery(("ordinal",), "run_facts", _KNOWN),
    "users": TableQuery(("name",), "users"),
    "audit": TableQuery(("ordinal",), "audit"),
}


def _slice(db: apsw.Connection, table: str, after: Row) -> list[tuple[Row, Row]]:
    query = _QUERIES[table]
    keys, where = ", ".join(query.key), query.where
    if after:
        where += f" AND ({keys}) > ({', '.join('?' * len(after))})"
    rows: list[tuple[Row, Row]] = []
    size_bytes = 0
    for values in db.execute(
        f"SELECT {keys}, {', '.join(query.selected(table))} FROM {query.source} WHERE {where} ORDER BY {keys}"
        f" LIMIT {SLICE_ROWS_MAX}",
        after,
    ):
        row = values[len(query.key) :]
        rows.append((values[: len(query.key)], row))
        size_bytes += sum(len(value) for value in row if isinstance(value, bytes | str))
        if size_bytes >= SLICE_BYTES_MAX:
            break
    return rows


class SqliteRows:
    def __init__(self, name: str, store: SqliteStore) -> None:
        self.name, self.store = name, store

    async def rows(self, table: str, after: Row) -> list[tuple[Row, Row]]:
        _, reader = self.store.threads()
        return await reader.ask(lambda db: _slice(db, table, after), f"the table {table}", is_long=True)

    async def close(self) -> None:
        await self.store.close()


async def open_rows(directory: Path) -> SqliteRows:
    """Open an existing store. Its data directory is locked: StoreLocked if a server uses it."""
    if not (directory / DATABASE).is_file():
        raise StoreError(f"the directory {directory} has no store: {DATABASE} not found; name a data directory")
    store = SqliteStore(directory)
    await store.open()
    return SqliteRows(str(directory), store)


# --- The target of a copy --------------------------------------------------------------------------------------------


class SqliteTarget(SqliteRows):
    """The copy is made in a directory of its own. Its files are moved when it is complete, under the lock of the data
    directory: a server finds the whole copy, or nothing."""

    def __init__(self, directory: DataDirectory, store: SqliteStore) -> None:
        super().__init__(str(directory.path), store)
        self._directory = directory

    async def add(self, table: str, rows: list[Row]) -> None:
        writer, _ = self.store.threads()
        await writer.ask(lambda db: _insert(db, table, rows), f"the table {table}", is_long=True)

    async def publish(self) -> None:
        writer, _ = self.store.threads()
        # A durable commit: it syncs the others, too, and the head file notes it.
        seal = "UPDATE transactions SET committed = committed"
        await writer.ask(lambda db: db.execute(seal).fetchall(), durable=True)
        await self.store.close()
        unfinished = _unfinished(self._directory)
        if (unfinished / f"{DATABASE}-wal").exists():
            raise StoreUnavailable(f"cannot complete {unfinished / DATABASE}; check the disk and copy again")
        try:
            # First the head file of the empty store: the new one belongs to the new database only.
            for name in (HEAD_FILE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
                (self._directory.path / name).unlink(missing_ok=True)
            for name in (DATABASE, HEAD_FILE):
                os.rename(unfinished / name, self._directory.path / name)
            self._directory.sync(self._directory.path)
        except OSError as error:
            raise _unusable(self._directory.path, error) from error

    async def close(self) -> None:
        await self.store.close()
        shutil.rmtree(_unfinished(self._directory), ignore_errors=True)
        self._directory.release()


async def open_target(path: Path) -> SqliteTarget:
    """Open an empty store; a directory that does not exist is created. StoreLocked if a server uses it."""
    directory = DataDirectory(path)
    directory.claim()
    try:
        if (path / DATABASE).exists():
            _check_empty(directory)
        # What an interrupted copy has left.
        unfinished = _unfinished(directory)
        if unfinished.exists():
            shutil.rmtree(unfinished)
        store = SqliteStore(unfinished)
        await store.open()
    except BaseException as error:
        directory.release()
        if isinstance(error, OSError):
            raise _unusable(path, error) from error
        raise
    return SqliteTarget(directory, store)


def _check_empty(directory: DataDirectory) -> None:
    with contextlib.ExitStack() as undo:
        db, _, _ = sqlite_connect.connect(directory, None, undo)
        content = content_of(db.execute(COUNTS).fetchone())
    if content:
        raise StoreError(f"the store in {directory.path} is not empty: it has {content}; copy to a new directory")


def _unfinished(directory: DataDirectory) -> Path:
    return directory.path / _UNFINISHED


def _unusable(path: Path, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        full_disk(path, error) or f"cannot use {error.filename or path} ({error.strerror}); check the disk, copy again"
    )


# --- Insertion -------------------------------------------------------------------------------------------------------


def _insert(db: apsw.Connection, table: str, rows: list[Row]) -> None:
    match table:
        case "attachments":
            for workspace_id, digest, data in rows:
                db.execute("INSERT INTO attachment_contents (content) VALUES (?)", (data,))
                db.execute("INSERT INTO attachments VALUES (?, ?, ?)", (workspace_id, digest, db.last_insert_rowid()))
        case "attachment_uses":
            db.executemany("INSERT INTO attachment_uses VALUES (?, ?, ?)", [row[:3] for row in rows])
        case "runs":
            db.executemany(_insertion("runs", TABLES["runs"][:-1]), [row[:-1] for row in rows])
            prompts = [(row[0], row[1], row[-1]) for row in rows]
            db.executemany("INSERT INTO prompts (workspace_id, run_id, prompt) VALUES (?, ?, ?)", prompts)
        case "messages":
            statement = _insertion(table, TABLES[table])
            for row in rows:
                db.execute(statement, row)
                if text := sqlite_write.search_text(message_of(row)):
                    indexed = (db.last_insert_rowid(), text)
                    db.execute("INSERT INTO message_tokens (rowid, tokens) VALUES (?, ?)", indexed)
        case "message_tails":
            db.executemany(
                "INSERT INTO message_tails (message_ordinal, number, part, kind, text) SELECT ordinal, (SELECT"
                " coalesce(max(number), 0) + 1 FROM message_tails WHERE message_ordinal = ordinal), ?4, ?5, ?6"
                " FROM messages WHERE workspace_id = ?1 AND id = ?2 AND +session_id = ?3",
                rows,
            )
        case "asks":
            asks = [(*row, codec.decode_ask(row[4]).asked_at) for row in rows]
            db.executemany(_insertion(table, (*TABLES[table], "asked_at")), asks)
        case "file_versions":
            statement = _insertion(table, TABLES[table][:-1])
            for row in rows:
                db.execute(statement, row[:-1])
                if row[-1] is not None:
                    content = (db.last_insert_rowid(), row[-1])
                    db.execute("INSERT INTO file_contents (version_ordinal, content) VALUES (?, ?)", content)
        case _:
            db.executemany(_insertion(table, TABLES[table]), rows)


def _insertion(table: str, columns: tuple[str, ...]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
