"""Approvals and questions while things go wrong: appends in doubt, answers that race each other, cancels and ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.core.approvals import Answer
from kedge.errors import AskIsOver, StoreUnavailable
from kedge.store.base import Write
from kedge.testing.scripted import Call, Hold, ScriptedModel
from kedge.tools.base import ToolContext
from kedge.tools.question import QuestionTool
from tests.engine.rig import ActingTool, no_complaints, rig, spin
from tests.engine.test_calls import do
from tests.engine.test_doubt import Outages

ASK = Call("question", {"questions": [{"question": "Which?"}]})


def asks(write: Write) -> bool:
    return any(ask.state == "pending" for ask in write.asks)


def answers(write: Write) -> bool:
    return any(ask.state == "answered" for ask in write.asks)


def withdraws(write: Write) -> bool:
    return any(ask.state == "withdrawn" for ask in write.asks)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_ask_in_doubt_ends_the_run_and_stands_before_nobody(tmp_path: Path, when: str) -> None:
    store, tool = Outages(), ActingTool()
    async with no_complaints(), rig(tmp_path, ScriptedModel(do("a", leave=True)), store, tools=(tool,)) as r:
        setattr(store, when, asks)
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.reason) == ("failed", "store_unavailable")
        assert tool.begun == []
        assert await r.store.asks(r.workspace.id) == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_answer_in_doubt_can_be_given_again_and_the_call_is_made_once(tmp_path: Path, when: str) -> None:
    store, tool = Outages(), ActingTool()
    async with no_complaints(), rig(tmp_path, ScriptedModel(do("a", leave=True), "ok"), store, tools=(tool,)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        setattr(store, when, answers)
        with pytest.raises(StoreUnavailable):
            await r.engine.asks.answer(r.workspace, ask.id, "allow")
        if when == "before":
            assert (await r.engine.asks.answer(r.workspace, ask.id, "allow")).first
        assert (await r.end(run)).text == "ok"
        assert tool.begun == ["a"]
        await r.assert_sound()


async def test_an_answer_that_was_written_though_the_store_said_no_wins_over_a_later_one(tmp_path: Path) -> None:
    store, tool = Outages(), ActingTool()
    async with rig(tmp_path, ScriptedModel(do("a", leave=True), "ok"), store, tools=(tool,)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        store.after = answers
        with pytest.raises(StoreUnavailable):
            await r.engine.asks.answer(r.workspace, ask.id, "deny")
        try:
            again = await r.engine.asks.answer(r.workspace, ask.id, "allow")
        except AskIsOver:
            pass  # the Run has ended meanwhile
        else:
            assert (again.first, again.ask.answer) == (False, "deny")
        await r.end(run)
        assert tool.begun == []


async def test_of_many_answers_at_once_one_wins_and_all_are_told_which(tmp_path: Path) -> None:
    tool = ActingTool()
    async with rig(tmp_path, ScriptedModel(do("a", leave=True), [Hold("k")]), tools=(tool,)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        given: list[Answer] = ["allow", "deny", "allow_session", "allow_always"] * 3
        answer = r.engine.asks.answer
        told = await asyncio.gather(
            *(answer(r.workspace, ask.id, one, by=f"c{number}") for number, one in enumerate(given))
        )
        (first,) = [answered for answered in told if answered.first]
        assert {answered.ask for answered in told} == {first.ask}
        grants = await r.engine.asks.grants(r.workspace)
        assert len(grants) == (first.ask.answer in ("allow_session", "allow_always"))
        r.model.release("k")
        await r.end(run)
        assert tool.begun == (["a"] if first.ask.is_allowed else [])


@pytest.mark.parametrize("passes", range(0, 24, 2))
async def test_an_answer_that_races_a_cancel_is_taken_or_refused_and_the_run_is_cancelled(
    tmp_path: Path, passes: int
) -> None:
    tool = ActingTool()
    async with no_complaints(), rig(tmp_path, ScriptedModel(do("a", leave=True), [Hold("never")]), tools=(tool,)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        answering = asyncio.create_task(r.engine.asks.answer(r.workspace, ask.id, "allow"))
        await spin(passes)
        await r.engine.cancel(r.workspace, r.session)
        (told,) = await asyncio.gather(answering, return_exceptions=True)
        assert (await r.end(run)).outcome == "cancelled"
        settled = await r.store.ask(r.workspace.id, ask.id)
        assert settled is not None
        if isinstance(told, BaseException):
            assert isinstance(told, AskIsOver)
            assert (settled.state, tool.begun) == ("withdrawn", [])
        else:
            assert settled.state == "answered"
        await r.assert_sound()


@pytest.mark.parametrize("passes", range(0, 24, 2))
async def test_an_answer_that_races_the_end_of_its_run_does_no_harm(tmp_path: Path, passes: int) -> None:
    gate = asyncio.Event()

    async def breaks_the_run(context: ToolContext) -> str:
        await gate.wait()
        raise StoreUnavailable("the disk is full")

    tool = ActingTool(breaks=breaks_the_run)
    calls = [Call("bash", {"do": "a", "leave": True}), Call("bash", {"do": "breaks"})]
    async with no_complaints(), rig(tmp_path, ScriptedModel(calls), tools=(tool,)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        gate.set()
        await spin(passes)
        (told,) = await asyncio.gather(r.engine.asks.answer(r.workspace, ask.id, "allow"), return_exceptions=True)
        assert not isinstance(told, BaseException) or isinstance(told, AskIsOver)
        assert (await r.end(run)).reason == "store_unavailable"
        settled = await r.store.ask(r.workspace.id, ask.id)
        assert settled is not None
        assert settled.state == ("withdrawn" if isinstance(told, BaseException) else "answered")
        await r.assert_sound()


@pytest.mark.parametrize("passes", range(0, 40, 2))
async def test_a_cancel_while_an_ask_is_being_put_leaves_no_ask_and_nobody_waiting(tmp_path: Path, passes: int) -> None:
    store, tool = Outages(), ActingTool()
    async with no_complaints(), rig(tmp_path, ScriptedModel(do("a", "b", leave=True)), store, tools=(tool,)) as r:
        store.held = asks
        run = await r.submit()
        await store.waiting.wait()
        cancelling = asyncio.create_task(r.engine.cancel(r.workspace, r.session))
        await spin(passes)
        store.gate.set()
        await cancelling
        assert (await r.end(run)).outcome == "cancelled"
        assert tool.begun == []
        await r.assert_sound()


async def test_an_ask_that_is_pending_at_a_shutdown_is_withdrawn_with_the_end_of_its_run(tmp_path: Path) -> None:
    tool = ActingTool()
    async with rig(tmp_path, ScriptedModel(do("a", "b", leave=True)), tools=(tool,)) as r:
        await r.submit(run_id="x")
        first, second = await r.until_asked(2)
        await r.engine.close()
        data = r.store.data
        assert data.runs[r.workspace.id, "x"].outcome == "interrupted"
        assert {data.asks[ask.id].state for ask in (first, second)} == {"withdrawn"}


async def test_a_shutdown_while_an_ask_is_being_put_ends(tmp_path: Path) -> None:
    store, tool = Outages(), ActingTool()
    async with rig(tmp_path, ScriptedModel(do("a", leave=True)), store, tools=(tool,)) as r:
        store.held = asks
        await r.submit(run_id="x")
        await store.waiting.wait()
        closing = asyncio.create_task(r.engine.close())
        await spin()
        store.gate.set()
        await closing
        assert r.store.data.runs[r.workspace.id, "x"].state == "ended"
        assert all(ask.state != "pending" for ask in r.store.data.asks.values())


@pytest.mark.parametrize("how", ["cancel", "cancel_run", "delete", "interrupt"])
async def test_whatever_stops_a_run_withdraws_its_asks_in_the_same_append(tmp_path: Path, how: str) -> None:
    tool = ActingTool()
    model = ScriptedModel(do("a", leave=True), "next")
    async with no_complaints(), rig(tmp_path, model, tools=(tool,)) as r:
        await r.submit(run_id="x")
        await r.until_asked()
        match how:
            case "cancel":
                await r.engine.cancel(r.workspace, r.session)
            case "cancel_run":
                await r.engine.cancel_run(r.workspace, "x")
            case "delete":
                await r.engine.delete_session(r.workspace, r.session)
            case _:
                await r.submit(run_id="y", when_busy="interrupt")
        assert await r.store.asks(r.workspace.id) == []
        if how != "delete":
            assert (await r.end("x")).outcome == "cancelled"
            await r.assert_sound() if how != "interrupt" else await r.end("y")


async def test_a_denied_call_is_not_made_and_the_others_of_its_step_are(tmp_path: Path) -> None:
    tool = ActingTool()
    async with rig(tmp_path, ScriptedModel(do("a", "b", "c", leave=True), "ok"), tools=(tool,)) as r:
        run = await r.submit()
        for ask in await r.until_asked(3):
            answer: Answer = "deny" if ask.description == "b" else "allow"
            await r.engine.asks.answer(r.workspace, ask.id, answer, "no b please")
        assert (await r.end(run)).text == "ok"
        assert sorted(tool.begun) == ["a", "c"]
        assert "no b please" in dict(await r.results())["call_1_1"]
        await r.assert_sound()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_question_whose_answer_is_in_doubt_reaches_the_model_once(tmp_path: Path, when: str) -> None:
    store = Outages()
    async with no_complaints(), rig(tmp_path, ScriptedModel([ASK], "ok"), store, tools=(QuestionTool(),)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        setattr(store, when, answers)
        with pytest.raises(StoreUnavailable):
            await r.engine.asks.answer_question(r.workspace, ask.id, '["this"]')
        if when == "before":
            await r.engine.asks.answer_question(r.workspace, ask.id, '["this"]')
        assert (await r.end(run)).text == "ok"
        ((_, content),) = await r.results()
        assert "Answer: this" in content
        await r.assert_sound()


async def test_of_two_answers_that_are_alike_in_everything_one_is_the_first(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel(do("a", leave=True), "ok"), tools=(ActingTool(),)) as r:
        run = await r.submit()
        (ask,) = await r.until_asked()
        answer = r.engine.asks.answer
        told = await asyncio.gather(*(answer(r.workspace, ask.id, "allow") for _ in range(3)))
        assert sorted(answered.first for answered in told) == [False, False, True]
        await r.end(run)


async def test_a_question_that_a_cancel_withdraws_is_not_an_answer_of_people(tmp_path: Path) -> None:
    async with no_complaints(), rig(tmp_path, ScriptedModel([ASK]), tools=(QuestionTool(),)) as r:
        run = await r.submit()
        await r.until_asked()
        await r.engine.cancel(r.workspace, r.session)
        assert (await r.end(run)).outcome == "cancelled"
        ((_, content),) = await r.results()
        assert "cut off" in content
        await r.assert_sound()


async def test_an_end_in_doubt_that_withdrew_an_ask_nobody_waits_for_any_more(tmp_path: Path) -> None:
    """The call was cancelled with its Run; the Lane is read again and finds its Ask withdrawn."""
    store, gate = Outages(), asyncio.Event()

    async def breaks_the_run(context: ToolContext) -> str:
        await gate.wait()
        raise StoreUnavailable("the disk is full")

    tool = ActingTool(breaks=breaks_the_run)
    calls = [Call("bash", {"do": "a", "leave": True}), Call("bash", {"do": "breaks"})]
    async with no_complaints(), rig(tmp_path, ScriptedModel(calls, "next"), store, tools=(tool,)) as r:
        run = await r.submit(run_id="x")
        behind = await r.submit(run_id="y")
        await r.until_asked()
        store.after = withdraws
        gate.set()
        assert (await r.end(run)).reason == "store_unavailable"
        assert (await r.end(behind)).text == "next"
        assert await r.ends() == ["x", "y"]
        await r.assert_sound()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_ask_in_doubt_leaves_nobody_waiting(tmp_path: Path, when: str) -> None:
    store = Outages()
    async with rig(tmp_path, ScriptedModel(do("a", leave=True)), store, tools=(ActingTool(),)) as r:
        setattr(store, when, asks)
        await r.end(await r.submit())
        await r.assert_sound()
