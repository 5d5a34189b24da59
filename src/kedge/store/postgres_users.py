"""The users and the audit entries in the PostgreSQL database."""

from __future__ import annotations

from kedge.core.audit import AuditEntry
from kedge.core.users import UserRecord
from kedge.store import codec
from kedge.store.postgres_connect import PostgresConnection
from kedge.store.postgres_database import PostgresDatabase
from kedge.store.postgres_records import add_audit


class PostgresUsers:
    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    async def all(self) -> list[UserRecord]:
        query = "SELECT name, role, token_digest, created_at FROM users ORDER BY name"
        rows = await self._database.read(lambda db: db.fetch(query))
        return [UserRecord(*row) for row in rows]

    async def add(self, user: UserRecord, entry: AuditEntry) -> None:
        async def add(db: PostgresConnection) -> None:
            added = await db.fetch(
                "INSERT INTO users (name, role, token_digest, created_at) VALUES ($1, $2, $3, $4)"
                " ON CONFLICT (name) DO NOTHING RETURNING 1",
                user.name,
                user.role,
                user.token_digest,
                user.created_at,
            )
            if not added:
                raise codec.user_exists(user.name)
            await add_audit(db, (entry,))

        codec.check_texts((user.name,))
        await self._database.change(add)

    async def remove(self, name: str, entry: AuditEntry) -> None:
        async def remove(db: PostgresConnection) -> None:
            if not await db.fetch("DELETE FROM users WHERE name = $1 RETURNING 1", name):
                raise codec.unknown_user(name)
            await add_audit(db, (entry,))

        codec.check_texts((name,))
        await self._database.change(remove)

    async def audit(
        self, limit: int, before: int = 0, author: str | None = None, workspace_id: str | None = None
    ) -> tuple[list[AuditEntry], int]:
        query = (
            "SELECT ordinal, entry FROM audit WHERE ($1::int8 = 0 OR ordinal < $1)"
            " AND ($2::text IS NULL OR author = $2) AND ($3::text IS NULL OR workspace_id = $3)"
            " ORDER BY ordinal DESC LIMIT $4"
        )
        values = (before, author, workspace_id, max(limit, 0))
        rows = await self._database.read(lambda db: db.fetch(query, *values), is_long=True)
        return codec.audit_page([(row[0], codec.decode_audit(row[1])) for row in rows], limit)
