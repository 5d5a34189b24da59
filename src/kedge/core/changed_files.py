"""The files that the Runs of a session changed, from the versions that they kept."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from kedge.core.events import Change
from kedge.core.records import FileVersion


class ChangedFile(Struct, frozen=True):
    #: Absolute.
    path: str
    change: Change


def changed_files(versions: Iterable[FileVersion]) -> list[ChangedFile]:
    """Return the files that differ from their state before the session, with the overall change; the last first.

    `versions`: in the order of their first Write. Undone ones do not count."""
    first: dict[str, FileVersion] = {}
    last: dict[str, FileVersion] = {}
    for version in versions:
        if not version.undone:
            first.setdefault(version.path, version)
            last.pop(version.path, None)
            last[version.path] = version
    files: list[ChangedFile] = []
    for path, version in reversed(last.items()):
        before, after = first[path].before, version.after[-1]
        if before != after:
            files.append(ChangedFile(path, "created" if not before else "updated" if after else "deleted"))
    return files
