"""Rules for commands, held against corpora of shell lines: what must ask, what a rule covers, what must be denied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kedge.core.approvals import Intent, Permit, Rules, parse_rules, permit
from kedge.tools.shell_words import read_line

HERE = Path(__file__).parent
#: Lines each corpus has at least, so that none is lost unnoticed.
MUST_ASK_MIN = 320
ALLOWED_MIN = 40
DENIED_MIN = 40


def corpus(name: str) -> list[tuple[tuple[str, ...], str]]:
    """(rules, command) for each line."""
    found: list[tuple[tuple[str, ...], str]] = []
    rules: tuple[str, ...] = ()
    for line in (HERE / name).read_text("utf-8").split("\n"):
        if line.startswith("== "):
            rules = tuple(line.removeprefix("== ").split(" | "))
        elif line.strip() and not line.startswith("## "):
            found.append((rules, re.sub(r"<U\+([0-9A-F]{4,6})>", lambda code: chr(int(code[1], 16)), line)))
    return found


def said(command: str, rules: Rules, *, skip: bool = False) -> Permit:
    line = read_line(command)
    intent = Intent(
        names=("bash",),
        action="execute",
        subject=command,
        description="",
        path="",
        params="",
        binding="",
        words=line.words,
        commands=line.commands,
        exact_only=line.runs_others,
    )
    return permit(intent, rules, (), skip=skip)


def test_every_trick_is_put_to_people() -> None:
    lines = corpus("corpus_must_ask.txt")
    assert len({command for _, command in lines}) >= MUST_ASK_MIN
    wrong = [command for rules, command in lines if said(command, parse_rules(rules, ())).leave != "ask"]
    assert wrong == []


def test_plain_commands_are_covered_by_their_rule() -> None:
    lines = corpus("corpus_allowed.txt")
    assert len(lines) >= ALLOWED_MIN
    wrong = [command for rules, command in lines if said(command, parse_rules(rules, ())).leave != "allow"]
    assert wrong == []


def test_a_denied_command_is_found_wherever_it_stands_in_the_line() -> None:
    lines = corpus("corpus_denied.txt")
    assert len(lines) >= DENIED_MIN
    # Nobody is asked here, and the command is allowed besides: only the deny rule stands in the way.
    wrong = [
        command for rules, command in lines if said(command, parse_rules(("bash",), rules), skip=True).leave != "deny"
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "echo rm x",
        "git commit -m 'rm x'",
        "grep rm x",
        "git status; ls | head",
        "for i in a b; do echo $i; done",
        '"$VENV/bin/python" -m pytest',
        "bash scripts/build rm",
        "cat <<E\nrm x\nE",
        "(unclosed",
    ],
)
def test_a_deny_rule_leaves_other_commands_alone(command: str) -> None:
    assert said(command, parse_rules((), ("bash(rm *)", "bash(git push *)"))).leave == "ask"


def test_a_very_long_line_asks() -> None:
    allow = parse_rules(("bash(echo *)",), ())
    assert said("echo " + "a" * 100, allow).leave == "allow"
    for line in ("echo " + "a" * 20_000, "echo " + "a " * 20_000, "echo " + "\\a" * 20_000, "echo '" + "a" * 200_000):
        assert said(line, allow).leave == "ask"


@pytest.mark.parametrize(
    ("pattern", "command", "leave"),
    [
        ("python -m pytest *", "python -m pytest -q", "allow"),
        ("python *", "python -m pytest -q", "ask"),
        ("python -m *", "python -m pytest -q", "ask"),
        ("python -m py*", "python -m pytest", "ask"),
        ("* -m pytest *", "python -m pytest", "ask"),
        ("python -m pytest *", "python -m http.server", "ask"),
        ("python -m pytest *", "python x.py", "ask"),
        ("env python -m pytest *", "env python -m pytest -q", "ask"),
        ("env python -m pytest", "env python -m pytest", "allow"),
    ],
)
def test_a_wildcard_covers_a_program_that_runs_code_only_behind_a_named_module(
    pattern: str, command: str, leave: str
) -> None:
    assert said(command, parse_rules((f"bash({pattern})",), ())).leave == leave


def test_allowing_every_command_allows_every_command() -> None:
    allow = parse_rules(("bash",), ())
    for command in ("env rm x", "a; b", "find . -delete", "(unclosed"):
        assert said(command, allow).leave == "allow"
