"""Titles: made beside the Run, never in its way, never behind its end, and paid for once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.core.records import Usage
from kedge.errors import ModelFailed
from kedge.llm.catalogue import Price
from kedge.store.base import Write
from kedge.testing.scripted import EndReply, Hold, Linger, Say, ScriptedModel
from tests.engine.rig import OneModel, Rig, Trouble, TroubledModel, no_complaints, rig, spin, until
from tests.engine.test_doubt import Outages

MAKESHIFT = "hello"


def renames(write: Write) -> bool:
    return any(session.title == "A Title" for session in write.sessions)


async def title(r: Rig) -> str:
    return (await r.engine.session(r.workspace, r.session)).title


async def test_a_title_is_made_while_the_run_goes_on_and_is_paid_for_once(tmp_path: Path) -> None:
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
        assert len(small.requests) == 1, "a session has its title"
        await r.assert_sound()


async def test_a_title_ends_with_its_run_and_is_not_written_behind_its_end(tmp_path: Path) -> None:
    large, small = ScriptedModel("done"), ScriptedModel([Say("A Title"), Hold("never")])
    async with no_complaints(), rig(tmp_path, large, models=OneModel(large, small)) as r:
        assert (await r.end(await r.submit())).text == "done"
        assert small.streams_open == 0
        await spin()
        assert await title(r) == MAKESHIFT
        assert (await r.log_kinds())[-1] == "SessionChanged"


async def test_a_title_that_cannot_be_stopped_makes_the_cleanup_fail_and_is_never_written(tmp_path: Path) -> None:
    large, small = ScriptedModel("done", "next"), ScriptedModel([Linger("gone"), Hold("never"), Say("A Title")])
    models = OneModel(large, small)
    async with no_complaints(), rig(tmp_path, large, models=models, runs={"cleanup_s": 0.05}) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.cleanup) == ("completed", "failed")
        entries = len(await r.log())
        small.release("gone")
        small.release("never")
        await small.wait_open(0)
        await spin()
        assert len(await r.log()) == entries
        assert await title(r) == MAKESHIFT


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_title_in_doubt_does_not_harm_the_run(tmp_path: Path, when: str) -> None:
    store = Outages()
    large, small = ScriptedModel([Hold("k"), Say("done")]), ScriptedModel("A Title")
    async with no_complaints(), rig(tmp_path, large, store, models=OneModel(large, small)) as r:
        setattr(store, when, renames)
        run = await r.submit()
        await until(lambda: getattr(store, when) is None)
        await spin()
        large.release("k")
        assert (await r.end(run)).text == "done"
        assert await title(r) == (MAKESHIFT if when == "before" else "A Title")
        await r.assert_sound()


async def test_a_small_model_that_fails_costs_nothing_but_the_title(tmp_path: Path) -> None:
    large = ScriptedModel([Hold("k"), Say("done")])
    small = TroubledModel(troubles=[Trouble(ModelFailed("no such model"), "A ")])
    async with no_complaints(), rig(tmp_path, large, models=OneModel(large, small)) as r:
        run = await r.submit()
        await until(lambda: bool(small.refused))
        await spin()
        large.release("k")
        assert ((await r.end(run)).outcome, await title(r)) == ("completed", MAKESHIFT)


async def test_a_small_model_that_breaks_in_a_way_nobody_foresaw_costs_nothing_but_the_title(tmp_path: Path) -> None:
    def broken(request: object) -> str:
        raise ZeroDivisionError

    large, small = ScriptedModel([Hold("k"), Say("done")]), ScriptedModel(broken)
    async with no_complaints(), rig(tmp_path, large, models=OneModel(large, small)) as r:
        run = await r.submit()
        await small.wait_requests(1)
        await spin()
        large.release("k")
        assert ((await r.end(run)).outcome, await title(r)) == ("completed", MAKESHIFT)


async def test_a_name_that_a_person_gives_meanwhile_stands(tmp_path: Path) -> None:
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


async def test_a_title_is_cancelled_at_a_shutdown(tmp_path: Path) -> None:
    large, small = ScriptedModel([Hold("never")]), ScriptedModel([Hold("never")])
    async with rig(tmp_path, large, models=OneModel(large, small)) as r:
        await r.submit()
        await asyncio.gather(large.wait_requests(1), small.wait_requests(1))
        await r.engine.close()
        assert (large.streams_open, small.streams_open) == (0, 0)
