"""The files that the Runs of each session changed since the client connected, from file events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kedge.wire import models as m

#: Changes kept for a session, and sessions with changes: more than a panel shows, at little memory. Items, the oldest
#: are dropped first.
CHANGES_MAX = 500
SESSIONS_MAX = 100

FileChange = Literal["created", "updated", "deleted"]


@dataclass(slots=True)
class _Version:
    """The changes of a file by one Run, from its first and its last event."""

    path: str
    first: tuple[int, FileChange]
    last: tuple[int, FileChange]
    #: The last event is that of an undo.
    is_undone: bool

    @property
    def change(self) -> FileChange:
        return _combined(self.first[1], self.last[1])


class ChangedFiles:
    def __init__(self) -> None:
        #: By session and version: repeated or reordered events have no effect.
        self._versions: dict[str, dict[str, _Version]] = {}

    def apply(self, event: m.FileEvent, change: str, position: int) -> None:
        versions = self._versions.setdefault(event.session_id, {})
        known: FileChange = "created" if change == "created" else "deleted" if change == "deleted" else "updated"
        this = (position, known)
        version = versions.setdefault(event.version_id, _Version(event.path, this, this, event.undone))
        version.first = min(version.first, this)
        if this > version.last:
            version.last, version.is_undone = this, event.undone
        if len(versions) > CHANGES_MAX:
            del versions[min(versions, key=lambda version_id: versions[version_id].last)]
        while len(self._versions) > SESSIONS_MAX:
            del self._versions[next(iter(self._versions))]

    def of(self, session_id: str) -> list[tuple[str, FileChange]]:
        """Return paths, the last changed first, each with the overall change of the file."""
        versions = [version for version in self._versions.get(session_id, {}).values() if not version.is_undone]
        versions.sort(key=lambda version: version.last)
        files: dict[str, FileChange] = {}
        for version in versions:
            files[version.path] = _combined(files.pop(version.path, None), version.change)
        return list(reversed(files.items()))


def _combined(first: FileChange | None, last: FileChange) -> FileChange:
    return "created" if first == "created" and last == "updated" else last
