"""The rights that the settings of a skill, prompt command or agent give it, also those of other programs. Pure.

A setting that restricts is obeyed, or there is a warning that it is not.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from kedge.config.front_matter import FrontMatter, FrontMatterError
from kedge.config.tool_lists import listed_tools, refused_tools_in, rules_in, tool_names_in
from kedge.core.modes import MODES, Mode
from kedge.errors import Invalid

LibraryKind = Literal["command", "skill", "agent"]

#: `permissionMode` of other programs -> our modes. Others have no equivalent, or would widen.
_MODES: dict[str, Mode] = {"plan": "plan", "acceptEdits": "edits", "default": "ask"}
#: The settings that each kind obeys.
_OBEYED: dict[LibraryKind, frozenset[str]] = {
    "command": frozenset({"allowed-tools", "disable-model-invocation"}),  # the model cannot invoke a command
    "skill": frozenset({"allowed-tools", "disable-model-invocation", "user-invocable"}),
    "agent": frozenset({"tools", "disallowedTools", "mode", "permissionMode"}),
}
#: Names of settings that may restrict.
_RESTRICTING = re.compile(
    r"deny|denied|disable|disallow|except|exclud|forbid|hook|invocable|isolat|limit|max|only|permission|restrict|sandbox",
    re.IGNORECASE,
)


class DefinitionRights(Struct, frozen=True):
    #: `provider/model`.
    model: str = ""
    #: Allow rules, of a command or skill.
    allow: tuple[str, ...] = ()
    #: Tools of an agent; None: those that change nothing.
    tools: tuple[str, ...] | None = None
    #: Tools that an agent does not have.
    without: tuple[str, ...] = ()
    mode: Mode | None = None
    #: The model may load the skill.
    for_model: bool = True
    #: The user may send it as `/name`.
    for_user: bool = True
    warnings: tuple[str, ...] = ()


def rights_of(parsed: FrontMatter, kind: LibraryKind) -> DefinitionRights:
    """Raises FrontMatterError for a value that cannot be understood."""
    warnings: list[str] = []
    model = text_of(parsed, "model")
    if model and "/" not in model:  # the name of a model in another program
        warnings += [f"the model {model} is not used; write provider/model"] if model != "inherit" else []
        model = ""
    allow: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    mode: Mode | None = None
    if kind == "agent":
        tools = _tools(parsed, warnings)
        without, unknown = refused_tools_in(_listed(parsed, "disallowedTools"))
        _warn(warnings, "disallowedTools", unknown)
        mode = _mode(parsed, warnings)
    else:
        allow, unknown = rules_in(_listed(parsed, "allowed-tools"))
        _warn(warnings, "allowed-tools", unknown)
    ignored = [key for key in parsed.fields if _RESTRICTING.search(key) and key not in _OBEYED[kind]]
    if ignored:
        warnings.append(f"{', '.join(ignored)} {_are(ignored)} not supported, and restrict{_s(ignored)} nothing")
    for_model = not (kind == "skill" and _switch(parsed, "disable-model-invocation", default=False))
    for_user = kind != "skill" or _switch(parsed, "user-invocable", default=True)
    return DefinitionRights(model, allow, tools, without, mode, for_model, for_user, tuple(warnings))


def text_of(parsed: FrontMatter, key: str) -> str:
    value = parsed.fields.get(key, "")
    if not isinstance(value, str):
        raise FrontMatterError(parsed.lines[key], f"{key} is not a text")
    return value.strip()


def _switch(parsed: FrontMatter, key: str, *, default: bool) -> bool:
    value = parsed.fields.get(key, default)
    if not isinstance(value, bool):
        raise FrontMatterError(parsed.lines[key], f"{key} is not true or false")
    return value


def _listed(parsed: FrontMatter, key: str) -> tuple[str, ...]:
    if (value := parsed.fields.get(key, "")) == "":
        return ()
    try:
        return listed_tools(value)
    except Invalid as error:
        raise FrontMatterError(parsed.lines[key], f"{key}: {error}") from None


def _tools(parsed: FrontMatter, warnings: list[str]) -> tuple[str, ...] | None:
    if parsed.fields.get("tools", "") == "":
        return None
    entries = _listed(parsed, "tools")
    if entries == ("*",):
        warnings.append("tools: * is not used, and it can only read and search; list its tools")
        return None
    known, unknown = tool_names_in(entries)
    _warn(warnings, "tools", unknown)
    return known


def _mode(parsed: FrontMatter, warnings: list[str]) -> Mode | None:
    value = text_of(parsed, "mode")
    if value and value not in MODES:
        raise FrontMatterError(parsed.lines["mode"], f"mode is not one of {', '.join(MODES)}")
    theirs = text_of(parsed, "permissionMode")
    if theirs and theirs not in _MODES:
        warnings.append(f"permissionMode: {theirs} is not used; it has the mode of its parent")
    return next((mode for mode in MODES if mode == value), _MODES.get(theirs))


def _warn(warnings: list[str], key: str, unknown: tuple[str, ...]) -> None:
    if unknown:
        warnings.append(f"{key}: no equivalent of {', '.join(unknown)}, which {_are(unknown)} ignored")


def _are(items: tuple[str, ...] | list[str]) -> str:
    return "is" if len(items) == 1 else "are"


def _s(items: list[str]) -> str:
    return "s" if len(items) == 1 else ""
