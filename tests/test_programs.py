"""Programs that are started without asking, found in PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.programs import first_program, program_outside


def put(path: Path, mode: int = 0o755) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.chmod(mode)
    return str(path)


@pytest.mark.found(
    "attack 9",
    "rg was looked up in all of PATH, relative entries and those in the workspace included; it is taken from elsewhere",
)
def test_no_program_of_the_workspace_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = tmp_path / "workspace"
    inside, outside = put(workspace / "bin" / "rg"), put(tmp_path / "bin" / "rg")
    put(tmp_path / "plain" / "rg", mode=0o644)
    (tmp_path / "linked").symlink_to(workspace / "bin")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "rg").symlink_to(inside)
    (tmp_path / "name").symlink_to(workspace)
    monkeypatch.chdir(workspace)
    entries = [workspace / "bin", tmp_path / "linked", tmp_path / "links", tmp_path / "x" / ".." / "workspace" / "bin"]
    path = ":".join(["", ".", "bin", *map(str, entries), str(tmp_path / "plain")])
    for name in (workspace, tmp_path / "name"):
        assert program_outside("rg", path, name) is None
        assert program_outside("rg", f"{path}:{tmp_path / 'bin'}", name) == outside
    assert first_program("rg", path) == inside
