"""Revert the file changes of a Run from the stored versions. Blocking: the engine calls it in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from kedge.core.records import FileVersion
from kedge.tools import disk
from kedge.tools.disk import FileContent
from kedge.tools.known_files import digest
from kedge.tools.tool_failed import ToolFailed


class _Revert(Struct, frozen=True):
    """The current content of one path, and the content before the Run."""

    path: Path
    now: FileContent | None
    before: bytes | None
    #: The current content is neither from the Run nor from before it: the user changed it since.
    is_foreign: bool


def conflicting_paths(versions: Sequence[FileVersion]) -> list[str]:
    """Return paths that changed since the Run: a revert would lose these changes. `versions` are those of one Run, in
    order."""
    return [str(file.path) for file in _reverts(versions) if file.is_foreign]


def revert_files(versions: Sequence[FileVersion]) -> list[str]:
    """Restore every file to its content before the Run, and return the changed paths. New directories are kept.

    ToolFailed, without any change, if a file changed since. If a file cannot be written, the revert stops half-way; a
    retry continues there."""
    files = _reverts(versions)
    if foreign := [str(file.path) for file in files if file.is_foreign]:
        raise ToolFailed(f"cannot be undone; changed since: {', '.join(foreign)}")
    changed = []
    for file in files:
        if (file.now and file.now.data) == file.before:
            continue
        if file.before is not None:
            disk.replace(file.path, file.before, None if file.now is None else file.now.stat)
        elif file.now is not None:
            disk.remove(file.path, file.now.stat)
        changed.append(str(file.path))
    return changed


def _reverts(versions: Sequence[FileVersion]) -> list[_Revert]:
    by_path: dict[str, list[FileVersion]] = {}
    for version in versions:
        by_path.setdefault(version.path, []).append(version)
    return [_revert(Path(path), several) for path, several in by_path.items()]


def _revert(path: Path, versions: list[FileVersion]) -> _Revert:
    """A version is stored before its file is written. If the process was lost in between, the file still has the
    content of an earlier version, so the contents of all versions count as the Run's own."""
    before = versions[0].before
    try:
        now = disk.read(path)
    except ToolFailed:
        return _Revert(path, None, before, is_foreign=True)  # now a symlink, a directory or a huge file
    current = "" if now is None else digest(now.data)
    ours = {version.after for version in versions} | {"" if before is None else digest(before)}
    return _Revert(path, now, before, current not in ours)
