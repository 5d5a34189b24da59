"""Warnings about valid rules that match less than they seem to."""

from __future__ import annotations

from collections.abc import Iterator

from kedge.core.approvals import Rule, Rules
from kedge.core.patterns import has_wildcard
from kedge.tools.wildcard_programs import has_wildcard_use


def ineffective_rules(rules: Rules) -> Iterator[tuple[Rule, str]]:
    """Yield each such rule with "problem; remedy"."""
    for rule in rules.deny:
        if problem := _unknown_home(rule) or _denies_bare_command(rule):
            yield rule, problem
    for rule in rules.allow:
        if problem := _unknown_home(rule) or _covers_nothing(rule):
            yield rule, problem


def _denies_bare_command(rule: Rule) -> str:
    if rule.tool != "bash" or rule.pattern is None or has_wildcard(rule.pattern) or len(rule.pattern.split()) > 1:
        return ""
    return f"denies only the command without arguments; write bash({rule.pattern} *)"


def _covers_nothing(rule: Rule) -> str:
    if rule.tool != "bash" or rule.pattern is None or not has_wildcard(rule.pattern):
        return ""
    words = tuple(rule.pattern.split())
    literal = words[: next(index for index, word in enumerate(words) if has_wildcard(word))]
    if has_wildcard_use(literal):
        return ""
    return f"covers nothing: {' '.join(literal)} can run any code; write a rule without a wildcard"


def _unknown_home(rule: Rule) -> str:
    if rule.tool in ("bash", "fetch") or not (rule.pattern or "").startswith("~"):
        return ""
    if rule.homes and not all(map(has_wildcard, rule.homes)):
        return ""
    return "never matches: the home directory is unknown; write the absolute path"
