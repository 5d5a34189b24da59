"""The MCP servers of one workspace, with a real bridge."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kedge.config.schema import Config
from kedge.config.trust import TrustList
from kedge.core.extensions import ExtensionState
from kedge.extensions.mcp_servers import McpServers
from kedge.extensions.part import ExtensionHost
from kedge.tools.base import Prepared, Tool, ToolContext, ToolOutput
from kedge.tools.file_threads import FileThreads
from tests.tools.contexts import PlainProcesses, RecordingHost, make_context

HOSTILE = Path(__file__).with_name("hostile_mcp_server.py")


@dataclass
class Rig:
    """The MCP servers of one workspace."""

    root: Path
    data: Path
    processes: PlainProcesses = field(default_factory=PlainProcesses)
    states: list[ExtensionState] = field(default_factory=list)
    host: RecordingHost = field(default_factory=RecordingHost)

    def __post_init__(self) -> None:
        #: The directory in which hostile servers note what they receive.
        self.notes = self.data
        self.trust = TrustList(self.data / "trusted.json")
        self.part = self.new_part()

    def new_part(self) -> McpServers:
        async def processes() -> PlainProcesses:
            return self.processes

        files = FileThreads(f"The directory {self.root}")
        return McpServers(
            ExtensionHost(self.root, files, processes, self.states.append, self.data, self.data, self.trust)
        )

    async def configure(self, **servers: dict[str, Any]) -> None:
        await self.part.refresh(msgspec.convert({"mcp": servers}, Config))

    def tool(self, name: str) -> Tool:
        return next(tool for tool in self.part.tools() if tool.name == name)

    def names(self) -> list[str]:
        return [tool.name for tool in self.part.tools()]

    @property
    def context(self) -> ToolContext:
        return make_context(self.root, host=self.host, processes=self.processes)

    async def prepare(self, name: str, **arguments: Any) -> Prepared:
        return await self.tool(name).prepare(msgspec.convert(arguments, self.tool(name).input), self.context)

    async def call(self, name: str, **arguments: Any) -> ToolOutput:
        return await (await self.prepare(name, **arguments)).run()

    async def load(self, server: str) -> str:
        return (await self.call("mcp_tools", server=server)).content

    @property
    def received(self) -> list[str]:
        file = self.notes / "received"
        return file.read_text().split("\n")[:-1] if file.exists() else []

    def hostile(self, *mode: str, **settings: Any) -> dict[str, Any]:
        return {"command": sys.executable, "args": [str(HOSTILE), str(self.notes), *mode], **settings}
