"""Reverting the file changes of a Run, unless the user changed the files since."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kedge.core.records import FileVersion
from kedge.tools.base import ToolFailed
from kedge.tools.edit import EditTool
from kedge.tools.known_files import digest
from kedge.tools.revert import conflicting, read_changed, revert_file, reverts_of
from kedge.tools.view import ViewTool
from kedge.tools.write import WriteTool
from tests.tools.contexts import RecordingHost, call, make_context


def version(path: Path, before: bytes | None, after: str) -> FileVersion:
    return FileVersion("v", "w", "s", "r", str(path), _digest(before), (after,), 0)


def _digest(content: bytes | None) -> str:
    return "" if content is None else digest(content)


def kept(host: RecordingHost) -> list[FileVersion]:
    """The versions that a store has: one for each path."""
    versions: dict[Path, FileVersion] = {}
    for path, before, after in host.versions:
        first = versions.get(path) or version(path, before, after)
        versions[path] = first.changed(_digest(before), after)
    return list(versions.values())


def revert_all(host: RecordingHost) -> list[str]:
    originals = {str(path): before for path, before, _ in reversed(host.versions)}
    reverts = [revert for revert in reverts_of(kept(host)) if read_changed(revert)]
    for each in reverts:
        revert_file(each, originals[each.path])
    return [each.path for each in reverts]


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
    assert conflicting(reverts_of(kept(host))) == []
    assert revert_all(host) == [str(root / "a.txt"), str(root / "sub/new.txt")]
    assert (tmp_path / "a.txt").read_text() == "one\n"
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o750
    assert os.listdir(tmp_path / "sub") == []
    # A second time there is nothing left to do.
    assert conflicting(reverts_of(kept(host))) == []
    assert revert_all(host) == []


async def test_one_conflict_prevents_the_revert(tmp_path: Path, host: RecordingHost) -> None:
    (tmp_path / "a.txt").write_text("by hand\n")
    assert conflicting(reverts_of(kept(host))) == [str(tmp_path.resolve() / "a.txt")]
    with pytest.raises(ToolFailed, match="changed since"):
        revert_all(host)
    assert (tmp_path / "a.txt").read_text() == "by hand\n"
    assert (tmp_path / "sub/new.txt").exists()


@pytest.mark.parametrize("lost", [1, 2])
async def test_version_without_a_write_is_no_conflict(tmp_path: Path, host: RecordingHost, lost: int) -> None:
    path = tmp_path.resolve() / "a.txt"
    host.versions += [(path, b"three\n", digest(b"never written %d" % number)) for number in range(lost)]
    assert conflicting(reverts_of(kept(host))) == []
    revert_all(host)
    assert (tmp_path / "a.txt").read_text() == "one\n"


async def test_earlier_content_of_the_run_is_a_conflict(tmp_path: Path, host: RecordingHost) -> None:
    """Only the latest change may be lost with the process: the user wrote this content."""
    path = tmp_path.resolve() / "a.txt"
    host.versions.append((path, b"three\n", digest(b"four\n")))
    path.write_text("two\n")
    assert conflicting(reverts_of(kept(host))) == [str(path)]


async def test_content_of_the_user_within_the_run_is_a_conflict(tmp_path: Path, host: RecordingHost) -> None:
    """The Run was about to replace it, but did not."""
    path = tmp_path.resolve() / "a.txt"
    path.write_text("by hand\n")
    host.versions.append((path, b"by hand\n", digest(b"never written")))
    assert conflicting(reverts_of(kept(host))) == [str(path)]


def test_deleted_file_returns_with_its_directory(tmp_path: Path) -> None:
    path = tmp_path.resolve() / "gone" / "a.txt"
    deleted = version(path, b"old", "")
    assert conflicting(reverts_of([deleted])) == []
    revert_file(reverts_of([deleted])[0], b"old")
    assert path.read_bytes() == b"old"


async def test_new_file_deleted_or_edited_by_the_user(tmp_path: Path, host: RecordingHost) -> None:
    (tmp_path / "sub/new.txt").write_text("edited by hand")
    assert conflicting(reverts_of(kept(host))) == [str(tmp_path.resolve() / "sub/new.txt")]
    (tmp_path / "sub/new.txt").unlink()  # as it was before the Run
    assert revert_all(host) == [str(tmp_path.resolve() / "a.txt")]


@pytest.mark.parametrize("swapped", ["a.txt", "sub"])
async def test_revert_follows_no_symlinks(tmp_path: Path, host: RecordingHost, swapped: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "new.txt").write_text("new\n")
    (tmp_path / swapped).rename(tmp_path / "moved")
    (tmp_path / swapped).symlink_to(outside / "new.txt" if swapped == "a.txt" else outside)
    assert len(conflicting(reverts_of(kept(host)))) == 1
    with pytest.raises(ToolFailed):
        revert_all(host)
    assert (outside / "new.txt").read_text() == "new\n"
