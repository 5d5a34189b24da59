"""Reverting the file changes of a Run, unless the user changed the files since."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kedge.core.records import FileVersion
from kedge.tools.base import ToolFailed
from kedge.tools.edit import EditTool
from kedge.tools.known_files import digest
from kedge.tools.revert import conflicting_paths, revert_files
from kedge.tools.view import ViewTool
from kedge.tools.write import WriteTool
from tests.tools.contexts import RecordingHost, call, make_context


def version(path: Path, before: bytes | None, after: str) -> FileVersion:
    return FileVersion("v", "w", "s", "r", str(path), before, after, 0)


def kept(host: RecordingHost) -> list[FileVersion]:
    return [version(path, before, after) for path, before, after in host.versions]


@pytest.fixture
async def host(tmp_path: Path) -> RecordingHost:
    """A Run that edited a.txt twice and made sub/new.txt."""
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "a.txt").chmod(0o750)
    host = RecordingHost()
    context = make_context(tmp_path, host=host)
    await call(ViewTool(), context, path="a.txt")
    await call(EditTool(), context, path="a.txt", old_string="one", new_string="two")
    await call(WriteTool(), context, path="sub/new.txt", content="new\n")
    await call(EditTool(), context, path="a.txt", old_string="two", new_string="three")
    return host


async def test_revert_restores_and_deletes_files(tmp_path: Path, host: RecordingHost) -> None:
    root = tmp_path.resolve()
    assert conflicting_paths(kept(host)) == []
    assert revert_files(kept(host)) == [str(root / "a.txt"), str(root / "sub/new.txt")]
    assert (tmp_path / "a.txt").read_text() == "one\n"
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o750
    assert os.listdir(tmp_path / "sub") == []
    # A second time there is nothing left to do.
    assert conflicting_paths(kept(host)) == []
    assert revert_files(kept(host)) == []


async def test_one_conflict_prevents_the_revert(tmp_path: Path, host: RecordingHost) -> None:
    (tmp_path / "a.txt").write_text("by hand\n")
    assert conflicting_paths(kept(host)) == [str(tmp_path.resolve() / "a.txt")]
    with pytest.raises(ToolFailed, match="changed since"):
        revert_files(kept(host))
    assert (tmp_path / "a.txt").read_text() == "by hand\n"
    assert (tmp_path / "sub/new.txt").exists()


async def test_version_without_a_write_is_no_conflict(tmp_path: Path, host: RecordingHost) -> None:
    lost = version(tmp_path.resolve() / "a.txt", b"three\n", digest(b"never written"))
    assert conflicting_paths([*kept(host), lost]) == []
    revert_files([*kept(host), lost])
    assert (tmp_path / "a.txt").read_text() == "one\n"


def test_deleted_file_returns_with_its_directory(tmp_path: Path) -> None:
    path = tmp_path.resolve() / "gone" / "a.txt"
    assert conflicting_paths([version(path, b"old", "")]) == []
    assert revert_files([version(path, b"old", "")]) == [str(path)]
    assert path.read_bytes() == b"old"


async def test_new_file_deleted_or_edited_by_the_user(tmp_path: Path, host: RecordingHost) -> None:
    (tmp_path / "sub/new.txt").write_text("edited by hand")
    assert conflicting_paths(kept(host)) == [str(tmp_path.resolve() / "sub/new.txt")]
    (tmp_path / "sub/new.txt").unlink()  # as it was before the Run
    assert revert_files(kept(host)) == [str(tmp_path.resolve() / "a.txt")]


@pytest.mark.parametrize("swapped", ["a.txt", "sub"])
async def test_revert_follows_no_symlinks(tmp_path: Path, host: RecordingHost, swapped: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "new.txt").write_text("new\n")
    (tmp_path / swapped).rename(tmp_path / "moved")
    (tmp_path / swapped).symlink_to(outside / "new.txt" if swapped == "a.txt" else outside)
    assert len(conflicting_paths(kept(host))) == 1
    with pytest.raises(ToolFailed, match="changed since"):
        revert_files(kept(host))
    assert (outside / "new.txt").read_text() == "new\n"
