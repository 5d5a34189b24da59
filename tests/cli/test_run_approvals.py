"""Approvals and questions at the terminal of `kedge run`, and without one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.client.process import Server, Terminal

ASKED = "answer> "


def write(path: str = "a.txt", content: str = "one\ntwo\n") -> str:
    return f"script: say first | tool write {json.dumps({'path': path, 'content': content})} | say last"


def at_terminal(server: Server, script: str, *arguments: str) -> Terminal:
    return Terminal(server.home, "run", "--host", server.host, *arguments, script)


def approvals(server: Server) -> Any:
    return json.loads(server.home.kedge("approvals", "--json", "--host", server.host).out)


def test_approval_is_shown_in_full_and_runs_when_allowed(server: Server) -> None:
    terminal = at_terminal(server, write())
    shown = terminal.until(ASKED)
    assert "write needs your approval: Create a.txt (+2 -0)" in shown
    assert f"  file {server.home.workspace}/a.txt\n" in shown
    assert "  +one\n  +two\n" in shown
    assert "[y] once  [s] this session: edit(**)  [a] always: edit(**)  [n] no  [m] no, with a reason\n" in shown
    assert not (server.home.workspace / "a.txt").exists()
    terminal.type("y\n")
    code, shown = terminal.end()
    assert code == 0
    assert "  -> +2 -0\n" in shown
    assert "last" in shown
    assert (server.home.workspace / "a.txt").read_text() == "one\ntwo\n"
    assert approvals(server)["grants"] == []


def test_session_grant_holds_in_that_session_only(server: Server) -> None:
    terminal = at_terminal(server, write("a.txt"))
    terminal.until(ASKED)
    terminal.type("s\n")
    assert terminal.end()[0] == 0
    again = at_terminal(server, write("b.txt"), "-C")
    code, shown = again.end()
    assert (code, ASKED in shown) == (0, False)
    assert (server.home.workspace / "b.txt").exists()
    other = at_terminal(server, write("c.txt"))
    other.until(ASKED)
    other.type("n\n")
    assert other.end()[0] == 0
    assert not (server.home.workspace / "c.txt").exists()


def test_denial_reason_reaches_the_model(server: Server) -> None:
    terminal = at_terminal(server, write())
    terminal.until(ASKED)
    terminal.type("m\n")
    terminal.until("reason> ")
    terminal.type("use the other file\n")
    code, shown = terminal.end()
    assert (code, "  -> not run: denied\n" in shown) == (0, True)
    (session,) = json.loads(server.home.kedge("sessions", "list", "--host", server.host, "--json").out)
    told = server.home.kedge("sessions", "show", "--host", server.host, "--json", session["id"]).out
    assert "Their reason: use the other file" in told
    assert not (server.home.workspace / "a.txt").exists()


def test_only_a_listed_letter_typed_after_the_prompt_answers(server: Server) -> None:
    terminal = at_terminal(server, write())
    terminal.type("y\n")  # before the prompt
    for wrong in ("\n", "yes\n", "q\n"):
        terminal.until(ASKED)
        terminal.type(wrong)
        terminal.until("(type one of y, s, a, n, m, then Enter)")
    terminal.until(ASKED)
    terminal.type("\x04")
    code, shown = terminal.end()
    assert (code, "  -> not run: denied\n" in shown) == (0, True)
    assert not (server.home.workspace / "a.txt").exists()


def test_prompt_closes_when_answered_by_another_client(server: Server) -> None:
    terminal = at_terminal(server, write())
    terminal.until(ASKED)
    (asked,) = approvals(server)["approvals"]
    done = server.home.kedge("approvals", "allow", asked["id"], "--always", "--host", server.host)
    assert (done.code, done.out) == (0, f"{asked['id']}: always allowed: {asked['description']}\n")
    code, shown = terminal.end()
    assert code == 0
    assert "(answered by another client: always allowed)\n" in shown
    assert (server.home.workspace / "a.txt").exists()


def test_ctrl_c_at_an_approval_prompt_cancels_the_run(server: Server) -> None:
    terminal = at_terminal(server, write())
    terminal.until(ASKED)
    terminal.type("\x03")
    code, shown = terminal.end()
    assert code == 130
    assert "(withdrawn)\n" in shown
    assert "kedge: the run was cancelled\n" in shown
    assert approvals(server)["approvals"] == []
    assert not (server.home.workspace / "a.txt").exists()


def test_question_survives_a_server_restart(own_server: Server) -> None:
    terminal = at_terminal(own_server, write())
    terminal.until(ASKED)
    own_server.kill()
    own_server.start()
    terminal.type("y\n")
    # The answer may arrive before the resumed Run waits for it; the question is still asked only once.
    assert terminal.end()[0] == 0
    assert (own_server.home.workspace / "a.txt").exists()


def test_approval_prompt_escapes_control_characters(server: Server) -> None:
    evil = "ok \u202egnp.exe\u200b \x1b[2J\u2066end"
    terminal = at_terminal(server, write("a.txt", evil))
    shown = terminal.until(ASKED)
    assert "ok \\u{202e}gnp.exe\\u{200b} \\u{1b}[2J\\u{2066}end" in shown
    assert not {"\u202e", "\u200b", "\u2066"} & set(shown)
    terminal.type("n\n")
    assert terminal.end()[0] == 0


def test_question_is_answered_by_number_or_text(server: Server) -> None:
    options = [{"label": "red", "description": "like fire"}, {"label": "blue"}]
    questions = [{"question": "Which colour?", "options": options}, {"question": "Why?"}]
    terminal = at_terminal(server, f"script: tool question {json.dumps({'questions': questions})} | say last")
    shown = terminal.until("(Enter to skip)> ")
    assert "  Which colour?\n    1  red: like fire\n    2  blue\n" in shown
    terminal.type("3\n")
    terminal.until("(there is no option 3)")
    terminal.until("(Enter to skip)> ")
    terminal.type("2\n")
    terminal.until("your answer (Enter to skip)> ")
    terminal.type("it is calm\n")
    assert terminal.end()[0] == 0
    (session,) = json.loads(server.home.kedge("sessions", "list", "--host", server.host, "--json").out)
    told = server.home.kedge("sessions", "show", "--host", server.host, "--json", session["id"]).out
    assert "Which colour?\\nAnswer: blue" in told
    assert "Why?\\nAnswer: it is calm" in told


# --- without a terminal ---------------------------------------------------------------------------------------------


def test_f8_approval_without_a_terminal_is_exit_3(server: Server) -> None:
    done = server.home.kedge("run", "--host", server.host, write())
    assert done.code == 3
    assert done.err.startswith("kedge: write needs approval, and there is no user to ask")
    assert done.err.endswith("Allow it with --allow 'edit(a.txt)' or --mode edits.\n")
    assert done.err.count("\n") == 1
    assert not (server.home.workspace / "a.txt").exists()


@pytest.mark.parametrize("flags", [["--allow", "write(*.txt)"], ["--allow", "view", "--allow", "write"], ["--yolo"]])
def test_call_allowed_by_a_flag_needs_no_approval(server: Server, flags: list[str]) -> None:
    done = server.home.kedge("run", "--host", server.host, *flags, write())
    assert (done.code, done.err) == (0, "")
    assert (server.home.workspace / "a.txt").exists()


def test_deny_rule_overrides_allow_rules(server: Server) -> None:
    done = server.home.kedge("run", "-v", "--host", server.host, "--yolo", "--deny", "write(a.*)", write())
    assert done.code == 0
    assert "  -> not run: the rule write(a.*) denies it" in done.err
    assert not (server.home.workspace / "a.txt").exists()


def test_verbose_prints_each_call_and_its_result(server: Server) -> None:
    script = 'script: tool write {"path": "n.txt", "content": "x"} | tool view {"path": "none"} | usage 10 2 | say last'
    done = server.home.kedge("run", "-v", "--host", server.host, "--yolo", script)
    lines = done.err.splitlines()
    assert "* write n.txt" in lines
    assert "* view none" in lines
    assert any(line.endswith("+1 -0") for line in lines)
    assert any("failed: " in line for line in lines)
    assert "tokens in" in lines[-1]


def test_retry_is_reported_and_the_run_continues(server: Server) -> None:
    done = server.home.kedge("run", "-v", "--host", server.host, "script: fail 503 retry-after=0 times=1 | say there")
    assert (done.code, done.out) == (0, "there\n")
    assert "retrying in 1 s (attempt 2 of 5)" in done.err
