"""Asks and answers reach exactly those that they are for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.errors import StoreUnavailable
from kedge.testing.scripted import ScriptedModel
from tests.engine.rig import ActingTool, OutageStore, do, rig
from tests.engine.test_asks import answers
from tests.engine.test_feed import read_all, reader


async def test_a_stored_answer_reaches_its_call_despite_an_error(tmp_path: Path) -> None:
    store, tool = OutageStore(), ActingTool()
    async with rig(tmp_path, ScriptedModel(do("a", ask=True), "ok"), store, tools=(tool,)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        store.after = answers
        with pytest.raises(StoreUnavailable):
            await r.engine.asks.answer(r.workspace, ask.id, "allow")
        async with asyncio.timeout(10):
            assert (await r.end(run)).text == "ok"
        assert tool.started == ["a"]


async def test_a_withdrawn_ask_allows_nothing(tmp_path: Path) -> None:
    tool = ActingTool()
    async with rig(tmp_path, ScriptedModel(do("a", ask=True)), tools=(tool,)) as r:
        run = await r.submit()
        await r.until_asked()
        await r.engine.cancel(r.workspace, r.session)
        assert (await r.end(run)).outcome == "cancelled"
        assert tool.started == []


async def test_the_stream_of_a_session_has_no_asks_of_others(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel(do("a", ask=True)), tools=(ActingTool(),)) as r:
        await r.submit()
        (ask,) = await r.until_asked()
        other = await r.engine.create_session(r.workspace, "other")
        for session_id, expected in ((ask.session_id, [ask.id]), (other.id, [])):
            frames = await read_all(await reader(r, session_id=session_id))
            assert [payload["id"] for kind, payload, _ in frames if kind == "permission_request"] == expected
