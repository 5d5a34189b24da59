"""Programs that are started without asking, found in PATH."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kedge.programs import first_program, is_outside, program_outside


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


@pytest.mark.found(
    "attack round 2: command lines",
    "PATH entries below /proc/self/cwd, and a second mount of the workspace, hid that a program is the workspace's; "
    "the first are skipped, and directories are compared by what they are",
)
def test_no_program_of_the_workspace_has_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, mount = tmp_path / "workspace", tmp_path / "mount"
    put(workspace / "bin" / "rg")
    monkeypatch.chdir(workspace)
    assert first_program("rg", "/proc/self/cwd/bin://proc/self/cwd/bin:/x/../proc/self/cwd/bin") is None
    mount.mkdir()
    if subprocess.run(["mount", "--bind", workspace, mount], capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        assert not is_outside(str(mount / "bin" / "rg"), workspace)
    finally:
        subprocess.run(["umount", mount], check=True)
