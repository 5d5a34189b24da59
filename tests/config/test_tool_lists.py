"""Lists of tools of other programs: translated exactly or narrower, else reported."""

from __future__ import annotations

import pytest

from kedge.config.tool_lists import listed_tools, rules_in, tool_names_in
from kedge.core.approvals import parse_rule
from kedge.errors import Invalid


def test_entries_are_separated_by_commas_or_blanks() -> None:
    expected = ("Bash(git add:*)", "Read", "Edit(a, b)")
    assert listed_tools("Bash(git add:*), Read, Edit(a, b)") == expected
    assert listed_tools("Bash(git add:*) Read Edit(a, b)") == expected
    assert listed_tools(expected) == expected


@pytest.mark.parametrize("value", ["Bash(git", "Bash(a(b))", ")", True, {"a": "b"}, "x, " * 200, "x" * 2000])
def test_other_values_are_refused(value: str) -> None:
    with pytest.raises(Invalid):
        listed_tools(value)


@pytest.mark.parametrize(
    ("entry", "rule"),
    [
        ("Bash(git status:*)", "bash(git status *)"),
        ("Bash(npm run build)", "bash(npm run build)"),
        ("Bash(npm run *)", "bash(npm run *)"),
        ("Bash", "bash"),
        ("Read", "view"),
        ("Read(~/notes/**)", "view(~/notes/**)"),
        ("Edit(src/**)", "edit(./src/**)"),
        ("Edit(**)", "edit(./**)"),
        ("WebFetch(domain:example.org)", "fetch(example.org)"),
        ("bash(git log *)", "bash(git log *)"),
        ("mcp__github__search", "mcp(github/search)"),
        ("mcp__github", "mcp(github/*)"),
    ],
)
def test_translation(entry: str, rule: str) -> None:
    assert rules_in((entry,)) == ((rule,), ())


@pytest.mark.parametrize(
    "entry",
    [
        "Bash(*)",  # not `bash`: a pattern of the file must not become a rule without one
        "Bash(:*)",
        "Bash(git * main)",
        "Bash(ls *.py:*)",
        "Bash(rm ?)",  # literal there, a wildcard here
        "Bash(rm [ab]:*)",
        "Bash(git add:*; rm -rf .)",
        "Bash(a && b)",
        "Edit(/etc/**)",
        "Edit(//etc/**)",
        "Edit(../x)",
        "WebFetch(https://example.org)",
        "WebFetch(domain:*)",
        "WebSearch",
        "Task(reviewer)",
        "*",
        "bash*",
    ],
)
def test_entry_without_equivalent_is_reported_not_widened(entry: str) -> None:
    assert rules_in((entry,)) == ((), (entry,))


def test_pattern_of_a_path_stays_in_the_workspace() -> None:
    (rule,), _ = rules_in(("Edit(**)",))
    assert parse_rule(rule).matches_path("src/a.py")
    assert not parse_rule(rule).matches_path("/etc/passwd")


def test_tools_of_agents_have_no_patterns() -> None:
    names, unknown = tool_names_in(
        ("Read", "bash", "Bash(git:*)", "mcp__x__y", "mcp__z__*", "mcp__*", "NotebookEdit", "Read")
    )
    assert (names, unknown) == (("view", "bash", "mcp__x__y", "mcp__z"), ("Bash(git:*)", "mcp__*", "NotebookEdit"))
