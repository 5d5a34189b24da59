"""Tools of MCP servers, and the tool that loads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from kedge.bridge.bridge_peer import CallFailed
from kedge.core.approvals import Intent
from kedge.core.extensions import AgentDefinition
from kedge.core.transcript import Display
from kedge.core.untrusted_text import one_line
from kedge.extensions.mcp_handle import McpServer
from kedge.extensions.mcp_listing import DIGEST_CHARS, OfferedTool, plain_name
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, Tool, ToolContext, ToolFailed, ToolOutput
from kedge.tools.head_tail import cleaned

#: Arguments that an approval shows in full. Characters.
ARGUMENTS_CHARS_MAX = 100_000
#: Arguments in a title. Characters.
TITLE_CHARS_MAX = 150
#: Names in the result of `mcp_tools`. Characters.
NAMES_CHARS_MAX = 10_000

LOAD_TOOLS = "mcp_tools"
_CHANGED = "Its server changed the description or the input of this tool since you approved it. It says now:\n"


class McpTool(Tool):
    """A tool of an MCP server. What the server says about its effects is not trusted: every call needs permission."""

    #: Any object: the server checks it.
    input = cast(type[msgspec.Struct], dict[str, Any])
    display: Display = "text"

    def __init__(self, server: McpServer, offered: OfferedTool) -> None:
        self.name = offered.name
        self.description = offered.description
        self.schema = offered.schema
        self.offered = offered
        self._server = server
        self.server_name = server.name

    def title(self, args: dict[str, Any]) -> str:
        shown = f" {one_line(_json(args), TITLE_CHARS_MAX)}" if args else ""
        return f"{self._server.name}/{self.offered.tool}{shown}"

    async def prepare(self, args: dict[str, Any], context: ToolContext) -> Prepared:
        server, offered = self._server, self.offered
        name = f"{server.name}/{offered.tool}"
        has_changed = server.has_changed(offered)
        arguments = json.dumps(args, ensure_ascii=False, indent=2)
        params = {"server": server.name, "tool": offered.tool, "arguments": arguments if args else "(none)"}
        if has_changed:
            params["changed"] = _CHANGED + offered.description
        intent = Intent(
            names=("mcp",),
            action="mcp",
            # No rule or grant for the name covers a tool that is no longer what it was.
            subject=f"{name}@{offered.digest[:DIGEST_CHARS]}" if has_changed else name,
            unresolved=name,
            exact_only=has_changed,
            description=f"Call {name}{', whose description has changed' if has_changed else ''}",
            path="",
            params=json.dumps(params, ensure_ascii=False),
            binding=hashlib.sha256(_json([server.key, offered.digest, args]).encode("utf-8", "replace")).hexdigest(),
            grant="" if has_changed else f"mcp({name})",
            unshown="" if len(arguments) <= ARGUMENTS_CHARS_MAX else "its arguments are too long to be shown",
        )

        async def run() -> ToolOutput:
            try:
                result = await server.call(offered, args, context.host)
            except CallFailed as error:
                raise ToolFailed(f"The MCP server {server.name} failed: {_clean(str(error))}") from None
            text = _clean(result.text) or ("" if result.images else "(The tool returned nothing.)")
            return ToolOutput(text, images=result.images, is_error=result.is_error)

        return Prepared(intent, run)


class LoadToolsInput(msgspec.Struct):
    server: Annotated[str, Meta(description="The name of one of these servers.")]


class LoadTools(Tool):
    """`load` starts a server and returns the names of its tools."""

    name = LOAD_TOOLS
    input: type[msgspec.Struct] = LoadToolsInput
    read_only = True

    def __init__(self, servers: list[str], load: Callable[[str], Awaitable[list[str]]]) -> None:
        names = ", ".join(servers)
        self.description = (
            f"Loads the tools of an MCP server. The tools of these servers are not loaded yet: {names}. Call this with "
            "the name of a server that may help; its tools are available in your next step."
        )
        self._servers = servers
        self._load = load

    def for_agent(self, agent: AgentDefinition) -> Tool | None:
        """Return it for the servers that the agent names: their tools may not be known yet."""
        if agent.has_tool(self.name):
            return self
        named = [server for server in self._servers if agent.names_server(plain_name(server))]

        async def load(server: str) -> list[str]:
            if server not in named:
                raise CallFailed("this agent has no tools of it")
            return [name for name in await self._load(server) if agent.has_tool(name)]

        return LoadTools(named, load) if named else None

    def title(self, args: LoadToolsInput) -> str:
        return f"load the tools of {args.server}"

    async def prepare(self, args: LoadToolsInput, context: ToolContext) -> Prepared:
        intent = Intent(
            names=("mcp",),
            action="read",
            subject=f"{one_line(args.server, 100)}/",
            description=f"List the tools of the MCP server {one_line(args.server, 100)}",
            path="",
            params=json.dumps({"server": args.server}),
            binding="",
            needs_approval=False,
        )

        async def run() -> ToolOutput:
            try:
                names = await self._load(args.server)
            except CallFailed as error:
                raise ToolFailed(f"The MCP server {one_line(args.server, 100)} failed: {_clean(str(error))}") from None
            text = "\n".join(names)
            cut = "\n..." if len(text) > NAMES_CHARS_MAX else ""
            return ToolOutput(
                f"Available from your next step on:\n{text[:NAMES_CHARS_MAX]}{cut}" if names else "It has no tools.",
                summary=f"{len(names)} tools",
            )

        return Prepared(intent, run)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _clean(text: str) -> str:
    """Return text of a server without terminal sequences and control characters, cut to the limit of a call."""
    return cleaned(text[: 2 * OUTPUT_CHARS_MAX].encode("utf-8", "replace"))[: OUTPUT_CHARS_MAX + 100]
