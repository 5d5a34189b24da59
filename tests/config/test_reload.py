"""Reloading of changed configuration files, also while the user edits them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kedge.config.reload import UserConfig, WorkspaceConfig
from kedge.config.trust import TrustList
from kedge.errors import BadConfig


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text('model = "a/one"\n')
    return path


def put(path: Path, text: str) -> None:
    """Replace the file by a new one, as an editor does."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def test_only_changed_files_are_reloaded(file: Path) -> None:
    user = UserConfig(file)
    assert user.config.model == "a/one"
    assert user.current() is user.current()
    put(file, 'model = "a/two"\n')
    assert user.config.model == "a/two"
    file.unlink()
    assert user.config.model == ""
    put(file, 'model = "a/three"\n')
    assert user.config.model == "a/three"


def test_invalid_file_changes_nothing_and_is_logged_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    user = UserConfig(file)
    put(file, "model = [sk-canary")
    assert [user.config.model for _ in range(3)] == ["a/one"] * 3
    assert str(file) in user.problem
    assert len(caplog.records) == 1
    assert "canary" not in caplog.text
    put(file, 'model = "a/two"\n')
    assert (user.config.model, user.problem) == ("a/two", "")


def test_ineffective_rules_are_logged_once(file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(file, '[permissions]\ndeny = ["bash(rm)"]\n')
    user = UserConfig(file)
    found = WorkspaceConfig(user, tmp_path, TrustList(), {})
    assert [user.config, found.config, found.config]
    assert [record.getMessage() for record in caplog.records] == [
        "The rule bash(rm) denies only the command without arguments; write bash(rm *). "
        "List all with: kedge config check"
    ]


def test_file_that_is_invalid_at_start_is_refused(file: Path) -> None:
    file.write_text("model = [")
    with pytest.raises(BadConfig):
        UserConfig(file)


def test_workspace_reloads_user_file_repository_and_trust(file: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    trust = TrustList(tmp_path / "trusted.json")
    found = WorkspaceConfig(UserConfig(file), work, trust, {})
    assert found.current() is found.current()
    put(work / "kedge.toml", '[permissions]\nallow = ["bash"]\n[runs]\nmax_steps = 7\n')
    assert (found.config.runs.max_steps, found.config.permissions.allow) == (7, [])
    assert "until you trust it" in found.current().ignored[0]
    trust.add(work / "kedge.toml", (work / "kedge.toml").read_bytes())
    assert found.config.permissions.allow == ["bash"]
    put(file, 'model = "a/two"\n')
    assert (found.config.model, found.config.permissions.allow) == ("a/two", ["bash"])
    trust.revoke(work / "kedge.toml")
    assert found.config.permissions.allow == []


def test_invalid_repository_file_does_not_block_user_changes(file: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    put(work / "kedge.toml", "[runs]\nmax_steps = 7\n")
    found = WorkspaceConfig(UserConfig(file), work, TrustList(), {})
    put(work / "kedge.toml", "[runs]\nmax_steps = ")
    assert (found.config.model, found.config.runs.max_steps) == ("a/one", 7)
    assert "kedge.toml" in found.problem
    put(file, '[permissions]\ndeny = ["bash"]\n')
    assert found.config.permissions.deny == ["bash"]
    put(work / "kedge.toml", "[runs]\nmax_steps = 8\n")
    assert (found.config.runs.max_steps, found.problem) == (8, "")


@pytest.mark.found(
    "attack: a trusted file that was broken",
    "trust that was revoked while the repository's file could not be read had no effect: what it allowed before stayed "
    "in force; a change of trust counts at once now",
)
def test_revoked_trust_applies_despite_an_invalid_file(file: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    trust = TrustList(tmp_path / "trusted.json")
    put(work / "kedge.toml", '[permissions]\nallow = ["bash"]\n')
    trust.add(work / "kedge.toml", (work / "kedge.toml").read_bytes())
    found = WorkspaceConfig(UserConfig(file), work, trust, {})
    put(work / "kedge.toml", "[permissions")
    assert found.config.permissions.allow == ["bash"]  # the user is editing it
    trust.revoke(work / "kedge.toml")
    assert found.config.permissions.allow == []


def test_invalid_repository_file_at_start(file: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    put(work / "kedge.toml", "model = ")
    with pytest.raises(BadConfig):
        WorkspaceConfig(UserConfig(file), work, TrustList(), {})
    found = WorkspaceConfig(UserConfig(file), work, TrustList(), {}, strict=False)
    assert found.config.model == "a/one"
    assert "the file is ignored" in found.current().ignored[0]
    assert found.problem.startswith(f"{work}/kedge.toml is not valid TOML: Invalid value (at end of document)")
    assert found.problem.endswith("The file is ignored.")


@pytest.mark.found(
    "a review of recovery: a number of thousands of digits in a repository's file",
    "Python's own error came through the parser: an accepted Run was active without a task, and the server could "
    "not be started any more; it is a file that is not valid, like any other",
)
def test_overlong_number_is_an_invalid_file(file: Path, tmp_path: Path) -> None:
    work, number = tmp_path / "work", f"x = {'9' * 5_000}\n"
    work.mkdir()
    user, trust = UserConfig(file), TrustList(tmp_path / "trust")
    source = WorkspaceConfig(user, work, trust, {})
    put(work / "kedge.toml", number)
    assert source.config.model == "a/one"
    assert "too long" in source.problem
    assert WorkspaceConfig(user, work, trust, {}, strict=False).config.model == "a/one"
    with pytest.raises(BadConfig, match="too long"):
        WorkspaceConfig(user, work, trust, {})
    put(file, number)
    assert user.config.model == "a/one"
