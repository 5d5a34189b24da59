"""The files that are offered while a user types a name."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kedge.engine import file_names
from kedge.engine.file_names import NAMES_MAX, WAITING_MAX
from kedge.errors import Busy
from kedge.testing.scripted import ScriptedModel
from tests.engine.rig import PlainMachine, rig


async def test_names_are_ranked_and_ignored_files_left_out(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel(), machine=PlainMachine()) as r:
        root = r.workspace.root
        for name in ("src/app.py", "src/map.py", "docs/a/p/p.md", "app.log", "build/app.o", ".hidden/app.py"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        (root / ".gitignore").write_text("*.log\nbuild/\n")
        (root / 'app"quoted.py').touch()
        (root / "app\nline.py").touch()
        os.close(os.open(os.fsencode(root) + b"/app\xff", os.O_CREAT | os.O_WRONLY))
        (root / "outside").symlink_to("/etc")
        assert await r.engine.file_names.matching(r.workspace, "APP") == [
            "src/app.py",
            "src/map.py",
            "docs/a/p/p.md",
        ]
        assert await r.engine.file_names.matching(r.workspace, "map.py") == ["src/map.py"]
        assert await r.engine.file_names.matching(r.workspace, "passwd") == []
        assert await r.engine.file_names.matching(r.workspace, "\0") == []


async def test_number_of_names_and_of_listings_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(tmp_path, ScriptedModel(), machine=PlainMachine()) as r:
        for number in range(NAMES_MAX + 10):
            (r.workspace.root / f"file{number:03}").touch()
        assert len(await r.engine.file_names.matching(r.workspace, "file")) == NAMES_MAX
        waiting = [r.engine.file_names.matching(r.workspace, "file") for _ in range(WAITING_MAX + 1)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [list] * WAITING_MAX + [Busy]
        monkeypatch.setattr(file_names, "LISTING_BYTES_MAX", 100)
        assert 0 < len(await r.engine.file_names.matching(r.workspace, "file")) <= NAMES_MAX


async def test_removed_directory_has_no_names(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel(), machine=PlainMachine()) as r:
        for entry in r.workspace.root.iterdir():
            entry.unlink()
        r.workspace.root.rmdir()
        assert await r.engine.file_names.matching(r.workspace, "x") == []
