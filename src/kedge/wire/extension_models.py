"""Bodies of extensions: MCP servers, skills, commands, agents, hooks, language servers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from kedge.core.extensions import CommandEntry, ExtensionCondition, ExtensionKind, ExtensionState


class ExtensionBody(Struct, kw_only=True, omit_defaults=True):
    kind: ExtensionKind
    name: str
    condition: ExtensionCondition
    #: "user", "repository", or "plugin NAME".
    origin: str = ""
    path: str = ""
    description: str = ""
    #: One line: what failed, and what to do.
    error: str = ""
    #: The names of what it offers, such as the tools of an MCP server.
    offers: list[str] = []


def extension_body(state: ExtensionState) -> ExtensionBody:
    return ExtensionBody(
        kind=state.kind,
        name=state.name,
        condition=state.condition,
        origin=state.origin,
        path=state.path,
        description=state.description,
        error=state.error,
        offers=list(state.offers),
    )


class PromptCommandBody(Struct, kw_only=True, omit_defaults=True):
    """A prompt that the user sends as `/name arguments`."""

    name: str
    kind: Literal["command", "skill", "mcp prompt"]
    #: "user", "repository", or "plugin NAME".
    origin: str = ""
    description: str = ""
    argument_hint: str = ""


def prompt_command_body(entry: CommandEntry) -> PromptCommandBody:
    return PromptCommandBody(
        name=entry.name,
        kind=entry.kind,
        origin=entry.origin,
        description=entry.description,
        argument_hint=entry.argument_hint,
    )
