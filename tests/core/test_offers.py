"""Offers: the rules that an approval proposes, and the check of rules that the user edited."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.core.approvals import IntentPart
from kedge.core.offers import checked_grants, offers_of
from kedge.errors import Invalid
from kedge.tools.command_parts import intent_parts
from kedge.tools.strict_line import parse_strictly

ROOT = Path("/w")


def parts_of(line: str, *, reading: str = "tail head cd") -> tuple[IntentPart, ...]:
    strict = parse_strictly(line)
    assert strict is not None
    read_only = tuple(part.name in reading.split() for part in strict.parts)
    parts = intent_parts(line, strict, read_only, ROOT, ROOT)
    assert parts is not None
    return parts


def test_approval_offers_exact_and_wider_rules() -> None:
    expected: dict[str, tuple[tuple[str, ...], ...]] = {
        "npm test": (("bash(npm test)",), ("bash(npm test *)",)),
        "cd sub && npm test 2>&1 | tail": (("bash(npm test) in sub",), ("bash(npm test *) in sub",)),
        "npm test && pytest -x": (("bash(npm test)", "bash(pytest -x)"), ("bash(npm test *)", "bash(pytest *)")),
        "npm test && ./x.sh": (("bash(npm test)", "bash(./x.sh)"), ("bash(npm test *)", "bash(./x.sh)")),
        "uv run pytest -q": (("bash(uv run pytest -q)",), ("bash(uv run pytest *)",)),
        # No rule covers exactly a line with quoted words.
        "git commit -m 'a b'": (("bash(git commit *)",),),
        "git commit -m 'a b' && npm test": (("bash(git commit *)", "bash(npm test *)"),),
        "git reset 'a b'": (),
        "cd /tmp": (),
        "cd sub/x; npm test": (("bash(npm test) in sub/x",), ("bash(npm test *) in sub/x",)),
        # These are never offered with a wildcard.
        "rm -r build": (("bash(rm -r build)",),),
        "git push origin main": (("bash(git push origin main)",),),
        # What a wildcard covers runs without a network.
        "npm install": (("bash(npm install)",),),
        "uv sync --frozen": (("bash(uv sync --frozen)",),),
        "git fetch origin": (("bash(git fetch origin)",),),
        "git pull": (("bash(git pull)",),),
        "python x.py": (("bash(python x.py)",),),
        "pytest -p evil": (("bash(pytest -p evil)",),),
        "mytool x": (("bash(mytool x)",),),
        "mytool 'a b'": (),
        "npm test; echo $HOME": (),
        "a; b; c; d; e; f": (),
        "tail x": (),
    }
    assert {line: offers_of(parts_of(line)) for line in expected} == expected


def test_edited_rules_must_cover_the_line() -> None:
    line = parts_of("cd sub && npm run test:unit && pytest -x | tail")
    assert checked_grants(line, ("bash(npm run test:*)", "bash(pytest *) in sub")) == (
        "bash(npm run test:*) in sub",
        "bash(pytest *) in sub",
    )
    assert checked_grants(line, ("bash(npm *)", "bash(pytest -x)"))
    refused = {
        ("bash(npm *)",): "No rule covers 'pytest -x'",
        ("bash(npm *)", "bash(pytest *)", "bash(rm *)"): "'bash(rm *)' does not cover",
        ("bash(npm *) in other", "bash(pytest *)"): "does not cover",
        ("bash",): "is not a rule for a command",
        ("edit(**)",): "is not a rule for a command",
        ("bash(*)",): "write bash to allow",
        ("bash(* -x)",): "must name its program",
        ("bash(npm run test:unit && pytest -x)",): "a rule covers a single command; write one rule for each.",
        ("Bash(pytest *)",): "did you mean bash(pytest *)?",
        ("bash(pytest $X)",): "is not a rule for a command",
    }
    for rules, reason in refused.items():
        with pytest.raises(Invalid) as caught:
            checked_grants(line, rules)
        assert reason in str(caught.value), rules
    for command, rule in {"python x.py": "bash(python *)", "pytest -p x": "bash(pytest *)"}.items():
        with pytest.raises(Invalid, match="wider than a rule may be"):
            checked_grants(parts_of(command), (rule,))
