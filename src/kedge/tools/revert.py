"""Taking back what a Run's tools did to files, from the versions that were kept. Blocking: the engine calls it in a
thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from kedge.core.records import FileVersion
from kedge.tools import disk
from kedge.tools.disk import Content
from kedge.tools.known_files import digest
from kedge.tools.tool_failed import ToolFailed


class _Undo(Struct, frozen=True):
    """One path: what is there now, and what was there before the Run."""

    path: Path
    now: Content | None
    before: bytes | None
    #: It is neither what the Run left nor what it found: people changed it since.
    is_foreign: bool


def check_undo(versions: Sequence[FileVersion]) -> list[str]:
    """Paths that changed since the Run: undoing would lose that. `versions` are those of one Run, in their order."""
    return [str(undo.path) for undo in _undos(versions) if undo.is_foreign]


def apply_undo(versions: Sequence[FileVersion]) -> list[str]:
    """Put every file back as the Run found it; the paths that were changed by that. Directories that were made stay.

    ToolFailed, with nothing done, if a file changed since. A file that cannot be written ends it half-way: what was put
    back by then counts as unchanged when it is tried again."""
    undos = _undos(versions)
    if foreign := [str(undo.path) for undo in undos if undo.is_foreign]:
        raise ToolFailed(f"changed since, so it cannot be undone: {', '.join(foreign)}")
    changed = []
    for undo in undos:
        if (undo.now and undo.now.data) == undo.before:
            continue
        if undo.before is not None:
            disk.replace(undo.path, undo.before, None if undo.now is None else undo.now.stat)
        elif undo.now is not None:
            disk.remove(undo.path, undo.now.stat)
        changed.append(str(undo.path))
    return changed


def _undos(versions: Sequence[FileVersion]) -> list[_Undo]:
    found: dict[str, list[FileVersion]] = {}
    for version in versions:
        found.setdefault(version.path, []).append(version)
    return [_undo(Path(path), several) for path, several in found.items()]


def _undo(path: Path, versions: list[FileVersion]) -> _Undo:
    """A version is kept before its file is written. If the process was lost in between, the file is still as the
    version before it left it, so each of them counts as the Run's own."""
    before = versions[0].before
    try:
        now = disk.read(path)
    except ToolFailed:
        return _Undo(path, None, before, is_foreign=True)  # a link, a directory or a huge file by now
    here = "" if now is None else digest(now.data)
    ours = {version.after for version in versions} | {"" if before is None else digest(before)}
    return _Undo(path, now, before, here not in ours)
