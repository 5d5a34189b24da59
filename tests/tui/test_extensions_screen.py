"""The dialog with the extensions of the workspace."""

from __future__ import annotations

import json

from kedge.client.client import Client
from kedge.tui.screens.extensions_screen import ExtensionsScreen
from tests.client.process import Server
from tests.tui.rig import Rig, rig


async def opened(r: Rig) -> None:
    await r.press("slash", *"extensions", "enter")
    await r.until(lambda: isinstance(r.app.screen, ExtensionsScreen))


async def test_states_and_errors_are_listed_and_follow_the_stream(server: Server, client: Client) -> None:
    workspace = server.home.workspace
    skill = workspace / ".claude" / "skills" / "release" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: release\ndescription: Makes a release\n---\nTag it.\n")
    (workspace / ".mcp.json").write_text(json.dumps({"mcpServers": {"notes": {"command": "no-such-program"}}}))
    async with rig(server) as r:
        await opened(r)
        await r.shows(
            "MCP servers", "notes  untrusted · repository", "run: kedge config trust", "Skills", "release  ready"
        )
        await r.press("escape")

        assert server.home.kedge("config", "trust", "--yes").code == 0
        await opened(r)
        await r.shows("notes  idle · repository")
        await client.start_mcp_server(r.app.connection.id, "notes")
        await r.shows("notes  failed · repository", "no-such-program cannot be started")
