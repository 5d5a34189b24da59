"""A session on a real repository, through the command line: a failing test is found, mended and run again; then undone.

`tests/real_work/session.py` plays it as a person would at the terminal."""

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
    RIGHT,
    TESTS,
    WRONG,
    Played,
    document,
    git,
    make_repository,
    play,
    seen,
    served,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as server:
        yield server


@pytest.fixture(scope="module")
def played(server: Server) -> Played:
    """Played once: each test looks at another side of it."""
    return play(server)


@pytest.fixture(scope="module")
def transcript(server: Server, played: Played) -> list[dict[str, Any]]:
    exported = server.home.kedge("sessions", "show", "--json", "--host", server.host, played.session_id)
    messages: list[dict[str, Any]] = json.loads(exported.out)["messages"]
    return messages


def parts(transcript: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [part["data"] for message in transcript for part in message["parts"] if part["type"] == kind]


def test_the_repository_has_one_failing_test_and_nothing_uncommitted(tmp_path: Path) -> None:
    make_repository(tmp_path)
    command = [sys.executable, "-m", "unittest"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "FAIL: test_a_cancel_covers_the_run_accepted_last" in done.stderr
    assert "FAILED (failures=1)" in done.stderr
    assert git(tmp_path, "status", "--porcelain") == ""


def test_two_approvals_are_asked_and_the_second_run_of_the_tests_needs_none(server: Server, played: Played) -> None:
    assert played.code == 0
    first, second = played.asked
    assert f"bash needs your approval: Run the tests: $ {TESTS}\n  $ {TESTS}\n  in {server.home.workspace}\n" in first
    assert f"edit needs your approval: Edit {LANE} (+1 -1)\n" in second
    assert f"\n  -        {WRONG}\n  +        {RIGHT}\n" in second
    assert played.shown.count("needs your approval") == 2
    told = json.loads(server.home.kedge("approvals", "--json", "--host", server.host).out)
    assert told["approvals"] == []
    # The edit was allowed once; what was allowed for the session is this command and nothing else.
    (grant,) = told["grants"]
    assert (grant["rule"], grant["session_id"]) == (f"bash({TESTS})", played.session_id)


def test_every_call_has_its_result_and_the_tests_fail_before_and_pass_after(
    played: Played, transcript: list[dict[str, Any]]
) -> None:
    before, found, viewed, edited, after = parts(transcript, "tool_result")
    assert [result["name"] for result in (before, found, viewed, edited, after)] == [
        *("bash", "grep", "view", "edit", "bash")
    ]
    assert not any(result["is_error"] for result in (before, found, viewed, edited, after))
    assert "FAIL: test_a_cancel_covers_the_run_accepted_last" in before["content"]
    assert before["content"].endswith("Exit code 1")
    assert LANE in found["content"]
    assert WRONG in viewed["content"]
    assert f"+        {RIGHT}\n" in json.loads(edited["metadata"])["diff"]
    assert "OK" in after["content"]
    assert [json.loads(result["metadata"])["exit_code"] for result in (before, after)] == [1, 0]
    assert parts(transcript, "text")[-1]["text"].endswith(ANSWER)
    assert seen(played.shown).splitlines()[-2] == ANSWER


def test_the_repository_changed_by_the_one_line_that_was_approved(played: Played) -> None:
    changed = [line for line in played.diffs[0].splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == [f"-        {WRONG}", f"+        {RIGHT}"]


def test_undo_puts_the_file_back_and_the_test_fails_again(server: Server, played: Played) -> None:
    file = server.home.workspace / LANE
    assert played.undone == f"undone: what run {played.run_id} changed\n  {file}\n"
    assert played.diffs[1] == ""
    assert WRONG in file.read_text()
    assert played.tests_again == "FAILED (failures=1)\n"
    nothing = server.home.kedge("sessions", "undo", "--host", server.host, played.session_id)
    assert nothing.code == 1


def test_the_recorded_session_is_what_happens(server: Server, played: Played) -> None:
    recorded = DOCUMENT.read_text()
    assert recorded == document(played, server.home.workspace), "run: .venv/bin/python -m tests.real_work.session"
