"""Revert the file changes of a Run from the stored versions. Blocking: the engine calls it in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kedge.core.records import FileVersion
from kedge.tools import disk
from kedge.tools.tool_failed import ToolFailed


def conflicting_paths(versions: Sequence[FileVersion]) -> list[str]:
    """Return paths that changed since the Run: a revert would lose these changes."""
    return [version.path for version in versions if _is_foreign(version)]


def _is_foreign(version: FileVersion) -> bool:
    try:
        digest, _ = disk.read_digest(Path(version.path))
    except ToolFailed:
        return True  # now a symlink, a directory or a huge file
    return not version.is_own(digest)


def needs_revert(version: FileVersion) -> bool:
    """Return False if the file is as it was before the Run. ToolFailed if it cannot be read."""
    return disk.read_digest(Path(version.path))[0] != version.before


def revert_file(version: FileVersion, original: bytes | None) -> None:
    """Restore a file to its content before the Run; None: remove it. New directories are kept.

    ToolFailed, without a change, if the file changed since, or cannot be written."""
    path = Path(version.path)
    digest, status = disk.read_digest(path)
    if not version.is_own(digest):
        raise ToolFailed(f"{version.path} cannot be undone; changed since")
    if original is not None:
        disk.replace(path, original, status)
    elif status is not None:
        disk.remove(path, status)
