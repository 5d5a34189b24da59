"""All extensions of one workspace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from kedge.config.schema import Config
from kedge.core.extensions import (
    AgentDefinition,
    CommandEntry,
    EditReport,
    Expansion,
    ExtensionKind,
    ExtensionState,
    ResourceText,
)
from kedge.errors import ExtensionNotFound, KedgeError
from kedge.extensions.hook_part import HookPart
from kedge.extensions.language_servers import LanguageServers
from kedge.extensions.library import Library
from kedge.extensions.mcp_servers import McpServers
from kedge.extensions.part import CommandSource, ExtensionHost, ExtensionPart
from kedge.extensions.plugin_part import PluginPart
from kedge.tools.base import Tool, WrittenFile

log = logging.getLogger("kedge.extensions")


class WorkspaceExtensions:
    """The Extensions of the engine."""

    def __init__(self, host: ExtensionHost) -> None:
        self._host = host
        self._plugins = PluginPart(host)
        self._hooks = HookPart(host)
        self._language_servers = LanguageServers(host)
        self._library = Library(host, Path.home(), self._plugins.libraries)
        self._mcp = McpServers(host)
        self._parts: tuple[ExtensionPart, ...] = (
            self._plugins,
            self._hooks,
            self._language_servers,
            self._library,
            self._mcp,
        )
        self.run_hooks = self._hooks.run

    async def refresh(self, config: Config) -> None:
        await self._refresh(self._plugins, config)  # first: the library reads their directories
        await asyncio.gather(*(self._refresh(part, config) for part in self._parts if part is not self._plugins))

    async def _refresh(self, part: ExtensionPart, config: Config) -> None:
        try:
            await part.refresh(config)
        except KedgeError as error:  # a Run does not depend on them
            log.warning("extensions of %s could not be read: %s", self._host.root, error)

    def states(self) -> tuple[ExtensionState, ...]:
        return tuple(state for part in self._parts for state in part.states())

    def tools(self) -> tuple[Tool, ...]:
        return tuple(tool for part in self._parts for tool in part.tools())

    def system_text(self) -> str:
        return "\n\n".join(text for part in self._parts if (text := part.system_text()))

    async def edited(self, files: tuple[WrittenFile, ...], is_hidden: Callable[[str], bool]) -> EditReport:
        try:
            return await self._language_servers.edited(files, is_hidden)
        except Exception:  # the files are written: nothing may turn that into a failure
            log.exception("unexpected error in a language server of %s", self._host.root)
            return EditReport()

    def commands(self) -> tuple[CommandEntry, ...]:
        entries = [entry for part in reversed(self._sources()) for entry in part.commands()]
        by_name = {entry.name: entry for entry in entries}
        return tuple(by_name[name] for name in sorted(by_name))

    async def expand(self, name: str, arguments: str) -> Expansion | None:
        for part in self._sources():
            expansion = await part.expand(name, arguments)
            if expansion is not None:
                return Expansion(expansion) if isinstance(expansion, str) else expansion
        return None

    async def read_resources(self, references: tuple[str, ...]) -> tuple[ResourceText, ...]:
        return await self._mcp.read_resources(references)

    def _sources(self) -> list[CommandSource]:
        """Return the parts that have commands. The first that knows a name expands it."""
        return [part for part in self._parts if isinstance(part, CommandSource)]

    def agent(self, name: str) -> AgentDefinition | None:
        return self._library.agent(name)

    def agents(self) -> tuple[str, ...]:
        return self._library.agents()

    async def start(self, kind: ExtensionKind, name: str, *, again: bool = False) -> ExtensionState:
        if kind != "mcp":
            raise ExtensionNotFound(f"Extensions of the kind {kind} cannot be started.")
        return await self._mcp.start(name, again=again)

    @property
    def has_processes(self) -> bool:
        return any(part.has_processes for part in self._parts)

    async def close(self) -> None:
        await asyncio.gather(*(part.close() for part in self._parts))
