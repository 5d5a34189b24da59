"""The users and the audit entries in the SQLite database."""

from __future__ import annotations

from collections.abc import Callable

import apsw

from kedge.core.audit import AuditEntry
from kedge.core.users import UserRecord
from kedge.store import codec
from kedge.store.sqlite_threads import ReadThreads, WriteThread
from kedge.store.sqlite_write import add_audit

_SUBJECT = "the users"


class SqliteUsers:
    def __init__(self, threads: Callable[[], tuple[WriteThread, ReadThreads]]) -> None:
        self._threads = threads

    async def all(self) -> list[UserRecord]:
        _, reader = self._threads()
        return await reader.ask(_all, _SUBJECT)

    async def add(self, user: UserRecord, entry: AuditEntry) -> None:
        writer, _ = self._threads()
        await writer.ask(lambda db: _add(db, user, entry), _SUBJECT, durable=True)

    async def remove(self, name: str, entry: AuditEntry) -> None:
        writer, _ = self._threads()
        await writer.ask(lambda db: _remove(db, name, entry), _SUBJECT, durable=True)

    async def audit(
        self, limit: int, before: int = 0, author: str | None = None, workspace_id: str | None = None
    ) -> tuple[list[AuditEntry], int]:
        _, reader = self._threads()
        return await reader.ask(
            lambda db: _audit_page(db, limit, before, author, workspace_id), "the audit entries", is_long=True
        )


def _all(db: apsw.Connection) -> list[UserRecord]:
    rows = db.execute("SELECT name, role, token_digest, created_at FROM users ORDER BY name")
    return [UserRecord(*row) for row in rows]


def _add(db: apsw.Connection, user: UserRecord, entry: AuditEntry) -> None:
    codec.check_texts((user.name,))
    db.execute(
        "INSERT INTO users (name, role, token_digest, created_at) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO NOTHING",
        (user.name, user.role, user.token_digest, user.created_at),
    )
    if db.changes() == 0:
        raise codec.user_exists(user.name)
    add_audit(db, entry)


def _remove(db: apsw.Connection, name: str, entry: AuditEntry) -> None:
    codec.check_texts((name,))
    db.execute("DELETE FROM users WHERE name = ?", (name,))
    if db.changes() == 0:
        raise codec.unknown_user(name)
    add_audit(db, entry)


def _audit_page(
    db: apsw.Connection, limit: int, before: int, author: str | None, workspace_id: str | None
) -> tuple[list[AuditEntry], int]:
    rows = db.execute(
        "SELECT ordinal, entry FROM audit WHERE (?1 = 0 OR ordinal < ?1) AND (?2 IS NULL OR author = ?2)"
        " AND (?3 IS NULL OR workspace_id = ?3) ORDER BY ordinal DESC LIMIT ?4",
        (before, author, workspace_id, max(limit, 0)),
    )
    return codec.audit_page([(ordinal, codec.decode_audit(entry)) for ordinal, entry in rows], limit)
