"""Attacks repeated in each mode, with real calls. tests/tools/test_attacks_in_modes.py has the decisions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kedge.core.modes import MODES, Mode
from tests.conformance.harness import Json, Peer, Server
from tests.conformance.mode_helpers import in_mode
from tests.conformance.test_attacks_files import EVERY_EDIT, changes, looks
from tests.conformance.test_attacks_permissions import needed_approval, outputs, tried_at_once
from tests.conformance.test_i_agent import call
from tests.conformance.test_modes import ESCAPE

CAREFUL: tuple[Mode, ...] = tuple(mode for mode in MODES if mode != "yolo")


def was_refused(result: Json) -> bool:
    return needed_approval(result) or "plan mode" in result["content"]


@pytest.fixture
def outside(kedge: Peer, tmp_path: Path) -> Path:
    """A directory with a canary, and links to it in the workspace."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/a.txt").write_text("canary\n")
    (kedge.directory / "directory-link").symlink_to(tmp_path / "outside")
    (kedge.directory / "file-link").symlink_to(tmp_path / "outside/a.txt")
    return tmp_path / "outside"


@pytest.mark.parametrize("mode", CAREFUL)
async def test_files_and_network_are_not_reached_in_any_mode(kedge: Peer, outside: Path, mode: Mode) -> None:
    session = await in_mode(kedge, mode)
    paths = ("../outside/a.txt", str(outside), "file-link", "directory-link/a.txt")
    calls = [one for path in paths for one in looks(path)]
    calls += [
        one for path in ("../outside/new", "directory-link/new", ".envrc", ".git/config") for one in changes(path)
    ]
    calls += [call("fetch", url="https://example.org/"), call("bash", command="ls directory-link/", unconfined="x")]
    rules = [*EVERY_EDIT, "view(*)", "ls(*)", "bash"]
    results = await tried_at_once(kedge, *calls, session=session, allow=rules)
    assert [one for one, result in zip(calls, results, strict=True) if not was_refused(result)] == []
    assert "canary" not in str(results)
    assert [file.name for file in outside.iterdir()] == ["a.txt"]
    assert sorted(file.name for file in kedge.directory.iterdir()) == ["directory-link", "file-link"]


@pytest.mark.parametrize("mode", MODES)
async def test_deny_rules_hold_for_every_tool_in_every_mode(kedge: Peer, outside: Path, mode: Mode) -> None:
    session = await in_mode(kedge, mode)
    deny = ["view", "ls", "glob", "grep", "edit", "fetch", "bash"]
    calls = [*looks("a.txt"), *changes("a.txt"), call("fetch", url="https://example.org/")]
    calls += [call("bash", command="ls"), call("bash", command="touch a.txt", unconfined="x")]
    results = await tried_at_once(kedge, *calls, session=session, allow=["*"], deny=deny)
    assert all(result["content"].startswith("Not allowed") for result in results)
    assert not (kedge.directory / "a.txt").exists()


@pytest.mark.parametrize("mode", CAREFUL)
async def test_a_child_agent_has_no_more_than_its_parent(kedge: Peer, outside: Path, mode: Mode) -> None:
    session = await in_mode(kedge, mode)
    (kedge.directory / "a.txt").write_text("old\n")
    tried = [call("view", path="a.txt"), call("bash", command="touch made"), call("write", path="made", content="x")]
    tried += [call("view", path="file-link"), call("fetch", url="https://example.org/")]
    child = call("agent", prompt=f"script: {' | '.join(tried)} | say tried", description="x")
    await kedge.wait((await kedge.submit(session, f"script: {child} | say over", allow=["bash", "edit"]))["run_id"])
    (one,) = [s for s in await kedge.call("GET", f"{kedge.at}/sessions") if s["parent_session_id"] == session]
    viewed, ran, written, *elsewhere = outputs(await kedge.messages(one["id"]))
    assert "old" in viewed["content"]
    assert all("not found. Available tools" in result["content"] for result in (ran, written))
    assert all(map(needed_approval, elsewhere))
    assert not (kedge.directory / "made").exists()


@pytest.mark.parametrize("mode", ["ask", "edits", "auto"])
async def test_confined_commands_do_not_escape_in_any_mode(
    own_server: Callable[..., Server], workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """A command that a rule with a wildcard covers is confined in every mode as mode auto confines all."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))  # the default one contains the whole test
    server = own_server()
    port = server.url.rpartition(":")[2]
    (workspace / "escape.py").write_text(ESCAPE)
    (workspace / "AGENTS.md").write_text("mine")
    recipe = [f"-{sys.executable} -I escape.py {tmp_path / 'outside'} {port}", "-echo evil > AGENTS.md"]
    recipe += ["-mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit", "-echo evil > CLAUDE.md", "touch fine"]
    (workspace / "Makefile").write_text("all:\n" + "".join(f"\t{line}\n" for line in recipe))
    async with server.peer(workspace) as kedge:
        await in_mode(kedge, "auto")  # skips where the machine cannot confine
        session = await in_mode(kedge, mode)
        (result,) = await tried_at_once(
            kedge, call("bash", command="make all"), session=session, allow=["bash(make *)"]
        )
    assert "file refused\nnetwork refused" in result["content"]
    assert "Withheld: .git/hooks, CLAUDE.md." in result["content"]
    assert (workspace / "AGENTS.md").read_text() == "mine"
    assert not (workspace / "CLAUDE.md").exists()
    assert (workspace / "fine").exists()
