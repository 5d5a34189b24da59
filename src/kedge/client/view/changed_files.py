"""The files that the Runs of each session changed since the client connected, from file events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kedge.wire import models as m

#: Changes kept for a session, and sessions with changes: more than a panel shows, at little memory. Items, the oldest
#: are dropped first.
CHANGES_MAX = 500
SESSIONS_MAX = 100

FileChange = Literal["created", "updated", "deleted"]


@dataclass(slots=True)
class _Version:
    path: str
    change: FileChange
    #: Positions of its events: one for the change, and one more if the change was undone.
    positions: set[int] = field(default_factory=set)

    @property
    def is_in_effect(self) -> bool:
        return len(self.positions) == 1


class ChangedFiles:
    def __init__(self) -> None:
        #: By session and version: repeated or reordered events have no effect.
        self._versions: dict[str, dict[str, _Version]] = {}

    def apply(self, event: m.FileEvent, change: str, position: int) -> None:
        versions = self._versions.setdefault(event.session_id, {})
        version = versions.setdefault(event.version_id, _Version(event.path, "updated"))
        if position <= min(version.positions, default=position):
            version.change = "created" if change == "created" else "deleted" if change == "deleted" else "updated"
        version.positions.add(position)
        if len(versions) > CHANGES_MAX:
            del versions[min(versions, key=lambda version_id: min(versions[version_id].positions))]
        while len(self._versions) > SESSIONS_MAX:
            del self._versions[next(iter(self._versions))]

    def of(self, session_id: str) -> list[tuple[str, FileChange]]:
        """Return paths, the last changed first, each with the overall change of the file."""
        versions = [version for version in self._versions.get(session_id, {}).values() if version.is_in_effect]
        versions.sort(key=lambda version: min(version.positions))
        files: dict[str, FileChange] = {}
        for version in versions:
            previous = files.pop(version.path, None)
            is_still_new = previous == "created" and version.change == "updated"
            files[version.path] = "created" if is_still_new else version.change
        return list(reversed(files.items()))
