"""Approvals: rules, grants, and their precedence."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kedge.core.approvals import (
    BY_RULE,
    RULE_CHARS_MAX,
    Ask,
    Grant,
    Intent,
    IntentPart,
    Permit,
    Rule,
    Rules,
    granted_in,
    hides_files,
    is_hidden,
    parse_rule,
    parse_rules,
    permit,
    rule_of,
    words_match,
)
from kedge.core.patterns import path_matches
from kedge.errors import Invalid

COMMAND = Intent(
    names=("bash",),
    action="execute",
    subject="git status",
    description="$ git status",
    path="/w",
    params="{}",
    binding="b",
    parts=(IntentPart(("git", "status")),),
    commands=(("git", "status"),),
    grant="bash(git status)",
)
EDIT = Intent(
    names=("multiedit", "edit"),
    action="write",
    subject="src/app.py",
    description="edit src/app.py",
    path="/w/src/app.py",
    params="{}",
    binding="b",
    grant="edit(src/app.py)",
)


def decision(intent: Intent, allow: str = "", deny: str = "", *grants: str, skip: bool = False) -> str:
    rules = parse_rules([allow] if allow else [], [deny] if deny else [])
    given = tuple(Grant(f"g{number}", "w", "", rule, 0) for number, rule in enumerate(grants))
    return permit(intent, rules, given, skip=skip).decision


def test_rules_apply_to_every_file_of_a_change() -> None:
    intent = Intent(
        ("rename", "edit"), "write", "src/a.py", "", "/w/src/a.py", "{}", "b", also=("src/b.py", "lib/c.py")
    )
    assert decision(intent, allow="edit(src/**)") == "ask"
    assert decision(intent, allow="edit(**)") == "allow"
    assert decision(intent, allow="edit(**)", deny="edit(lib/**)") == "deny"


# --- rules as text ---


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("bash", Rule("bash")),
        (" bash ", Rule("bash")),
        ("*", Rule("*")),
        ("mcp_*", Rule("mcp_*")),
        ("mcp.files-x", Rule("mcp.files-x")),
        ("bash(git status)", Rule("bash", "git status")),
        ("bash( git status )", Rule("bash", "git status")),
        ("bash(echo (x))", Rule("bash", "echo (x)")),
        ("edit(src/**)", Rule("edit", "src/**")),
    ],
)
def test_a_rule_is_read(text: str, rule: Rule) -> None:
    assert parse_rule(text) == rule


@pytest.mark.parametrize(
    "text", ["", "bash(", "bash()", "bash( )", "bash)", "1x", "a b", "bash(x) y", "b*sh", "x" * (RULE_CHARS_MAX + 1)]
)
def test_what_is_no_rule_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(Invalid, match="is not a valid rule. Examples: bash"):
        parse_rule(text)


def test_a_rule_is_written_as_it_is_read() -> None:
    for text in ("bash", "bash(git status)", "edit(src/**)"):
        assert str(parse_rule(text)) == text


# --- who is heard first ---


def test_without_a_rule_people_are_asked() -> None:
    assert permit(COMMAND, Rules(), ()) == Permit("ask")


def test_a_deny_rule_stands_above_everything() -> None:
    denied = permit(
        replace(COMMAND, needs_approval=False),
        parse_rules(["bash"], ["bash(git *)"]),
        (Grant("g", "w", "", "bash(git status)", 0),),
        skip=True,
    )
    assert denied == Permit("deny", "the rule bash(git *) denies it")


def test_what_needs_nobodys_leave_is_allowed() -> None:
    assert permit(replace(COMMAND, needs_approval=False), Rules(), ()) == Permit("allow", confinement="read_only")


def test_an_allow_rule_says_which_it_was() -> None:
    rules = parse_rules(["edit", "bash(git status)"], [])
    assert permit(COMMAND, rules, ()) == Permit("allow", "the rule bash(git status) allows it")


def test_a_grant_covers_exactly_what_it_was_given_for() -> None:
    assert decision(COMMAND, "", "", "bash(ls)", "bash(git status)") == "allow"
    assert decision(COMMAND, "", "", "bash(git log)", "bash", "bash(git status) in sub") == "ask"
    grant = Grant("g", "w", "s", "bash(git status)", 0, given_by="c")
    assert permit(COMMAND, Rules(), (grant,)).reason == "it was allowed before: bash(git status)"
    assert decision(EDIT, "", "", "edit(src/other.py)") == "ask"
    assert decision(EDIT, "", "", "edit(src/app.py)") == "allow"


def test_a_grant_of_nothing_covers_nothing() -> None:
    assert decision(replace(EDIT, grant=""), "", "", "") == "ask"


def test_skipping_approvals_allows_what_no_rule_denies() -> None:
    assert permit(COMMAND, Rules(), (), skip=True) == Permit("allow", "approvals are skipped")
    assert decision(COMMAND, "", "bash(git status)", skip=True) == "deny"


# --- what a rule covers ---


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("bash", "allow"),
        ("*", "allow"),
        ("ba*", "allow"),
        ("edit", "ask"),
        ("edit(git status)", "ask"),
        ("bash(git status)", "allow"),
        ("bash(git *)", "allow"),
        ("bash(git stat?s)", "allow"),
        ("bash(g[i]t status)", "ask"),
        ("bash(git)", "ask"),
        ("bash(git log)", "ask"),
    ],
)
def test_an_allow_rule_for_commands(rule: str, expected: str) -> None:
    assert decision(COMMAND, rule) == expected


def test_only_the_bare_name_covers_a_complex_line() -> None:
    line = replace(COMMAND, parts=None)
    assert decision(line, "bash(git status)") == "ask"
    assert decision(line, "bash(*)") == "ask"
    assert decision(line, "bash") == "allow"


@pytest.mark.parametrize(
    ("rule", "words", "spelled", "expected"),
    [
        ("bash(env *)", "env a", 0, "ask"),
        ("bash(env ?)", "env a", 0, "ask"),
        ("bash(env a)", "env a", 0, "allow"),
        ("bash", "env a", 0, "allow"),
        ("bash(python -m pytest *)", "python -m pytest -q", 3, "allow"),
        ("bash(python -m *)", "python -m pytest", 3, "ask"),
        ("bash(python *)", "python -m pytest", 3, "ask"),
        ("bash(pyth* -m pytest *)", "python -m pytest", 3, "ask"),
        ("bash(python -m)", "python -m", 3, "allow"),
        ("bash(* --version)", "x --version", 1, "ask"),
        ("bash(x --v*)", "x --version", 1, "allow"),
    ],
)
def test_wildcard_must_spell_the_program(rule: str, words: str, spelled: int, expected: str) -> None:
    part = IntentPart(tuple(words.split()), exact_only=not spelled, spelled=spelled)
    assert decision(replace(COMMAND, parts=(part,)), rule) == expected


def test_line_is_allowed_if_each_part_is() -> None:
    reading = IntentPart(None, is_read_only=True)
    test, build = IntentPart(("npm", "test")), IntentPart(("npm", "run", "build"), directory="sub")

    def decided(*parts: IntentPart, allow: str = "", grant: str = "bash(x)") -> str:
        rules = parse_rules([f"bash({pattern})" for pattern in allow.split(", ") if pattern], [])
        result = permit(replace(COMMAND, parts=parts), rules, (Grant("g", "w", "", grant, 0),))
        return result.confinement if result.decision == "allow" else result.decision

    assert decided(reading, test, reading, allow="npm test") == "configured"
    assert decided(reading, test, allow="npm *") == "workspace"
    assert decided(test, build, allow="npm test, npm run *") == "workspace"
    assert decided(test, build, allow="npm *, npm test, npm run build") == "configured"
    assert decided(test, build, allow="npm test") == "ask"
    assert decided(test, IntentPart(None), allow="npm *") == "ask"
    assert decided(reading, build, grant="bash(npm run build) in sub") == "configured"
    assert decided(reading, build, grant="bash(npm run *) in sub") == "workspace"
    for grant in ("bash(npm run build)", "bash(npm run build) in other", "bash", "edit(**)"):
        assert decided(reading, build, grant=grant) == "ask"
    assert decided() == "ask"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("edit", "allow"),
        ("multiedit", "allow"),
        ("view", "ask"),
        ("edit(src/app.py)", "allow"),
        ("edit(src/*)", "allow"),
        ("edit(**)", "allow"),
        ("edit(*)", "ask"),
        ("edit(tests/**)", "ask"),
    ],
)
def test_an_allow_rule_for_files(rule: str, expected: str) -> None:
    assert decision(EDIT, rule) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("edit", "ask"), ("edit(**)", "ask"), ("edit(.git/hook?)", "ask"), ("edit(.git/hooks)", "allow")],
)
def test_protected_files_need_an_exact_rule(rule: str, expected: str) -> None:
    assert decision(replace(EDIT, subject=".git/hooks", exact_only=True), rule) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("edit", "deny"),
        ("multiedit", "deny"),
        ("edit(src/**)", "deny"),
        ("edit(tests/**)", "ask"),
        ("view", "ask"),
        ("*", "deny"),
    ],
)
def test_a_deny_rule_for_files(rule: str, expected: str) -> None:
    assert decision(EDIT, "", rule) == expected


def test_a_deny_rule_looks_at_every_command_of_a_line() -> None:
    line = replace(COMMAND, parts=None, commands=(("true",), ("rm", "x")))
    assert decision(line, "bash", "bash(rm *)") == "deny"
    assert decision(line, "bash", "bash(mv *)") == "allow"
    assert decision(line, "bash", "bash") == "deny"


# --- words and paths ---


@pytest.mark.parametrize(
    ("pattern", "words", "expected"),
    [
        ("git status", ("git", "status"), True),
        ("git status", ("git", "status", "-s"), False),
        ("git status", ("git",), False),
        ("git *", ("git",), True),
        ("git *", ("git", "a", "b"), True),
        ("git log *", ("git",), False),
        ("git log *", ("git", "status"), False),
        ("*", ("anything",), True),
        ("npm run test:*", ("npm", "run", "test:unit"), True),
        ("npm run test:*", ("npm", "run", "build"), False),
        ("ls *.py", ("ls", "a.py"), True),
        ("ls [a]", ("ls", "[a]"), True),
        ("ls [a]", ("ls", "a"), False),
        ("Git *", ("git",), False),
        # What is not literal may turn out to be anything, and any number of words.
        ("rm *", (None,), True),
        ("rm *", (None, "x"), True),
        ("rm *", ("rm", None), True),
        ("rm *", ("mv", None), False),
        ("rm *", ("rm", "a", "b", None), True),
        ("rm -rf x", (None,), True),
        ("rm -rf x", ("rm", None), True),
        ("rm -rf x", ("rm", "-rf", "x", None), True),
        ("rm -rf x", ("rm", "-rf", "x", "y", None), False),
        ("rm -rf x", ("rm", "-r", None), False),
    ],
)
def test_words(pattern: str, words: tuple[str | None, ...], expected: bool) -> None:
    assert words_match(pattern, words) is expected


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("src/app.py", "src/app.py", True),
        ("src/app.py", "src/appxpy", False),
        ("src/*", "src/a.py", True),
        ("src/*", "src/a/b.py", False),
        ("src/**", "src/a/b.py", True),
        ("**/*.py", "a.py", True),
        ("**/*.py", "x/y/a.py", True),
        ("**/*.py", "x/y/a.txt", False),
        ("src/?.py", "src/a.py", True),
        ("src/?.py", "src/ab.py", False),
        ("app/[slug]/page.tsx", "app/[slug]/page.tsx", True),
        ("app/[slug]/page.tsx", "app/s/page.tsx", False),
        ("src", "src/a", False),
        ("src/*", "src/a\nb", True),
        ("*.example.org", "docs.example.org", True),
        ("*.example.org", "example.org", False),
        ("*.example.org", "evil.org/x.example.org", False),
    ],
)
def test_paths(pattern: str, path: str, expected: bool) -> None:
    assert path_matches(pattern, path) is expected


HOMES = ("/home/u", "/data/u")


@pytest.mark.found(
    "attack 19",
    "deny rules such as view(~/.ssh/**), view(./.env) and view(secret/) were accepted and never matched; they are read "
    "as paths are written",
)
@pytest.mark.parametrize(
    ("rule", "path", "expected"),
    [
        ("view(~/.ssh/**)", "/home/u/.ssh/id", True),
        ("view(~/.ssh/**)", "/data/u/.ssh/id", True),
        ("view(~/.ssh/**)", "/home/other/.ssh/id", False),
        ("view(~/)", "/home/u/x", True),
        ("view(~x/a)", "/home/u/x/a", False),
        ("view(./.env)", ".env", True),
        ("view(./.env)", "src/.env", False),
        ("view(./**)", "src/a", True),
        ("view(./**)", "/etc/passwd", False),
        ("view(./)", "src/a", True),
        ("view(./)", "/etc/passwd", False),
        ("view(.)", ".", True),
        ("view(secret/)", "secret/a/b", True),
        ("view(secret/)", "secrets/a", False),
        ("view(a//./b)", "a/b", True),
        ("view(/)", "/etc/passwd", True),
        ("view(secret**)", "secrets/a", True),
    ],
)
def test_path_rules_are_read_as_paths_are_written(rule: str, path: str, expected: bool) -> None:
    looking = replace(COMMAND, names=("view",), action="read", subject=path, path="")
    assert (permit(looking, parse_rules([], [rule], HOMES), ()).decision == "deny") is expected
    assert (permit(looking, parse_rules([rule], [], HOMES), ()).decision == "allow") is expected
    assert is_hidden(parse_rules([], [rule], HOMES), path) is expected
    assert str(parse_rule(rule, HOMES)) == rule


def test_allow_rule_may_use_the_absolute_path() -> None:
    assert decision(EDIT, "edit(/w/src/**)") == "allow"
    assert decision(EDIT, "edit(/x/**)") == "ask"
    guarded = replace(EDIT, exact_only=True)
    assert decision(guarded, "edit(/w/src/app.py)") == "allow"
    assert decision(guarded, "edit(src/)") == "ask"


def test_an_ask_is_allowed_by_each_of_the_answers_that_allow() -> None:
    ask = Ask("a", "w", "s", "r", "c", "bash", "approval", 0, "", "")
    assert not ask.is_allowed
    for answer in ("allow", "allow_session", "allow_always"):
        assert replace(ask, state="answered", answer=answer).is_allowed
    assert not replace(ask, state="answered", answer="deny").is_allowed
    by_rule = ask.allowed_by_rule("mode yolo", 7)
    assert (by_rule.state, by_rule.is_allowed, by_rule.answered_by, by_rule.answered_at) == (
        "answered",
        True,
        BY_RULE,
        7,
    )


def test_a_file_that_may_not_be_viewed_is_hidden_and_no_other() -> None:
    rules = parse_rules(["view"], ["view(.env)", "bash(rm *)", "grep"])
    assert hides_files(rules)
    assert not hides_files(parse_rules([], ["view", "bash(x)"]))
    assert is_hidden(rules, ".env")
    assert not is_hidden(rules, "src/.env")
    assert not is_hidden(parse_rules([], ["view"]), ".env")


def test_nobody_is_asked_about_what_they_cannot_be_shown() -> None:
    large = replace(COMMAND, unshown="it is too large")
    assert permit(large, Rules(), ()) == Permit("refuse", "it needs an approval, but it is too large")
    assert permit(large, Rules(), (), skip=True).decision == "allow"
    assert permit(large, parse_rules(["bash"], []), ()).decision == "allow"


def test_deny_covers_both_names_of_a_path_and_allow_the_real_one() -> None:
    linked = replace(COMMAND, names=("view",), action="read", subject="real", unresolved="link")
    for pattern in ("real", "link"):
        assert permit(linked, parse_rules([], [f"view({pattern})"]), (), skip=True).decision == "deny"
    assert permit(linked, parse_rules(["view(link)"], []), ()).decision == "ask"


def test_ask_that_a_rule_permits_is_settled_with_the_reason() -> None:
    ask = Ask("ask1", "w1", "s1", "r1", "c1", "bash", "approval", 1, "Run make", "{}")
    settled = ask.allowed_by_rule("the rule bash(make) allows it", 7)
    assert (settled.state, settled.is_allowed, settled.answered_by, settled.answered_at) == (
        "answered",
        True,
        BY_RULE,
        7,
    )
    assert settled.message == "the rule bash(make) allows it"


def test_grant_in_a_directory_has_its_own_name() -> None:
    assert granted_in("bash(make)", "a/b") == "bash(make) in a/b"
    assert rule_of("bash(make) in a/b") == rule_of("bash(make)") == "bash(make)"


@pytest.mark.found(
    "attack round 2: command lines",
    "deny rules such as bash(git push*) and view(secret) left `git push origin` and secret/key alone; they deny "
    "further words, and what is in the directory",
)
def test_deny_rules_are_as_wide_as_they_read() -> None:
    line = replace(COMMAND, parts=None, commands=(("git", "push", "origin"),))
    assert decision(line, "bash", "bash(git push*)") == "deny"
    assert decision(line, "bash", "bash(git pu?h)") == "allow"
    assert decision(replace(line, parts=(IntentPart(("git", "push", "origin")),)), "bash(git push*)") == "ask"
    looking = replace(COMMAND, names=("view",), action="read", subject="secret/a/key", path="/w/secret/a/key")
    for rule, denies in {"secret": True, "/w/secret": True, "**/a": True, "secre": False, "*": False}.items():
        assert (decision(looking, "view", f"view({rule})") == "deny") is denies
        assert decision(looking, f"view({rule})") == "ask"
    assert is_hidden(parse_rules([], ["view(secret)"]), "secret/key")
