"""Which files the Runs of each session have changed since this screen is there, as the events tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kedge.wire import models as m

#: Changes remembered of one session, and sessions they are remembered of: more than a panel shows, and little memory.
#: Items, the oldest go first.
CHANGES_MAX = 500
SESSIONS_MAX = 100

FileChange = Literal["created", "updated", "deleted"]


@dataclass(slots=True)
class _Version:
    path: str
    change: FileChange
    #: Where it was told of: once when it was made, and once more when it was undone.
    positions: set[int] = field(default_factory=set)

    @property
    def stands(self) -> bool:
        return len(self.positions) == 1


class ChangedFiles:
    def __init__(self) -> None:
        #: By session and version. An event that comes twice, or in another order, changes nothing.
        self._versions: dict[str, dict[str, _Version]] = {}

    def tell(self, told: m.FileEvent, change: str, position: int) -> None:
        versions = self._versions.setdefault(told.session_id, {})
        version = versions.setdefault(told.version_id, _Version(told.path, "updated"))
        if position <= min(version.positions, default=position):
            version.change = "created" if change == "created" else "deleted" if change == "deleted" else "updated"
        version.positions.add(position)
        if len(versions) > CHANGES_MAX:
            del versions[min(versions, key=lambda known: min(versions[known].positions))]
        while len(self._versions) > SESSIONS_MAX:
            del self._versions[next(iter(self._versions))]

    def of(self, session_id: str) -> list[tuple[str, FileChange]]:
        """Paths, the one changed last first, each with what became of the file in all."""
        standing = [version for version in self._versions.get(session_id, {}).values() if version.stands]
        standing.sort(key=lambda version: min(version.positions))
        found: dict[str, FileChange] = {}
        for version in standing:
            before = found.pop(version.path, None)
            found[version.path] = "created" if before == "created" and version.change == "updated" else version.change
        return list(reversed(found.items()))
