"""The FUSE directory of the tests: it works as a directory, hangs on request, and leaves nothing mounted."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.hanging_mount import hanging_mount


@pytest.mark.timeout(60)
def test_a_mounted_directory_has_files(tmp_path: Path) -> None:
    with hanging_mount(tmp_path / "m") as mount:
        (mount.path / "sub").mkdir()
        (mount.path / "sub" / "a.txt").write_text("content")
        os.symlink("sub/a.txt", mount.path / "link")
        assert (mount.source / "sub" / "a.txt").read_text() == "content"
        assert sorted(os.listdir(mount.path)) == ["link", "sub"]
        assert (mount.path / "link").read_text() == "content"
        (mount.path / "sub" / "a.txt").rename(mount.path / "b.txt")
        assert [entry.name for entry in os.scandir(mount.path) if entry.is_file(follow_symlinks=False)] == ["b.txt"]
        with pytest.raises(FileNotFoundError):
            (mount.path / "missing").stat()
    assert os.listdir(mount.path) == []
    assert (mount.source / "b.txt").read_text() == "content"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("end", ["answer", "give up"])
def test_a_hanging_call_waits_until_the_end(tmp_path: Path, end: str) -> None:
    results: list[str] = []

    def read() -> None:
        try:
            results.append((mount.path / "a").read_text())
        except OSError as error:
            results.append(os.strerror(error.errno or 0))

    with hanging_mount(tmp_path / "m") as mount:
        (mount.source / "a").write_text("content")
        mount.hang()
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(0.2)
        assert reader.is_alive()
        if end == "answer":
            mount.answer()
        else:
            mount.give_up()
        reader.join(30)
    assert (results == ["content"]) == (end == "answer")
    assert len(results) == 1
