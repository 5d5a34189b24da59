"""Rules for commands, checked with corpora of shell lines: must ask, covered by a rule, denied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kedge.core.approvals import Intent, Permit, Rules, parse_rules, permit
from kedge.tools.command_parts import intent_parts
from kedge.tools.shell_parser import commands_of
from kedge.tools.strict_line import parse_strictly
from proof.figures import proof

HERE = Path(__file__).parent
#: A workspace without files.
ROOT = Path("/w")
#: Lines each corpus has at least, so that none is lost unnoticed.
MUST_ASK_MIN = 600
ALLOWED_MIN = 60
DENIED_MIN = 100


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


def intent_of(command: str) -> Intent:
    strict = parse_strictly(command)
    # The rules alone: no command is read-only here.
    read_only = (False,) * len(strict.parts) if strict is not None else ()
    return Intent(
        names=("bash",),
        action="execute",
        subject=command,
        description="",
        path="",
        params="",
        binding="",
        parts=intent_parts(command, strict, read_only, ROOT, ROOT),
        commands=commands_of(command),
    )


def said(command: str, rules: Rules, *, skip: bool = False) -> Permit:
    return permit(intent_of(command), rules, (), skip=skip)


@pytest.mark.proof
def test_every_trick_needs_approval() -> None:
    lines = corpus("corpus_must_ask.txt")
    with proof("G14", "shell lines that must ask", "bypasses") as figure:
        wrong = [command for rules, command in lines if said(command, parse_rules(rules, ())).decision != "ask"]
        figure.count, figure.wrong = len({command for _, command in lines}), len(wrong)
        assert wrong == []
        assert figure.count >= MUST_ASK_MIN


def test_plain_commands_are_covered_by_their_rule() -> None:
    lines = corpus("corpus_allowed.txt")
    assert len(lines) >= ALLOWED_MIN
    wrong = [command for rules, command in lines if said(command, parse_rules(rules, ())).decision != "allow"]
    assert wrong == []


def test_denied_command_is_found_anywhere_in_the_line() -> None:
    lines = corpus("corpus_denied.txt")
    assert len(lines) >= DENIED_MIN
    # Approvals are skipped and bash is allowed, so only the deny rule can refuse the command.
    wrong = [
        command
        for rules, command in lines
        if said(command, parse_rules(("bash",), rules), skip=True).decision != "deny"
    ]
    assert wrong == []


@pytest.mark.found(
    "seed 0 of the fuzzed commands with a denied one inside",
    "a deny rule missed a command after a line break that begins with a backslash (the grammar takes it for a word of "
    "the command before), one in a subshell that begins like arithmetic, and one after an assignment in the text of a "
    "trap; such lines are read a second time, and a text is read whole",
)
@pytest.mark.parametrize(
    "command",
    [
        "true\n\\rm x",
        "echo hi \n\\rm x",
        "true\n\\\nrm x",
        "sh -c 'true\n\\rm x'",
        "true\n\\r\\m x | cat",
        "(( rm x ) > out)",
        "((rm x); true)",
        "echo $(( rm x ) ; true)",
        "(( true; env rm x ) > out 2>&1)",
        "trap 'A=1 rm x' EXIT",
        "trap 'A=1 B=2 rm *' EXIT",
        "trap '(rm)' EXIT",
        "su --command='A=1 rm x'",
    ],
)
def test_denied_command_cannot_hide_from_the_grammar(command: str) -> None:
    assert said(command, parse_rules(("bash",), ("bash(rm *)",)), skip=True).decision == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "echo $((x + 1)) $(( (x) * 2 ))",
        "echo $(($x + 1)); ((i++)); (( i > 3 ))",
        "echo 'a\n\\rm x'",
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
def test_deny_rule_spares_other_commands(command: str) -> None:
    assert said(command, parse_rules((), ("bash(rm *)", "bash(git push *)"))).decision == "ask"


def test_very_long_line_needs_approval() -> None:
    allow = parse_rules(("bash(echo *)",), ())
    assert said("echo " + "a" * 100, allow).decision == "allow"
    for line in ("echo " + "a" * 20_000, "echo " + "a " * 20_000, "echo " + "\\a" * 20_000, "echo '" + "a" * 200_000):
        assert said(line, allow).decision == "ask"


@pytest.mark.parametrize(
    ("pattern", "command", "expected"),
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
def test_wildcard_covers_python_only_after_a_module(pattern: str, command: str, expected: str) -> None:
    assert said(command, parse_rules((f"bash({pattern})",), ())).decision == expected


def test_allowing_every_command_allows_every_command() -> None:
    allow = parse_rules(("bash",), ())
    for command in ("env rm x", "a; b", "find . -delete", "(unclosed"):
        assert said(command, allow).decision == "allow"
