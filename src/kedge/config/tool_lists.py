"""Lists of tools in the files of skills, commands and agents: `allowed-tools: Bash(git status:*), Read`. Pure.

These files name the tools of other programs as well as ours. A name or pattern that has no exact or narrower equivalent
here is reported and left out: a translation never allows more than was written.
"""

from __future__ import annotations

import re

from kedge.config.front_matter import Value
from kedge.core.approvals import RULE_CHARS_MAX, parse_rule
from kedge.core.rule_mistakes import TOOL_NAMES, mistake_in
from kedge.errors import Invalid

#: Tools in one list: more than there are. Items.
LISTED_TOOLS_MAX = 100

#: The tools of other programs -> ours.
_OUR_NAMES = {
    "Agent": "agent",
    "AskUserQuestion": "question",
    "Bash": "bash",
    "Edit": "edit",
    "Glob": "glob",
    "Grep": "grep",
    "LS": "ls",
    "MultiEdit": "multiedit",
    "Read": "view",
    "Skill": "skill",
    "Task": "agent",
    "TodoWrite": "todos",
    "WebFetch": "fetch",
    "Write": "write",
}
#: Tools whose rules have the pattern of a path.
_PATH_TOOLS = frozenset({"view", "ls", "glob", "grep", "edit", "multiedit", "write"})
_ENTRY = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)(?:\((.*)\))?", re.DOTALL)
_ALL_OF_SERVER = re.compile(r"^(mcp__.+)__\*$")
#: Separated by commas or blanks outside of parentheses.
_SPLIT = re.compile(r"[^\s,()]+(?:\([^()]*\))?")
#: Wildcards here, which are literal in commands of other programs, and wildcards there, which are literal here.
_AMBIGUOUS = frozenset("?[]{}")


def listed_tools(value: Value) -> tuple[str, ...]:
    """Return the entries of a list of tools. Raises Invalid if it is not a list, or too long."""
    match value:
        case str():
            entries = tuple(_SPLIT.findall(value))
            if re.sub(r"[\s,]", "", "".join(entries)) != re.sub(r"[\s,]", "", value):
                raise Invalid("it is not a list of tools, such as: Bash(git status:*), Read")
        case tuple():
            entries = value
        case _:
            raise Invalid("it is not a list of tools, such as: Bash(git status:*), Read")
    if len(entries) > LISTED_TOOLS_MAX or any(len(entry) > RULE_CHARS_MAX for entry in entries):
        raise Invalid(f"it has more than {LISTED_TOOLS_MAX} tools, or one with more than {RULE_CHARS_MAX} characters")
    return entries


def rules_in(entries: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the allow rules of a list, and the entries without an equivalent."""
    rules: dict[str, None] = {}
    unknown: list[str] = []
    for entry in entries:
        rule = _rule(entry)
        if rule is None:
            unknown.append(entry)
        else:
            rules[rule] = None
    return tuple(rules), tuple(unknown)


def tool_names_in(entries: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the tools that an agent gets, and the entries without an equivalent. A tool with a pattern
    has none: the agent would get all of it."""
    names: dict[str, None] = {}
    unknown: list[str] = []
    for entry in entries:
        match = _parts(entry)
        name = _our_name(match[1]) if match is not None and match[2] is None else None
        if name is None:
            unknown.append(entry)
        else:
            names[name] = None
    return tuple(names), tuple(unknown)


def refused_tools_in(entries: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the tools that an agent does not get, and the entries without an equivalent. Of a tool with a
    pattern it gets nothing."""
    matches = [_parts(entry) for entry in entries]
    plain = tuple(entry if match is None else match[1] for entry, match in zip(entries, matches, strict=True))
    names, unknown = tool_names_in(plain)
    return (*names, *(("multiedit",) if "edit" in names and "multiedit" not in names else ())), unknown


def _parts(entry: str) -> re.Match[str] | None:
    """Return name and pattern of an entry. `mcp__x__*` are all tools of the server x, as `mcp__x`."""
    return _ENTRY.fullmatch(_ALL_OF_SERVER.sub(r"\1", entry.strip()))


def _our_name(name: str) -> str | None:
    if name in TOOL_NAMES or name.startswith("mcp__"):
        return name
    return _OUR_NAMES.get(name)


def _rule(entry: str) -> str | None:
    match = _parts(entry)
    if match is None or (tool := _our_name(match[1])) is None:
        return None
    pattern = match[2]
    if tool.startswith("mcp__"):
        server, _, name = tool.removeprefix("mcp__").partition("__")
        return f"mcp({server}/{name or '*'})" if server and pattern is None else None
    if pattern is not None and match[1] not in TOOL_NAMES:
        pattern = _pattern(tool, pattern.strip())
        if pattern is None:
            return None
    rule = tool if pattern is None else f"{tool}({pattern})"
    try:
        return None if mistake_in(parse_rule(rule), is_allow=True) else rule
    except Invalid:
        return None


def _pattern(tool: str, pattern: str) -> str | None:
    """Return our pattern for that of another program; None: no pattern covers the same or less."""
    if not pattern or not _AMBIGUOUS.isdisjoint(pattern):
        return None
    if tool == "bash":
        # A prefix: `git status:*`. Ours covers whole words only.
        command = f"{pattern[:-2]} *" if pattern.endswith(":*") else pattern
        literal = command.removesuffix(" *")
        return command if literal.strip() and "*" not in literal else None
    if tool == "fetch":
        host = pattern.removeprefix("domain:")
        return host if host != pattern and "*" not in host else None
    if tool in _PATH_TOOLS:
        if pattern.startswith("~/"):
            return pattern
        # Theirs are relative to another directory if they start with a slash. `./` keeps ours in the workspace.
        return None if pattern.startswith(("/", "~")) else f"./{pattern.removeprefix('./')}"
    return None
