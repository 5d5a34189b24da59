"""The shown session: which one it is, and that keys and dialogs act on it."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.process import Server
from tests.tui.rig import rig


async def test_last_requested_session_is_shown(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.client.client.PAGE_MESSAGES", 1)  # a session with messages takes longer to load
    async with rig(server) as r:
        long = r.app.session_id
        for word in ("one", "two", "three"):
            await r.send(f"script: say {word}")
            await r.until(lambda word=word: r.text.count(word) == 2)  # type: ignore[misc]
        short, other = await r.app.actions.create_session(), await r.app.actions.create_session()
        await r.app.sessions.show(other)
        await asyncio.gather(r.app.sessions.show(long), r.app.sessions.show(short))
        assert r.app.session_id == short


async def test_dialog_does_not_act_on_another_session(server: Server) -> None:
    async with rig(server) as r:
        first, second = r.app.session_id, await r.app.actions.create_session()
        r.app.action_palette()
        await r.pilot.pause()
        await r.app.sessions.show(second)
        await r.press("enter")
        await r.shows("another session is shown now")
        r.app.action_models()
        await r.pilot.pause()
        await r.app.sessions.show(first)
        await r.press("enter")
        await r.pilot.pause()
        assert r.app.view.session(first).model == r.app.view.session(second).model == ""  # type: ignore[union-attr]


async def test_esc_does_not_count_in_another_session(server: Server) -> None:
    async with rig(server) as r:
        first, second = r.app.session_id, await r.app.actions.create_session()
        await r.send("script: hold never-1 | say done")
        await r.shows("working")
        await r.app.sessions.show(second)
        await r.send("script: hold never-2 | say done")
        await r.shows("working")
        await r.app.sessions.show(first)
        await r.press("escape")
        await r.app.sessions.show(second)
        await r.press("escape")
        await r.until(lambda: r.app.view.active(second) is None)
        assert [run.outcome for run in await r.app.connection.client.session_runs(r.app.connection.id, second)] == [
            "cancelled"
        ]
