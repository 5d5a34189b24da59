"""A session on a real repository, at the terminal: a failing test is found, fixed and run again; then undone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.process import Server
from tests.real_work.session import (
    ANSWER,
    DOCUMENT,
    LANE,
    README,
    README_PART,
    RIGHT,
    TESTS,
    WRONG,
    Played,
    document,
    git,
    make_repository,
    play,
    readme_part,
    seen,
    served,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as server:
        yield server


@pytest.fixture(scope="module")
def played(server: Server) -> Played:
    """Played once for all tests."""
    return play(server)


@pytest.fixture(scope="module")
def transcript(server: Server, played: Played) -> list[dict[str, Any]]:
    exported = server.home.kedge("sessions", "show", "--json", "--host", server.host, played.session_id)
    messages: list[dict[str, Any]] = json.loads(exported.out)["messages"]
    return messages


def parts(transcript: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [part["data"] for message in transcript for part in message["parts"] if part["type"] == kind]


def test_repository_has_one_failing_test(tmp_path: Path) -> None:
    make_repository(tmp_path)
    command = [sys.executable, "-m", "unittest"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "FAIL: test_cancel_covers_the_last_run" in done.stderr
    assert "FAILED (failures=1)" in done.stderr
    assert git(tmp_path, "status", "--porcelain") == ""


def test_session_asks_for_two_approvals(server: Server, played: Played) -> None:
    assert played.code == 0
    first, second = played.asked
    assert f"bash needs your approval: Run the tests\n  $ {TESTS}\n  in {server.home.workspace}\n" in first
    assert f"edit needs your approval: Edit {LANE} (+1 -1)\n" in second
    assert f"\n  -        {WRONG}\n  +        {RIGHT}\n" in second
    assert played.shown.count("needs your approval") == 2
    pending = json.loads(server.home.kedge("approvals", "--json", "--host", server.host).out)
    assert pending["approvals"] == []
    # The edit was allowed once; only the command was allowed for the session.
    (grant,) = pending["grants"]
    assert (grant["rule"], grant["session_id"]) == (f"bash({TESTS})", played.session_id)


def test_tests_fail_before_and_pass_after_the_edit(played: Played, transcript: list[dict[str, Any]]) -> None:
    before, search, viewed, edited, after = parts(transcript, "tool_result")
    names = [result["name"] for result in (before, search, viewed, edited, after)]
    assert names == ["bash", "grep", "view", "edit", "bash"]
    assert not any(result["is_error"] for result in (before, search, viewed, edited, after))
    assert "FAIL: test_cancel_covers_the_last_run" in before["content"]
    assert before["content"].endswith("Exit code 1")
    assert LANE in search["content"]
    assert WRONG in viewed["content"]
    assert f"+        {RIGHT}\n" in json.loads(edited["metadata"])["diff"]
    assert "OK" in after["content"]
    assert [json.loads(result["metadata"])["exit_code"] for result in (before, after)] == [1, 0]
    assert parts(transcript, "text")[-1]["text"].endswith(ANSWER)
    assert seen(played.shown).splitlines()[-2] == ANSWER


def test_only_the_approved_line_changed(played: Played) -> None:
    changed = [line for line in played.diffs[0].splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == [f"-        {WRONG}", f"+        {RIGHT}"]


def test_undo_restores_the_file(server: Server, played: Played) -> None:
    file = server.home.workspace / LANE
    assert played.undone == f"reverted the changes of run {played.run_id}\n  {file}\n"
    assert played.diffs[1] == ""
    assert WRONG in file.read_text()
    assert played.tests_again == "FAILED (failures=1)\n"
    nothing = server.home.kedge("sessions", "undo", "--host", server.host, played.session_id)
    assert nothing.code == 1


def test_recorded_session_is_current(server: Server, played: Played) -> None:
    recorded = DOCUMENT.read_text()
    assert recorded == document(played, server.home.workspace), "run: .venv/bin/python -m tests.real_work.session"
    (part,) = README_PART.findall(README.read_text())
    assert part == readme_part(recorded), "run: .venv/bin/python -m tests.real_work.session"
