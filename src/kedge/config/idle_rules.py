"""Rules that are valid and never match, or match less than they seem to: found when a configuration is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from kedge.core.approvals import Rule, Rules
from kedge.core.patterns import has_wildcard
from kedge.tools.registry import TOOL_NAMES

#: Tools of servers yet to come.
_FOREIGN = ("mcp", "*")
#: What parts commands: each of them is compared with the rules.
_OPERATORS = re.compile(r"&&|\|\||[;|&]")


def idle_rules(rules: Rules) -> Iterator[tuple[Rule, str]]:
    """Each such rule, with what is wrong with it and how to write it, parted by a semicolon."""
    for rule in rules.deny:
        if why := _why_idle(rule) or _denies_bare_command(rule):
            yield rule, why
    for rule in rules.allow:
        if why := _why_idle(rule):
            yield rule, why


def _denies_bare_command(rule: Rule) -> str:
    if rule.tool != "bash" or rule.pattern is None or has_wildcard(rule.pattern) or len(rule.pattern.split()) > 1:
        return ""
    return f"it denies only the bare command; write bash({rule.pattern} *)"


def _why_idle(rule: Rule) -> str:
    if not rule.tool.startswith(_FOREIGN) and not any(fnmatchcase(name, rule.tool) for name in TOOL_NAMES):
        return f"it never matches: there is no such tool; the tools are {', '.join(TOOL_NAMES)}"
    if rule.pattern is None or rule.tool.endswith("*"):
        return ""
    if rule.tool == "bash":
        if any(_OPERATORS.fullmatch(word) or word.endswith(";") for word in rule.pattern.split()):
            return "it never matches: a rule speaks of one command; write one rule for each"
        if any(word[0] in "\"'" for word in rule.pattern.split()):
            return "it never matches: words are compared without their quotes; leave the quotes out"
        return _why_no_program(rule.pattern)
    if rule.tool == "fetch":
        return "it never matches: a host has no slash; write its name alone" if "/" in rule.pattern else ""
    if ".." in rule.pattern.split("/"):
        return "it never matches: paths are compared without '..'; write the path from the root"
    if re.match(r"~[^/]", rule.pattern):
        return "it never matches: only ~/ stands for a home directory; write the path from the root"
    if rule.pattern.startswith("~") and not (rule.homes and not all(map(has_wildcard, rule.homes))):
        return "it never matches: the home directory is not known; write the path from the root"
    return ""


def _why_no_program(pattern: str) -> str:
    """Of a rule for commands: its first word names no program."""
    program = pattern.split()[0]
    if re.match(r"[A-Za-z_]\w*=", program):
        return "it never matches: variables set before a command are not compared; write the command alone"
    if program.startswith("~") or "$" in program:
        return f"it never matches: nothing is filled in for ~ and $; write bash({program.rpartition('/')[2]} *)"
    if pattern.endswith(":*") and program == pattern:
        return f"it never matches: a program's words are parted by blanks; write bash({program[:-2]} *)"
    return ""
