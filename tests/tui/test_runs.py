"""Runs in the app: send, stream, queue and stop (SCENARIOS B and C)."""

from __future__ import annotations

from tests.client.process import Server
from tests.tui.rig import rig


async def test_prompt_is_answered(server: Server) -> None:
    async with rig(server) as r:
        await r.shows("enter: send")
        await r.send("script: say Hello from **afar** | say .")
        await r.shows("script: say Hello", "Hello from afar")


async def test_b2_esc_right_after_enter_cancels(server: Server) -> None:
    async with rig(server) as r:
        await r.type("script: hold never | say x")
        await r.press("enter", "escape")
        await r.shows("■ cancelled")
        assert r.app.view.active(r.app.session_id) is None


async def test_b1_esc_when_idle_does_nothing(server: Server) -> None:
    async with rig(server) as r:
        await r.press("escape", "escape")
        await r.send("script: say fine")
        await r.shows("fine")
        assert "cancelled" not in r.text


async def test_b14_esc_stops_the_shown_run_and_the_queue_continues(server: Server) -> None:
    async with rig(server) as r:
        await r.send("script: hold never | say first")
        await r.shows("working")
        await r.send("script: say second")
        await r.shows("1 queued", "1. script: say second")
        await r.press("escape")
        await r.shows("■ cancelled", "second")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)
        assert r.text.count("■ cancelled") == 1


async def test_b3_second_esc_stops_all_and_returns_queued_prompts(server: Server) -> None:
    async with rig(server) as r:
        await r.send("script: hold never | say first")
        await r.shows("working")
        await r.send("script: hold never | say second")
        await r.send("third thought")
        await r.shows("2 queued")
        await r.press("escape", "escape")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None and not r.app.view.queue(r.app.session_id))
        await r.shows("■ cancelled")
        await r.until(lambda: r.prompt.endswith("third thought"))


async def test_b4_prompt_after_the_second_esc_is_not_cancelled(server: Server) -> None:
    async with rig(server) as r:
        await r.send("script: hold never | say first")
        await r.shows("working")
        await r.press("escape", "escape")
        await r.send("script: say later")
        await r.shows("■ cancelled", "later")
        await r.until(lambda: r.app.view.active(r.app.session_id) is None)
        ends = [
            run.outcome for run in await r.app.connection.client.session_runs(r.app.connection.id, r.app.session_id)
        ]
        assert ends == ["cancelled", "completed"]
