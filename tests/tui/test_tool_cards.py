"""Tool cards in the app, with real processes and a real sub-agent."""

from __future__ import annotations

import json

from kedge.tui.panels.approval_panel import ApprovalPanel
from tests.client.process import Server
from tests.tui.rig import Rig, rig


def tool(name: str, **arguments: str) -> str:
    return f"tool {name} {json.dumps(arguments)}".replace("|", "\\u007c")  # a bar would end the directive


async def allow(r: Rig) -> None:
    await r.shows("F2 once")
    await r.until(lambda: r.app.part(ApprovalPanel).answerable("allow") is not None)
    await r.press("f2")


async def test_command_output_streams_until_esc(server: Server) -> None:
    command = "seq -f 'line %g' 1 40; sleep 100"
    async with rig(server) as r:
        await r.send(f"script: {tool('bash', command=command)} | say done")
        await r.shows("line 39", "line 40", "● working")
        assert "line 2\n" not in r.text, "the end of the output is shown"
        await r.press("escape")
        await r.shows("■ cancelled")


async def test_failed_command_shows_exit_code_and_time(server: Server) -> None:
    async with rig(server) as r:
        await r.send(f"script: {tool('bash', command='echo oh no; exit 3')} | say done")
        await allow(r)
        await r.shows("✗ $ echo oh no; exit 3", "exit 3", "oh no", "done")


async def test_agent_card_shows_progress_then_result(server: Server) -> None:
    asked = f"script: {tool('ls', path='.')} | hold agent-card | say found nothing"
    async with rig(server) as r:
        await r.send(f"script: {tool('agent', prompt=asked)} | say done")
        await r.shows("○ agent", "step 2")
        server.home.endpoint.release("agent-card")
        await r.shows("● agent", "2 steps", "found nothing", "done")


async def test_click_unfolds_one_and_ctrl_r_unfolds_all(server: Server) -> None:
    async with rig(server) as r:
        await r.send(f"script: think first this, then that | {tool('ls', path='.')} | say done")
        await r.shows("▸ thought", "done")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)

        def is_unfolded() -> bool:
            return r.text.count("first this, then that") > 1  # the prompt contains it as well

        assert not is_unfolded()
        line = next(number for number, text in enumerate(r.lines) if "▸ thought" in text)
        await r.pilot.click(offset=(5, line))
        await r.until(is_unfolded)
        await r.pilot.click(offset=(5, line))
        await r.until(lambda: not is_unfolded())
        await r.press("ctrl+r")
        await r.until(is_unfolded)
        await r.press("ctrl+r")
        await r.until(lambda: not is_unfolded())


async def test_provider_error_names_the_remedy(server: Server) -> None:
    async with rig(server) as r:
        await r.send("script: fail 401 your key is not known here")
        await r.shows("your key is not known here")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)
        await r.shows("api_key")
