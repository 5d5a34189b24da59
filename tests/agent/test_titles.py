"""Titles are generated concurrently with the Run, never after its end, and are charged once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.core.records import Usage
from kedge.errors import ModelFailed
from kedge.llm.catalogue import Price
from kedge.store.base import Write
from kedge.testing.scripted import EndReply, Hold, Linger, Say, ScriptedModel
from tests.engine.rig import Fault, FaultyModel, OneModel, OutageStore, Rig, no_asyncio_errors, rig, spin, until

DEFAULT_TITLE = "hello"


def renames(write: Write) -> bool:
    return any(session.title == "A Title" for session in write.sessions)


async def title(r: Rig) -> str:
    return (await r.engine.session(r.workspace, r.session)).title


async def test_title_is_generated_during_the_run_and_charged_once(tmp_path: Path) -> None:
    large = ScriptedModel([Hold("k"), Say("done"), EndReply(usage=Usage(100, 10))])
    small = ScriptedModel([Say('"A Title"'), EndReply(usage=Usage(7, 3))])
    async with rig(tmp_path, large, models=OneModel(large, small, Price(1.0, 1.0))) as r:
        run = await r.submit()
        await until(lambda: r.workspace.lanes[r.session].session.title == "A Title")
        large.release("k")
        usage = (await r.end(run)).usage
        assert (usage.input_tokens, usage.output_tokens) == (107, 13)
        assert usage.cost_usd == pytest.approx(120e-6)
        assert (await r.engine.session(r.workspace, r.session)).usage == usage
        large.add("again")
        await r.end(await r.submit())
        assert len(small.requests) == 1, "the session already has a title"
        await r.assert_sound()


async def test_title_request_is_cancelled_at_the_end_of_its_run(tmp_path: Path) -> None:
    large, small = ScriptedModel("done"), ScriptedModel([Say("A Title"), Hold("never")])
    async with no_asyncio_errors(), rig(tmp_path, large, models=OneModel(large, small)) as r:
        assert (await r.end(await r.submit())).text == "done"
        assert small.streams_open == 0
        await spin()
        assert await title(r) == DEFAULT_TITLE
        assert (await r.log_kinds())[-1] == "SessionChanged"


async def test_unstoppable_title_fails_the_cleanup_and_is_not_stored(tmp_path: Path) -> None:
    large, small = ScriptedModel("done", "next"), ScriptedModel([Linger("gone"), Hold("never"), Say("A Title")])
    models = OneModel(large, small)
    async with no_asyncio_errors(), rig(tmp_path, large, models=models, runs={"cleanup_s": 0.05}) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.cleanup) == ("completed", "failed")
        entries = len(await r.log())
        small.release("gone")
        small.release("never")
        await small.wait_open(0)
        await spin()
        assert len(await r.log()) == entries
        assert await title(r) == DEFAULT_TITLE


@pytest.mark.parametrize("when", ["before", "after"])
async def test_uncertain_title_does_not_affect_the_run(tmp_path: Path, when: str) -> None:
    store = OutageStore()
    large, small = ScriptedModel([Hold("k"), Say("done")]), ScriptedModel("A Title")
    async with no_asyncio_errors(), rig(tmp_path, large, store, models=OneModel(large, small)) as r:
        setattr(store, when, renames)
        run = await r.submit()
        await until(lambda: getattr(store, when) is None)
        await spin()
        large.release("k")
        assert (await r.end(run)).text == "done"
        assert await title(r) == (DEFAULT_TITLE if when == "before" else "A Title")
        await r.assert_sound()


async def test_failure_of_the_small_model_loses_only_the_title(tmp_path: Path) -> None:
    large = ScriptedModel([Hold("k"), Say("done")])
    small = FaultyModel(faults=[Fault(ModelFailed("no such model"), "A ")])
    async with no_asyncio_errors(), rig(tmp_path, large, models=OneModel(large, small)) as r:
        run = await r.submit()
        await until(lambda: bool(small.refused))
        await spin()
        large.release("k")
        assert ((await r.end(run)).outcome, await title(r)) == ("completed", DEFAULT_TITLE)


async def test_unexpected_title_error_loses_only_the_title(tmp_path: Path) -> None:
    def broken(request: object) -> str:
        raise ZeroDivisionError

    large, small = ScriptedModel([Hold("k"), Say("done")]), ScriptedModel(broken)
    async with no_asyncio_errors(), rig(tmp_path, large, models=OneModel(large, small)) as r:
        run = await r.submit()
        await small.wait_requests(1)
        await spin()
        large.release("k")
        assert ((await r.end(run)).outcome, await title(r)) == ("completed", DEFAULT_TITLE)


async def test_title_set_by_the_user_is_kept(tmp_path: Path) -> None:
    large, small = ScriptedModel([Hold("k")]), ScriptedModel([Hold("t"), Say("A Title")])
    async with rig(tmp_path, large, models=OneModel(large, small)) as r:
        run = await r.submit()
        await small.wait_requests(1)
        await r.engine.change_session(r.workspace, r.session, "mine")
        small.release("t")
        await small.wait_open(0)
        await spin()
        large.release("k")
        await r.end(run)
        assert await title(r) == "mine"


async def test_shutdown_cancels_the_title_request(tmp_path: Path) -> None:
    large, small = ScriptedModel([Hold("never")]), ScriptedModel([Hold("never")])
    async with rig(tmp_path, large, models=OneModel(large, small)) as r:
        await r.submit()
        await asyncio.gather(large.wait_requests(1), small.wait_requests(1))
        await r.engine.close()
        assert (large.streams_open, small.streams_open) == (0, 0)


@pytest.mark.found(
    "attack round 2: the event loop",
    "a small model could answer with 4 MB in one piece, and the search for a title in it took half a second of the "
    "event loop; the reply is now cut first",
)
async def test_only_the_start_of_a_reply_is_searched_for_a_title(tmp_path: Path) -> None:
    large = ScriptedModel([Hold("k"), Say("done")])
    small = ScriptedModel([Say("\n" * 3000 + "Late"), EndReply()])
    async with rig(tmp_path, large, models=OneModel(large, small, Price(1.0, 1.0))) as r:
        run = await r.submit()
        await until(lambda: len(small.requests) == 1)
        await spin(200)
        large.release("k")
        await r.end(run)
        assert (await r.engine.session(r.workspace, r.session)).title == "hello"
