"""Modes: what passes, asks and is refused in each, and how a session's mode changes with its Runs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kedge.core.approvals import Grant, Intent, IntentPart, Rules, parse_rules
from kedge.core.modes import MODES, Mode, narrower, permit_in_mode, remedy
from kedge.core.records import RunOptions, SessionRecord

MAKE = (IntentPart(("make",)),)
COMMAND = Intent(("bash",), "execute", "make", "$ make", "/w", "{}", "b", parts=MAKE, commands=(("make",),))
EDIT = Intent(("edit",), "write", "src/a.py", "Edit src/a.py", "/w/src/a.py", "{}", "b", grant="edit(**)")
GUARDED = replace(EDIT, subject=".envrc", path="/w/.envrc", exact_only=True, grant="")
OUTSIDE = replace(EDIT, subject="/etc/hosts", path="/etc/hosts", exact_only=True, grant="")
VIEW = Intent(("view",), "read", "a.py", "view a.py", "/w/a.py", "{}", "b", needs_approval=False)
FETCH = Intent(("fetch",), "fetch", "example.org", "Fetch", "", "{}", "b")
NO_RULES = Rules()
SESSION = SessionRecord("s", "w", "t", 1, 1)


SECRET_COMMAND = replace(COMMAND, exact_only=True)


def decisions(mode: Mode, rules: Rules = NO_RULES) -> list[str]:
    intents = (VIEW, FETCH, EDIT, GUARDED, OUTSIDE, COMMAND, SECRET_COMMAND)
    return [permit_in_mode(mode, intent, rules, (), can_confine=True).decision for intent in intents]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("plan", "allow ask refuse refuse refuse refuse refuse"),
        ("ask", "allow ask ask ask ask ask ask"),
        ("edits", "allow ask allow ask ask ask ask"),
        ("auto", "allow ask allow ask ask allow ask"),
        ("yolo", "allow allow allow allow allow allow allow"),
    ],
)
def test_decision_depends_on_the_mode(mode: Mode, expected: str) -> None:
    assert " ".join(decisions(mode)) == expected


def test_commands_in_mode_auto_are_confined_or_refused() -> None:
    assert permit_in_mode("auto", COMMAND, NO_RULES, (), can_confine=True).confinement == "workspace"
    refused = permit_in_mode("auto", COMMAND, NO_RULES, (), can_confine=False)
    assert (refused.decision, "kedge doctor" in refused.reason) == ("refuse", True)
    exact = permit_in_mode("auto", COMMAND, parse_rules(["bash(make)"], []), (), can_confine=True)
    assert (exact.decision, exact.confinement) == ("allow", "configured"), "the user's rule names exactly this command"


@pytest.mark.parametrize("mode", MODES)
def test_leaving_the_sandbox_asks_despite_rules_and_grants(mode: Mode) -> None:
    escalated = replace(COMMAND, escalation="needs the network", grant="bash(make)")
    grants = (Grant("g", "w", "", "bash(make)", 1),)
    rules = parse_rules(["bash(make)", "bash", "*"], [])
    for intent in (escalated, replace(escalated, needs_approval=False)):
        expected = {"plan": "refuse", "yolo": "allow"}.get(mode, "ask")
        assert permit_in_mode(mode, intent, rules, grants, can_confine=True).decision == expected
    unshown = permit_in_mode(mode, replace(escalated, unshown="it is too long"), rules, grants, can_confine=True)
    assert unshown.decision == ("allow" if mode == "yolo" else "refuse")
    assert permit_in_mode(mode, escalated, parse_rules([], ["bash"]), grants, can_confine=True).decision == "deny"


@pytest.mark.parametrize(
    ("intent", "expected"),
    [
        (EDIT, "Allow it with --allow 'edit(src/a.py)' or --mode edits."),
        (GUARDED, "Allow it with --allow 'edit(.envrc)'."),
        (FETCH, "Allow it with --allow 'fetch(example.org)'."),
        (COMMAND, "Allow it with --allow 'bash(make)' or --mode auto."),
        (replace(COMMAND, parts=None, commands=((None,),)), "Allow it with --mode auto."),
        (replace(COMMAND, parts=(IntentPart(("it's",)),), commands=(("it's",),)), "Allow it with --mode auto."),
        (replace(EDIT, subject="*", exact_only=True), "No rule covers it:"),
        (replace(GUARDED, subject="x" * 1000), "No rule covers it:"),
        (replace(COMMAND, escalation="network"), "No rule covers it:"),
    ],
)
def test_remedy_names_the_narrowest_rule_and_mode(intent: Intent, expected: str) -> None:
    assert remedy(intent, can_confine=True).startswith(expected)
    assert "--mode auto" not in remedy(intent, can_confine=False)


@pytest.mark.parametrize("mode", MODES)
def test_deny_rules_hold_in_every_mode(mode: Mode) -> None:
    assert set(decisions(mode, parse_rules(["*"], ["*"]))) == {"deny"}


def test_allow_rules_do_not_hold_in_plan_mode() -> None:
    assert decisions("plan", parse_rules(["*", "bash"], [])) == ["allow", "allow", *["refuse"] * 5]


def test_narrower_mode_is_the_one_that_allows_less() -> None:
    assert narrower("yolo", "plan") == narrower("plan", "ask") == "plan"
    assert narrower("auto", "edits") == "edits"


def test_mode_of_a_run_lasts_until_its_end() -> None:
    started = SESSION.with_mode_of(RunOptions(mode="yolo"))
    assert (started.mode, started.with_own_mode().mode) == ("yolo", "ask")
    assert SESSION.with_mode_of(RunOptions()) == SESSION


def test_switch_during_a_run_outlasts_the_run() -> None:
    switched = SESSION.with_mode_of(RunOptions(mode="yolo")).with_mode("plan")
    assert (switched.mode, switched.with_own_mode().mode) == ("plan", "plan")


def test_joining_prompt_never_widens_the_mode() -> None:
    """A prompt without a mode has the session's own; the host's mode is not for it."""
    host = SESSION.with_mode_of(RunOptions(mode="yolo"))
    assert host.with_mode_joined(RunOptions()).mode == "ask"
    assert host.with_mode_joined(RunOptions(mode="edits")).mode == "edits"
    assert host.with_mode_joined(RunOptions(mode="yolo")).mode == "yolo"
    joined = SESSION.with_mode_joined(RunOptions(mode="plan"))
    assert (joined.mode, joined.with_own_mode().mode) == ("plan", "ask")
    assert SESSION.with_mode_joined(RunOptions(mode="yolo")) == SESSION
