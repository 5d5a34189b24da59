"""Mistakes in rules: valid text that never matches a call. Light, for the command line as well as for the server."""

from __future__ import annotations

import re
from difflib import get_close_matches
from fnmatch import fnmatchcase

from kedge.core.approvals import Rule, parse_rule
from kedge.core.patterns import has_wildcard
from kedge.errors import Invalid

#: The names that rules use. Models call tools of MCP servers by other names: all of them are `mcp` in rules.
TOOL_NAMES = (
    "bash",
    "jobs",
    "view",
    "ls",
    "glob",
    "grep",
    "edit",
    "multiedit",
    "write",
    "fetch",
    "todos",
    "question",
    "agent",
    "present_plan",
    "skill",
    "mcp",
)
#: Names of such tools in other programs.
_OTHER_NAMES = {"read": "view", "shell": "bash", "webfetch": "fetch", "task": "agent", "notebookedit": "edit"}
#: Separators of commands in a line, and redirections. Rules are compared with the words of single commands.
_OPERATOR = re.compile(r"&&|\|\||[;|&]")
_REDIRECTION = re.compile(r"[0-9&]?[<>].*")


def check_rules(allow: tuple[str, ...], deny: tuple[str, ...]) -> None:
    """Raise Invalid for a rule that is not valid or never matches."""
    for texts, is_allow in ((allow, True), (deny, False)):
        for text in texts:
            check_rule(text, parse_rule(text), is_allow=is_allow)


def check_rule(text: str, rule: Rule, *, is_allow: bool) -> None:
    """Raise Invalid for a rule that never matches. `text`: as the user wrote it."""
    if mistake := mistake_in(rule, is_allow=is_allow):
        raise Invalid(f"{text[:100]!r} {mistake}{'' if mistake.endswith('?') else '.'}")


def mistake_in(rule: Rule, *, is_allow: bool) -> str:
    """Return "problem; remedy", or an empty text."""
    if not any(fnmatchcase(name, rule.tool) for name in TOOL_NAMES):
        return _unknown_tool(rule)
    if rule.pattern is None or rule.tool.endswith("*"):
        return ""
    if rule.tool == "bash":
        return _mistake_in_command(rule.pattern, is_allow=is_allow)
    if rule.tool == "fetch":
        return "never matches: a host name has no slash; write the host name alone" if "/" in rule.pattern else ""
    if rule.tool == "mcp":
        is_bare = is_allow and "/" not in rule.pattern and rule.pattern != "**"
        return f"never matches: a call has a server and a tool; write mcp({rule.pattern}/*)" if is_bare else ""
    if ".." in rule.pattern.split("/"):
        return "never matches: paths are compared without '..'; write the absolute path"
    if re.match(r"~[^/]", rule.pattern):
        return "never matches: only ~/ is expanded; write the absolute path"
    return ""


def _unknown_tool(rule: Rule) -> str:
    name = rule.tool.lower()
    if other := re.fullmatch(r"mcp__(.+?)(?:__(.+))?", rule.tool):  # as another program writes it
        return f"names an unknown tool; did you mean {Rule('mcp', f'{other[1]}/{other[2] or chr(42)}')}?"
    similar = [name] if name in TOOL_NAMES else get_close_matches(_OTHER_NAMES.get(name, name), TOOL_NAMES, n=1)
    if not similar:
        return f"names an unknown tool; the tools are {', '.join(TOOL_NAMES)}"
    # `Bash(npm test:*)` is how another program writes a prefix.
    pattern = re.sub(r":\*$", " *", rule.pattern) if rule.pattern and similar[0] == "bash" else rule.pattern
    return f"names an unknown tool; did you mean {Rule(similar[0], pattern)}?"


def _mistake_in_command(pattern: str, *, is_allow: bool) -> str:
    words = pattern.split()
    program = words[0]
    if any(_OPERATOR.fullmatch(word) or word.endswith(";") for word in words):
        return "never matches: a rule covers a single command; write one rule for each"
    if any(map(_REDIRECTION.fullmatch, words)):
        return "never matches: redirections are not compared; remove them"
    if any(word[0] in "\"'" for word in words):
        return "never matches: words are compared without quotes; remove the quotes"
    if re.match(r"[A-Za-z_]\w*=", program):
        return "never matches: variable assignments are not compared; write the command alone"
    if program.startswith("~") or "$" in program:
        return f"never matches: ~ and $ are not expanded; write bash({program.rpartition('/')[2]} *)"
    if words[-1].endswith(":*") and (len(words) == 1 or words[0] not in ("npm", "pnpm", "yarn", "bun")):
        return f"never matches: words are separated by blanks; write bash({pattern[:-2]} *)"
    if is_allow and pattern == "*":
        return "never matches: write bash to allow every command"
    if is_allow and has_wildcard(program):
        return "never matches: a rule with a wildcard must name its program"
    return ""
