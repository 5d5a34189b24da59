"""Revert the file changes of Runs from the stored versions. Blocking: the engine calls it in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from kedge.core.records import FileVersion
from kedge.tools import disk
from kedge.tools.known_files import digest
from kedge.tools.tool_failed import ToolFailed


class Revert(Struct, frozen=True):
    """The changes of one file that are to be taken back: at least one version, in the order of the changes."""

    versions: tuple[FileVersion, ...]

    @property
    def path(self) -> str:
        return self.versions[0].path

    @property
    def target(self) -> str:
        """The digest of the content to restore; empty: the file is to be removed."""
        return self.versions[0].before

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(version.id for version in self.versions)

    def is_own(self, content: str) -> bool:
        """Return whether a file with this digest has no changes by others: neither now nor between the versions."""
        between = all(later.before == earlier.before or later.before in earlier.after for earlier, later in self._pairs)
        return content == self.target or (between and self.versions[-1].is_own(content))

    @property
    def _pairs(self) -> Iterable[tuple[FileVersion, FileVersion]]:
        return pairwise(self.versions)


def reverts_of(versions: Iterable[FileVersion]) -> list[Revert]:
    """Return the Reverts of these versions, one for each path."""
    by_path: dict[str, list[FileVersion]] = {}
    for version in versions:
        by_path.setdefault(version.path, []).append(version)
    return [Revert(tuple(of_path)) for of_path in by_path.values()]


def conflicting(reverts: Sequence[Revert]) -> list[str]:
    """Return paths that others changed since: a revert would lose these changes."""
    return [revert.path for revert in reverts if _is_foreign(revert)]


def _is_foreign(revert: Revert) -> bool:
    try:
        return not revert.is_own(disk.read_digest(Path(revert.path))[0])
    except ToolFailed:
        return True  # now a symlink, a directory or a huge file


def read_changed(revert: Revert) -> tuple[str, bytes | None] | None:
    """Return the digest and the content of a file that is to be reverted (None: it does not exist); None if it has the
    content to restore. ToolFailed if it changed since, or cannot be read."""
    file = disk.read(Path(revert.path))
    now = digest(file.data) if file else ""
    if now == revert.target:
        return None
    if not revert.is_own(now):
        raise _changed_since(revert)
    return now, file.data if file else None


def revert_file(revert: Revert, original: bytes | None) -> None:
    """Restore a file to its content before the versions; None: remove it. New directories are kept.

    ToolFailed, without a change, if the file changed since, or cannot be written."""
    path = Path(revert.path)
    now, status = disk.read_digest(path)
    if not revert.is_own(now):
        raise _changed_since(revert)
    if original is not None:
        disk.replace(path, original, status)
    elif status is not None:
        disk.remove(path, status)


def _changed_since(revert: Revert) -> ToolFailed:
    return ToolFailed(f"{revert.path} cannot be restored; changed since")
