"""The extensions in Chromium: one of each kind with its state, and what they report about a call."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from kedge.config.plugins import PluginFile, PluginStore, plugin_of
from kedge.testing.hosted import HostedEndpoint
from tests.conformance.harness import Server
from tests.conformance.test_hooks import hook
from tests.extensions.mcp_rig import HOSTILE
from tests.web.live_page import LiveSession

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def server(web_page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("extensions")
    config = hook("PreToolUse", "echo '<b>broken</b>' >&2; exit 3", "ls")
    config += f"[mcp.h]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps([str(HOSTILE), str(home)])}\n"
    config += f'[lsp.servers.mine]\ncommand = "{sys.executable}"\nextensions = [".mine"]\n'
    with HostedEndpoint() as endpoint:
        server = Server(home / "server", endpoint.url, config).start()
        tree = {"commands/deploy.md": PluginFile(b"Deploy.")}
        PluginStore(server.home, server.data_dir).add(plugin_of(tree, "kit", "kit"), tree)
        for path, text in {
            "skills/tables/SKILL.md": "---\ndescription: Aligns tables.\n---\nAlign.",
            "agents/critic.md": "---\ndescription: Finds faults.\n---\nYou review.",
            "commands/bad.md": "---\nx\n---\n",
        }.items():
            (server.home / path).parent.mkdir(parents=True, exist_ok=True)
            (server.home / path).write_text(text)
        yield server
        server.stop()


async def test_all_kinds_are_listed_and_a_failed_hook_is_shown(
    browser: Browser, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "a.mine").write_text("")
    async with server.peer(tmp_path) as peer:
        live = LiveSession(server, peer, await peer.session("A session"))
        async with live.page(browser) as page:
            part = page.locator("details.side-part", has_text="Extensions")
            await part.locator("summary").click()
            for title, line in (
                ("MCP servers", "h idle · user"),
                ("Skills", "tables ready · user"),
                ("Commands", "deploy ready · plugin kit"),
                ("Agents", "critic ready · user"),
                ("Hooks", "PreToolUse ls: echo"),
                ("Language servers", "mine"),
                ("Plugins", "kit ready"),
            ):
                group = part.locator("div", has=page.get_by_role("heading", name=title, exact=True))
                await expect(group.locator("li", has_text=line).first).to_be_visible()
            await expect(part.locator("li", has_text="bad failed")).to_contain_text("line 2")
            await part.locator("li", has_text="h idle").get_by_role("button", name="Restart").click()
            await expect(part.locator("li", has_text="h ready")).to_contain_text("11 tools, 1 prompt, 4 resources")

            await page.locator("#prompt").fill('script: tool ls {"path": "."} | say done')
            await page.locator("#prompt").press("Enter")
            await expect(page.locator(".card-done .card-summary")).to_have_text("1 entry")
            note = page.locator(".card-note-hook")
            await expect(note).to_contain_text("exited with code 3: <b>broken</b>")
            await expect(part.locator("li", has_text="PreToolUse ls")).to_contain_text("exited with code 3")
