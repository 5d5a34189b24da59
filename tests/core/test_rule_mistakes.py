"""Rules that never match are refused, with a suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.config.load import load_user_layer
from kedge.config.rule_checks import ineffective_rules
from kedge.core.approvals import parse_rules
from kedge.core.rule_mistakes import TOOL_NAMES, check_rules
from kedge.errors import BadConfig, Invalid
from kedge.tools.registry import all_tools

MISTAKES = {
    "Bash(npm test)": "did you mean bash(npm test)?",
    "Bash(npm run test:*)": "did you mean bash(npm run test *)?",
    "Read(src/**)": "did you mean view(src/**)?",
    "WebFetch": "did you mean fetch?",
    "bahs(make)": "did you mean bash(make)?",
    "xyz(a)": "the tools are bash, ",
    "bash(make | tail)": "write one rule for each",
    "bash(make && make test)": "write one rule for each",
    "bash(make test 2>&1)": "remove them",
    "bash('git' status)": "remove the quotes",
    "bash(CI=1 make)": "write the command alone",
    "bash(~/bin/x)": "write bash(x *)",
    "bash($HOME/x)": "write bash(x *)",
    "bash(npm:*)": "write bash(npm *)",
    "bash(*)": "write bash to allow every command",
    "bash(* --version)": "must name its program",
    "fetch(https://x.example/a)": "write the host name alone",
    "view(../x)": "write the absolute path",
    "view(~other/x)": "write the absolute path",
}


@pytest.mark.found(
    "attack round 2: command lines",
    "deny rules such as bash(rm:*), bash(~/bin/deploy *) and bash(A=1 rm *) never match, which was not reported; they "
    "are refused",
)
def test_rule_that_never_matches_is_refused_with_a_suggestion() -> None:
    for rule, suggestion in MISTAKES.items():
        with pytest.raises(Invalid) as caught:
            check_rules((rule,), ())
        assert suggestion in str(caught.value), rule
    check_rules(
        ("bash", "bash(npm run test:*)", "bash(git *)", "edit(src/**)", "*", "view(~/x)", "m*"),
        (
            "bash(* --force)",
            "bash(rm*)",
            "bash(cat ~/x)",
            "bash(rm $HOME *)",
            "bash(dd if=x *)",
            "fetch(*.example.org)",
        ),
    )


def test_configuration_names_line_and_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[permissions]\nallow = [\n  "bash(make)",\n  "Bash(npm test)",\n]\n')
    with pytest.raises(BadConfig, match=r"config.toml, line 4: permissions.allow: .*did you mean bash\(npm test\)\?$"):
        load_user_layer(file)


def test_wildcard_that_covers_nothing_is_reported() -> None:
    rules = parse_rules(
        ["bash(curl *)", "bash(python *)", "bash(npx *)", "bash(npm *)", "bash(uv run pytest *)", "bash(x *)"], []
    )
    assert [str(rule) for rule, _ in ineffective_rules(rules)] == ["bash(curl *)", "bash(python *)", "bash(npx *)"]


def test_rules_know_all_tools() -> None:
    extensions = {"skill", "mcp"}
    assert set(TOOL_NAMES) == {tool.name for tool in all_tools()} | extensions


def test_rules_for_tools_of_mcp_servers() -> None:
    check_rules(("mcp(a/b)", "mcp(a/*)", "mcp"), ("mcp(a)", "mcp(a/b)"))
    with pytest.raises(Invalid, match=r"write mcp\(a/\*\)"):
        check_rules(("mcp(a)",), ())
    with pytest.raises(Invalid, match=r"did you mean mcp\(a/b\)\?"):
        check_rules(("mcp__a__b",), ())
