"""Forks of sessions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.core.transcript import Text
from kedge.engine import forks as forks
from kedge.testing.scripted import Hold, Say, ScriptedModel
from tests.agent.test_compaction import NEARLY_FULL, small_window
from tests.engine.rig import ActingTool, do, make_message, rig, spin


async def test_fork_has_the_summary_of_its_parent(tmp_path: Path) -> None:
    model = ScriptedModel([*do("a"), NEARLY_FULL], "in short", "done")
    async with rig(tmp_path, model, models=small_window(model), tools=(ActingTool(),)) as r:
        await r.end(await r.submit("please"))
        messages = await r.engine.messages(r.workspace, r.session, None, 100)
        for index, text in ((-1, "in short"), (0, "")):
            fork = await r.engine.fork_session(r.workspace, r.session, messages[index].id)
            copied = await r.engine.messages(r.workspace, fork.id, None, 100)
            summaries = [message.text for message in copied if message.id == fork.summary_message_id]
            assert [summary.startswith(text) for summary in summaries] == ([True] if text else [])


async def test_fork_of_a_streaming_message_has_a_finish(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("one two"), Hold("k")])) as r:
        run = await r.submit()
        await r.model.wait_requests(1)
        await spin()
        streaming = (await r.engine.messages(r.workspace, r.session, None, 100))[-1]
        fork = await r.engine.fork_session(r.workspace, r.session, streaming.id)
        r.model.release("k")
        await r.end(run)
        copy = (await r.engine.messages(r.workspace, fork.id, None, 100))[-1]
        assert (copy.text, copy.finish and copy.finish.reason) == ("one two", "unknown")


@pytest.mark.found(
    "attack round 2: the event loop",
    "a fork copied up to 100,000 messages without a pause, 0.6 s on the event loop; it now yields after each batch",
)
async def test_fork_yields_to_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "COPY_BATCH", 1)
    async with rig(tmp_path, ScriptedModel()) as r:
        messages = [make_message(number, "user", Text("x")) for number in range(5)]
        parent = await r.engine.session(r.workspace, r.session)
        copying = asyncio.ensure_future(forks.fork(parent, messages, "m4", r.ids, 0))
        for _ in range(3):
            await asyncio.sleep(0)
            assert not copying.done()
        assert len((await copying)[1]) == 5
