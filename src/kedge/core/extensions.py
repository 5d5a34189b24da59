"""The extensions of a workspace as users see them: MCP servers, skills, commands, agents, hooks, language servers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from kedge.core.modes import Mode

ExtensionKind = Literal["mcp", "lsp", "skill", "command", "agent", "hook", "plugin"]
#: idle: not started, since nothing has used it yet. untrusted: it does not act before the user trusts it.
#: missing: its program is not installed. needs_login: its server refuses calls without a login.
ExtensionCondition = Literal["ready", "idle", "starting", "failed", "untrusted", "disabled", "missing", "needs_login"]


class Diagnostic(Struct, frozen=True):
    """A finding of a language server. All texts are data of others, already escaped and cut."""

    #: Relative to the workspace, or absolute.
    path: str
    line: int
    severity: Literal["error", "warning", "information", "hint"]
    message: str
    source: str = ""


class EditReport(Struct, frozen=True):
    """The findings about edits of the agent: those that are new."""

    #: For the model; empty: nothing to report.
    text: str = ""
    #: The same for front ends.
    diagnostics: tuple[Diagnostic, ...] = ()


class ExtensionState(Struct, frozen=True):
    kind: ExtensionKind
    #: Unique within its kind and workspace, among those that are in use.
    name: str
    condition: ExtensionCondition = "ready"
    #: Where it comes from: "user", "repository", or "plugin NAME".
    origin: str = "user"
    #: Its file or directory; empty: it is a part of the configuration.
    path: str = ""
    #: One line by its author, which is not trusted text.
    description: str = ""
    #: One line: what failed, and what to do.
    error: str = ""
    #: The names of what it offers, such as the tools of an MCP server.
    offers: tuple[str, ...] = ()


class CommandEntry(Struct, frozen=True):
    """A prompt that the user sends as `/name arguments`."""

    name: str
    kind: Literal["command", "skill", "mcp prompt"]
    #: As that of an ExtensionState.
    origin: str = "user"
    description: str = ""
    argument_hint: str = ""


class Expansion(Struct, frozen=True):
    """The prompt that stands for `/name arguments`."""

    text: str
    #: Allow rules of its Run.
    allow: tuple[str, ...] = ()
    #: The model of its Run; empty: as without it.
    model: str = ""


class ResourceText(Struct, frozen=True):
    """The text of a resource of an MCP server: data of others, without control characters, and cut."""

    #: As the user typed it: `server:uri`.
    reference: str
    server: str
    uri: str
    text: str


class AgentDefinition(Struct, frozen=True):
    """An agent that the model gives tasks to. It is stored with its Runs: a changed file does not change them."""

    name: str
    #: Its instructions.
    prompt: str
    #: Names of its tools; None: those that change nothing.
    tools: tuple[str, ...] | None = None
    #: It never has more rights than its parent.
    mode: Mode | None = None
    #: Empty: that of its parent.
    model: str = ""
    #: Names of tools that it does not have.
    without: tuple[str, ...] = ()

    def has_tool(self, name: str) -> bool:
        return self.tools is not None and _names(self.tools, name) and not self.is_without(name)

    def is_without(self, name: str) -> bool:
        return _names(self.without, name)

    def names_server(self, server: str) -> bool:
        """Return whether it has tools of this MCP server, which may not be loaded yet."""
        prefix = f"mcp__{server}"
        named = any(tool == prefix or tool.startswith(f"{prefix}__") for tool in self.tools or ())
        return named and not self.is_without(prefix)


def _names(tools: tuple[str, ...], name: str) -> bool:
    """Return whether a list of tools has this one. `mcp__x` are all tools of the MCP server x."""
    return any(name == tool or (tool.startswith("mcp__") and name.startswith(f"{tool}__")) for tool in tools)
