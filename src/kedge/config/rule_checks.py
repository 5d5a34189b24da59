"""Warnings about valid rules that never match, or match less than they seem to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from kedge.core.approvals import Rule, Rules
from kedge.core.patterns import has_wildcard
from kedge.tools.registry import TOOL_NAMES

#: Separators of commands in a line. Rules are compared with single commands.
_OPERATORS = re.compile(r"&&|\|\||[;|&]")


def ineffective_rules(rules: Rules) -> Iterator[tuple[Rule, str]]:
    """Yield each such rule with "problem; remedy"."""
    for rule in rules.deny:
        if problem := _never_matches(rule) or _denies_bare_command(rule):
            yield rule, problem
    for rule in rules.allow:
        if problem := _never_matches(rule):
            yield rule, problem


def _denies_bare_command(rule: Rule) -> str:
    if rule.tool != "bash" or rule.pattern is None or has_wildcard(rule.pattern) or len(rule.pattern.split()) > 1:
        return ""
    return f"denies only the command without arguments; write bash({rule.pattern} *)"


def _never_matches(rule: Rule) -> str:
    if not any(fnmatchcase(name, rule.tool) for name in TOOL_NAMES):
        return f"never matches: unknown tool; the tools are {', '.join(TOOL_NAMES)}"
    if rule.pattern is None or rule.tool.endswith("*"):
        return ""
    if rule.tool == "bash":
        if any(_OPERATORS.fullmatch(word) or word.endswith(";") for word in rule.pattern.split()):
            return "never matches: a rule covers a single command; write one rule for each"
        if any(word[0] in "\"'" for word in rule.pattern.split()):
            return "never matches: words are compared without quotes; remove the quotes"
        return _names_no_program(rule.pattern)
    if rule.tool == "fetch":
        return "never matches: a host name has no slash; write the host name alone" if "/" in rule.pattern else ""
    if ".." in rule.pattern.split("/"):
        return "never matches: paths are compared without '..'; write the absolute path"
    if re.match(r"~[^/]", rule.pattern):
        return "never matches: only ~/ is expanded; write the absolute path"
    if rule.pattern.startswith("~") and not (rule.homes and not all(map(has_wildcard, rule.homes))):
        return "never matches: the home directory is unknown; write the absolute path"
    return ""


def _names_no_program(pattern: str) -> str:
    """Check the first word of a rule for commands."""
    program = pattern.split()[0]
    if re.match(r"[A-Za-z_]\w*=", program):
        return "never matches: variable assignments are not compared; write the command alone"
    if program.startswith("~") or "$" in program:
        return f"never matches: ~ and $ are not expanded; write bash({program.rpartition('/')[2]} *)"
    if pattern.endswith(":*") and program == pattern:
        return f"never matches: words are separated by blanks; write bash({program[:-2]} *)"
    return ""
