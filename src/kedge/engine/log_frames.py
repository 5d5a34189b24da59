"""The log of a workspace as frames, each with the current version of its record."""

from __future__ import annotations

from typing import Protocol

from kedge.core.records import Record, RecordKind, Records, SessionRecord, SessionView
from kedge.engine.ports import Encoder
from kedge.store.base import LogEntry, Store


class SessionViews(Protocol):
    def view(self, session: SessionRecord) -> SessionView: ...


class LogFrames:
    def __init__(self, workspace_id: str, store: Store, encoder: Encoder, views: SessionViews) -> None:
        self.workspace_id = workspace_id
        self.store = store
        self._encoder = encoder
        self._views = views

    async def bounds(self) -> tuple[int, int]:
        """Return (floor, head), as the store does."""
        return await self.store.bounds(self.workspace_id)

    async def entries(self, after: int, limit: int) -> list[LogEntry]:
        return await self.store.read(self.workspace_id, after, limit)

    async def encode(self, entry: LogEntry) -> bytes:
        """Return an entry as a frame."""
        named = self._encoder.record_of(entry.event)
        record = await self._record(*named) if named else None
        records: Records = {named[0]: {named[1]: record}} if named and record else {}
        return self._encoder.encode(entry.position, entry.session_id, entry.event, records)

    async def view(self, session: SessionRecord) -> SessionView:
        return self._views.view(session)

    async def _record(self, kind: RecordKind, record_id: str) -> Record | None:
        match kind:
            case "session":
                session = await self.store.session(self.workspace_id, record_id)
                return await self.view(session) if session else None
            case "run":
                return await self.store.run(self.workspace_id, record_id)
            case "message":
                return await self.store.message(self.workspace_id, record_id)
            case "ask":
                return await self.store.ask(self.workspace_id, record_id)
