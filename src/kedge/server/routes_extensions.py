"""Routes of extensions: MCP servers, skills, commands, agents, hooks, language servers."""

from __future__ import annotations

from kedge.engine.engine import Engine
from kedge.engine.workspace import Workspace
from kedge.server.asgi import HttpRequest, Route, route
from kedge.wire.extension_models import ExtensionBody, PromptCommandBody, extension_body, prompt_command_body


class ExtensionRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def extensions(self, request: HttpRequest) -> list[ExtensionBody]:
        workspace = self._workspace(request)
        await workspace.reload_config()
        await workspace.extensions.refresh(workspace.config)
        return [extension_body(state) for state in workspace.extensions.states()]

    async def commands(self, request: HttpRequest) -> list[PromptCommandBody]:
        workspace = self._workspace(request)
        await workspace.reload_config()
        await workspace.extensions.refresh(workspace.config)
        return [prompt_command_body(entry) for entry in workspace.extensions.commands()]

    async def test_mcp(self, request: HttpRequest) -> ExtensionBody:
        return await self._start_mcp(request, again=False)

    async def restart_mcp(self, request: HttpRequest) -> ExtensionBody:
        return await self._start_mcp(request, again=True)

    async def _start_mcp(self, request: HttpRequest, *, again: bool) -> ExtensionBody:
        workspace = self._workspace(request)
        await workspace.reload_config()
        await workspace.extensions.refresh(workspace.config)
        return extension_body(await workspace.extensions.start("mcp", request.path["name"], again=again))

    def _workspace(self, request: HttpRequest) -> Workspace:
        return self._engine.workspaces.get(request.path["id"])

    def routes(self) -> list[Route]:
        extensions, commands = "/workspaces/{id}/extensions", "/workspaces/{id}/commands"
        mcp = "/workspaces/{id}/mcp/{name}"
        return [
            route(
                "GET", extensions, self.extensions, "List the extensions with their states", reply=list[ExtensionBody]
            ),
            route(
                "GET",
                commands,
                self.commands,
                "List the prompt commands",
                reply=list[PromptCommandBody],
                declared_session="workspace",
            ),
            route("POST", f"{mcp}/test", self.test_mcp, "Start an MCP server and list its tools", reply=ExtensionBody),
            route("POST", f"{mcp}/restart", self.restart_mcp, "Restart an MCP server", reply=ExtensionBody),
        ]
