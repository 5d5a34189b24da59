"""The files that a session changed, from the versions that its Runs kept."""

from __future__ import annotations

from kedge.core.changed_files import ChangedFile, changed_files
from kedge.core.records import FileVersion


def version(path: str, before: str, after: str, *, run: str = "r1", undone: bool = False) -> FileVersion:
    return FileVersion(f"{run}{path}", "w", "s", run, path, before, (after,), 1, undone)


def test_files_have_their_overall_change_the_last_first() -> None:
    versions = [
        version("/created", "", "1"),
        version("/updated", "1", "2"),
        version("/deleted", "1", ""),
        version("/undone", "1", "2", undone=True),
        version("/back", "1", "2"),
        version("/gone", "", "1"),
        version("/created", "1", "2", run="r2"),
        version("/back", "2", "1", run="r2"),
        version("/gone", "1", "", run="r2"),
    ]
    assert changed_files(versions) == [
        ChangedFile("/created", "created"),
        ChangedFile("/deleted", "deleted"),
        ChangedFile("/updated", "updated"),
    ]
