"""File versions in the memory store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kedge.core.records import FileVersion
from kedge.store import codec
from kedge.store.base import Write

if TYPE_CHECKING:
    from kedge.store.memory import MemoryData


def check(data: MemoryData, write: Write) -> None:
    # A Write may name one id twice: the second time it is measured against the first.
    owners: dict[str, tuple[str, str]] = {}
    for version in write.files:
        codec.encode_file(version)
        owner, stored = (version.workspace_id, version.session_id), data.files.get(version.id, version)
        if owners.setdefault(version.id, (stored.workspace_id, stored.session_id)) != owner:
            raise codec.belongs_elsewhere("file version", version.id)


def put(data: MemoryData, write: Write) -> None:
    for version in write.files:
        data.files[version.id] = version
        if version.id in write.originals:
            data.originals.setdefault(version.id, write.originals[version.id])


def versions(data: MemoryData, workspace_id: str, session_id: str, run_id: str | None) -> list[FileVersion]:
    return [
        version
        for version in data.files.values()
        if (version.workspace_id, version.session_id) == (workspace_id, session_id) and run_id in (None, version.run_id)
    ]


def version(data: MemoryData, workspace_id: str, version_id: str) -> FileVersion | None:
    stored = data.files.get(version_id)
    return stored if stored and stored.workspace_id == workspace_id else None


def original(data: MemoryData, workspace_id: str, version_id: str) -> bytes:
    if version(data, workspace_id, version_id) is None or version_id not in data.originals:
        raise codec.no_original(workspace_id, version_id)
    return data.originals[version_id]
