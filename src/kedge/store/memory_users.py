"""The users and the audit entries of the memory store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kedge.core import audit
from kedge.core.audit import AuditEntry
from kedge.core.users import UserRecord
from kedge.store import codec

if TYPE_CHECKING:
    from kedge.store.memory import MemoryData


def add_audit(data: MemoryData, entries: Iterable[AuditEntry]) -> None:
    """Add audit entries, and remove the oldest ones beyond the limit."""
    for entry in entries:
        ordinal = next(reversed(data.audit), 0) + 1
        data.audit[ordinal] = entry
        while (oldest := next(iter(data.audit))) <= ordinal - audit.AUDIT_MAX:
            del data.audit[oldest]


class MemoryUsers:
    def __init__(self, data: Callable[[], MemoryData]) -> None:
        self._data = data

    async def all(self) -> list[UserRecord]:
        users = self._data().users
        result = [users[name] for name in sorted(users)]
        await asyncio.sleep(0)
        return result

    async def add(self, user: UserRecord, entry: AuditEntry) -> None:
        data = self._data()
        codec.check_texts((user.name, entry.author, entry.detail))
        if user.name in data.users:
            raise codec.user_exists(user.name)
        data.users[user.name] = user
        add_audit(data, (entry,))
        await asyncio.sleep(0)

    async def remove(self, name: str, entry: AuditEntry) -> None:
        data = self._data()
        codec.check_texts((name, entry.author, entry.detail))
        if data.users.pop(name, None) is None:
            raise codec.unknown_user(name)
        add_audit(data, (entry,))
        await asyncio.sleep(0)

    async def audit(
        self, limit: int, before: int = 0, author: str | None = None, workspace_id: str | None = None
    ) -> tuple[list[AuditEntry], int]:
        rows = [
            (ordinal, entry)
            for ordinal, entry in reversed(self._data().audit.items())
            if (not before or ordinal < before)
            and author in (None, entry.author)
            and workspace_id in (None, entry.workspace_id)
        ][: max(limit, 0)]
        await asyncio.sleep(0)
        return codec.audit_page(rows, limit)
