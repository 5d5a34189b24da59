"""The MCP servers of a workspace.

Nothing runs before it is used. The tools of a server that ran before are offered from a cache, and the server starts
with the first call. For all others the model has one small tool, `mcp_tools`: it starts a server and lists its tools.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from kedge.bridge.bridge_peer import CallFailed
from kedge.config.mcp_config import McpServerEntry, configured_servers, mcp_files
from kedge.config.schema import Config
from kedge.core.extensions import CommandEntry, ExtensionState, ResourceText
from kedge.core.untrusted_text import one_line
from kedge.errors import ExtensionNotFound, Invalid, TooLarge
from kedge.extensions.mcp_client import McpClient
from kedge.extensions.mcp_handle import McpServer, command_name, key_of
from kedge.extensions.mcp_listing import OfferedTool, offered_tools
from kedge.extensions.mcp_tool import LOAD_TOOLS, LoadTools, McpTool
from kedge.extensions.part import ExtensionHost
from kedge.tools.base import Tool
from kedge.tools.head_tail import cleaned

#: All tools of MCP servers in one request: some 25,000 tokens. Tools of further servers are loaded on request. Bytes.
SPECS_BYTES_MAX = 100_000
#: The description of a prompt. Characters.
DESCRIPTION_CHARS_MAX = 200
#: Resources of one prompt: some 75,000 tokens. Items.
RESOURCES_MAX = 10
#: All resources of a prompt, with the start of their servers. The client waits 30 s for the receipt. Seconds.
RESOURCES_S_MAX = 20.0


class McpServers:
    """The part of the extensions for MCP."""

    def __init__(self, host: ExtensionHost) -> None:
        self._host = host
        self._client = McpClient(host)
        self._servers: dict[str, McpServer] = {}
        self._tools: tuple[Tool, ...] | None = None
        #: Servers that the model loaded, the latest first: their tools take precedence.
        self._loaded: list[str] = []
        self._refreshing = asyncio.Lock()

    async def refresh(self, config: Config) -> None:
        async with self._refreshing:  # several Runs may start at once
            await self._refresh(config)

    async def _refresh(self, config: Config) -> None:
        entries = await self._host.files.run(self._read, config)
        new = []
        for entry in entries:
            known = self._servers.get(entry.name)
            if known is not None and known.key == key_of(entry, self._host.root):
                if known.entry != entry:
                    is_newer = known.entry.config.source != entry.config.source  # its plugin was replaced
                    known.entry, self._tools = entry, None
                    if is_newer or not known.is_usable:
                        known.stop()
                continue
            new.append(McpServer(entry, self._host, self._client, self._on_change))
        gone = self._servers.keys() - {entry.name for entry in entries}
        for name in (*gone, *(server.name for server in new if server.name in self._servers)):
            self._servers.pop(name).stop()
        if new:
            await self._host.files.run(_read_caches, new)
        self._servers |= {server.name: server for server in new}
        if new or gone:
            self._tools = None

    def _read(self, config: Config) -> list[McpServerEntry]:
        return configured_servers(config, mcp_files(self._host.root), self._host.trust)

    def states(self) -> tuple[ExtensionState, ...]:
        return tuple(server.state() for server in self._servers.values())

    def tools(self) -> tuple[Tool, ...]:
        if self._tools is None:
            self._tools = self._make_tools()
        return self._tools

    def system_text(self) -> str:
        return ""

    @property
    def has_processes(self) -> bool:
        return self._client.is_running

    async def close(self) -> None:
        for server in self._servers.values():
            server.stop()
        await self._client.close()
        await asyncio.gather(*(server.saved() for server in self._servers.values()))

    async def start(self, name: str, *, again: bool = False) -> ExtensionState:
        """Start a server, or with `again` restart it, and return its state."""
        if (server := self._servers.get(name)) is None:
            raise ExtensionNotFound(f"MCP server {one_line(name, 100)} not found. List them with: kedge mcp list")
        if again:
            server.stop()
        server.forget_starts()
        if server.is_usable:
            with suppress(CallFailed):  # the state says it
                await server.connection()
        return server.state()

    # --- prompts and resources --------------------------------------------------------------------------------------

    def commands(self) -> tuple[CommandEntry, ...]:
        """Return the prompts of the servers, as far as they are known."""
        return tuple(
            CommandEntry(
                one_line(command_name(server.name, prompt), DESCRIPTION_CHARS_MAX),
                "mcp prompt",
                server.entry.origin,
                one_line(prompt.description, DESCRIPTION_CHARS_MAX),
                one_line(" ".join(f"<{argument}>" for argument in prompt.arguments), DESCRIPTION_CHARS_MAX),
            )
            for server in self._servers.values()
            for prompt in (server.listing.prompts if server.listing else ())
        )

    async def expand(self, name: str, arguments: str) -> str | None:
        """Return the text of a prompt; None: there is no such prompt. Each word of `arguments` is an argument, and the
        last argument takes the rest."""
        for server in self._servers.values():
            if (prompt := server.prompt(name)) is not None:
                values = arguments.split(maxsplit=max(len(prompt.arguments) - 1, 0)) if arguments.strip() else []
                named = dict(zip(prompt.arguments, values, strict=False))
                if missing := [one for one in prompt.required if one not in named]:
                    raise Invalid(f"/{one_line(name, 100)} needs {one_line(', '.join(missing), 200)}.")
                try:
                    return cleaned((await server.prompt_text(prompt.name, named)).encode("utf-8", "replace"))
                except CallFailed as error:
                    raise Invalid(f"/{one_line(name, 100)} failed: {one_line(str(error), 300)}.") from None
        return None

    async def read_resources(self, references: tuple[str, ...]) -> tuple[ResourceText, ...]:
        """Read resources, one after the other. A prompt may be pasted, so only those are read that a server lists."""
        known = [reference for reference in references if reference.partition(":")[0] in self._servers]
        if len(known) > RESOURCES_MAX:
            raise TooLarge(
                f"The prompt names {len(known)} resources of MCP servers; at most {RESOURCES_MAX} are allowed."
            )
        texts: list[ResourceText] = []
        try:
            async with asyncio.timeout(RESOURCES_S_MAX):
                for reference in known:
                    texts.append(await self._read_resource(reference))
        except TimeoutError:
            late = known[len(texts)]
            hint = f"Check its server with: kedge mcp test {late.partition(':')[0]}"
            raise Invalid(f"{_shown(late)} cannot be read: no answer within {RESOURCES_S_MAX:g} s. {hint}") from None
        return tuple(texts)

    async def _read_resource(self, reference: str) -> ResourceText:
        name, _, written = reference.partition(":")
        server = self._servers[name]
        if not server.is_usable:
            state = server.state()
            reason = f": {state.error}" if state.error else ""
            raise Invalid(f"{_shown(reference)} cannot be read: the MCP server is {state.condition}{reason}.")
        try:
            uri, text = await server.resource_text(written)
        except CallFailed as error:
            raise Invalid(f"{_shown(reference)} cannot be read: {one_line(str(error), 300)}.") from None
        return ResourceText(reference, name, uri, cleaned(text.encode("utf-8", "replace")))

    # --- tools ------------------------------------------------------------------------------------------------------

    def _make_tools(self) -> tuple[Tool, ...]:
        """Return the tools that fit, and `mcp_tools` for the servers whose tools are not among them."""
        usable = [server for server in self._servers.values() if server.is_usable]
        usable.sort(key=lambda server: self._loaded.index(server.name) if server.name in self._loaded else len(usable))
        tools: list[Tool] = []
        unloaded: list[str] = []
        taken: set[str] = {LOAD_TOOLS}
        left = SPECS_BYTES_MAX
        for server in usable:
            if server.listing is None:
                unloaded.append(server.name)
                continue
            offered: list[OfferedTool] = offered_tools(server.name, server.listing, server.entry.config.tools, taken)
            is_whole = True
            for tool in offered:
                if is_whole := tool.bytes <= left:
                    left -= tool.bytes
                    tools.append(McpTool(server, tool))
                else:
                    break
            if not is_whole:
                unloaded.append(server.name)
        if unloaded:
            tools.append(LoadTools(sorted(unloaded), self._load))
        return tuple(tools)

    async def _load(self, name: str) -> list[str]:
        server = self._servers.get(name)
        if server is None or not server.is_usable:
            raise CallFailed("there is no such server")
        await server.connection()
        self._loaded = [name, *(other for other in self._loaded if other != name)]
        self._tools = None
        return [tool.name for tool in self.tools() if isinstance(tool, McpTool) and tool.server_name == name]

    def _on_change(self, server: McpServer) -> None:
        self._tools = None
        if self._servers.get(server.name) is server:
            self._host.announce(server.state())


def _shown(reference: str) -> str:
    return one_line(f"@{reference}", 200)


def _read_caches(servers: list[McpServer]) -> None:
    for server in servers:
        server.read_cache()
