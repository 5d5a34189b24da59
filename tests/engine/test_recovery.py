"""A process lost in each phase of a Run: the next one ends it, runs no tool twice and leaves a sound transcript."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kedge.core.records import Usage
from kedge.errors import ModelFailed
from kedge.testing.scripted import Call, EndReply, Hold, Say, ScriptedModel
from kedge.tools.agent import AgentTool
from kedge.tools.base import ToolContext
from kedge.tools.question import QuestionTool
from tests.engine.rig import ActingTool, OneModel, Rig, Trouble, TroubledModel, begin, killed, rig, spin, until
from tests.engine.test_calls import do, never

AGENT = Call("agent", {"prompt": "look", "description": "looking"})
POLICIES = pytest.mark.parametrize("on_crash", ["resume", "end"])


async def gone_on(r: Rig, tmp_path: Path, model: ScriptedModel, on_crash: str, **given: Any) -> Rig:
    """The next process, on what the last one left."""
    return await begin(tmp_path, model, await killed(r), runs={"on_crash": on_crash}, **given)


def outcome(on_crash: str) -> str:
    return "completed" if on_crash == "resume" else "interrupted"


@POLICIES
async def test_lost_while_a_step_streams_behind_tools(tmp_path: Path, on_crash: str) -> None:
    tool = ActingTool()
    model = ScriptedModel(do("a"), [Say("half"), Hold("never")])
    r = await begin(tmp_path, model, tools=(tool,))
    await r.submit(run_id="x")
    await r.model.wait_requests(2)
    await spin()
    new = await gone_on(r, tmp_path, ScriptedModel("whole"), on_crash, tools=(tool,))
    assert (await new.end("x")).outcome == outcome(on_crash)
    assert tool.begun == ["a"]
    await new.assert_sound()
    await new.engine.close()


@POLICIES
@pytest.mark.parametrize("ready", [0, 1, 2])
async def test_lost_while_tools_are_at_work(tmp_path: Path, on_crash: str, ready: int) -> None:
    """Two calls, of which so many have their result."""
    names = ["a", "b"][:ready] + ["slow", "slower"][: 2 - ready]
    tool = ActingTool(slow=never, slower=never)
    model = ScriptedModel(do(*names), [Hold("never")])
    r = await begin(tmp_path, model, tools=(tool,))
    await r.submit(run_id="x")
    await until(lambda: len(tool.begun) == 2)
    while len(await r.results()) < ready:  # noqa: ASYNC110
        await asyncio.sleep(0)
    new = await gone_on(r, tmp_path, ScriptedModel("over"), on_crash, tools=(tool,))
    assert (await new.end("x")).outcome == outcome(on_crash)
    assert sorted(tool.begun) == sorted(names), "no call is made a second time"
    found = dict(await new.results())
    assert [("cut off" in found[f"call_1_{index}"]) for index in range(2)] == [index >= ready for index in range(2)]
    await new.assert_sound()
    await new.engine.close()


@POLICIES
async def test_lost_while_one_call_waits_for_people_and_another_is_at_work(tmp_path: Path, on_crash: str) -> None:
    async def at_work(context: ToolContext) -> str:
        return await never(context)

    tool = ActingTool(b=at_work)
    ask, b = Call("bash", {"do": "a", "leave": True}), Call("bash", {"do": "b"})
    r = await begin(tmp_path, ScriptedModel([ask, b]), tools=(tool,))
    await r.submit(run_id="x")
    await r.until_begun(tool, "b")
    (asked,) = await r.until_asked()
    new = await gone_on(r, tmp_path, ScriptedModel("over"), on_crash, tools=(tool,))
    if on_crash == "resume":
        (again,) = await new.until_asked()
        assert again == asked, "it stands, and is not asked twice"
        await new.engine.asks.answer(new.workspace, asked.id, "allow")
    assert (await new.end("x")).outcome == outcome(on_crash)
    assert tool.begun == (["b", "a"] if on_crash == "resume" else ["b"])
    settled = await new.store.ask(new.workspace.id, asked.id)
    assert settled is not None
    assert settled.state == ("answered" if on_crash == "resume" else "withdrawn")
    await new.assert_sound()
    await new.engine.close()


@POLICIES
async def test_lost_right_after_an_answer_the_call_may_have_begun_and_is_not_made_again(
    tmp_path: Path, on_crash: str
) -> None:
    tool = ActingTool(a=never)
    r = await begin(tmp_path, ScriptedModel(do("a", leave=True)), tools=(tool,))
    await r.submit(run_id="x")
    (asked,) = await r.until_asked()
    await r.engine.asks.answer(r.workspace, asked.id, "allow")
    new = await gone_on(r, tmp_path, ScriptedModel("over"), on_crash, tools=(tool,))
    assert (await new.end("x")).outcome == outcome(on_crash)
    assert tool.begun in ([], ["a"])
    assert "cut off" in (await new.results())[0][1]
    await new.assert_sound()
    await new.engine.close()


async def test_a_question_that_was_pending_stands_and_its_answer_reaches_the_model(tmp_path: Path) -> None:
    question = Call("question", {"questions": [{"question": "Which?"}]})
    r = await begin(tmp_path, ScriptedModel([question]), tools=(QuestionTool(),))
    await r.submit(run_id="x")
    (asked,) = await r.until_asked()
    new = await gone_on(r, tmp_path, ScriptedModel("thanks"), "resume", tools=(QuestionTool(),))
    # Before the Run has come so far: the answer must not get lost.
    await new.engine.asks.answer_question(new.workspace, asked.id, '["this"]')
    assert (await new.end("x")).text == "thanks"
    assert "Answer: this" in (await new.results())[0][1]
    await new.assert_sound()
    await new.engine.close()


async def test_a_cancel_that_was_durable_before_the_process_was_lost_ends_the_run_and_its_asks(tmp_path: Path) -> None:
    tool = ActingTool(slow=never)
    r = await begin(tmp_path, ScriptedModel(do("slow")), tools=(tool,))
    await r.submit(run_id="x")
    await r.until_begun(tool, "slow")
    await r.engine.cancel(r.workspace, r.session)
    new = await gone_on(r, tmp_path, ScriptedModel("never"), "resume", tools=(tool,))
    assert (await new.end("x")).outcome == "cancelled"
    await new.assert_sound()
    await new.engine.close()


@POLICIES
async def test_lost_while_a_summary_streams(tmp_path: Path, on_crash: str) -> None:
    tool = ActingTool()
    models = OneModel(ScriptedModel([*do("a"), EndReply(usage=Usage(1000, 1))], [Say("sum"), Hold("never")]))
    models.context_window = 1000
    r = await begin(tmp_path, models.model, tools=(tool,), models=models)  # type: ignore[arg-type]
    await r.submit(run_id="x")
    await r.model.wait_requests(2)
    await spin()
    new = await gone_on(r, tmp_path, ScriptedModel("whole"), on_crash, tools=(tool,))
    assert (await new.end("x")).outcome == outcome(on_crash)
    assert (await new.engine.session(new.workspace, new.session)).summary_message_id == ""
    assert tool.begun == ["a"]
    await new.assert_sound()
    await new.engine.close()


@POLICIES
async def test_lost_in_the_pause_before_another_attempt(tmp_path: Path, on_crash: str) -> None:
    trouble = Trouble(ModelFailed("busy", retryable=True, wait_s=100), "half an answer")
    model = TroubledModel("never", troubles=[trouble])
    r = await begin(tmp_path, model)
    await r.submit(run_id="x")
    await until(lambda: bool(model.refused))
    while "RetryReported" not in await r.log_kinds():  # noqa: ASYNC110
        await asyncio.sleep(0)
    new = await gone_on(r, tmp_path, ScriptedModel("whole"), on_crash)
    ended = await new.end("x")
    assert (ended.outcome, ended.text) == (outcome(on_crash), "whole" if on_crash == "resume" else "")
    assert "half" not in str(await new.transcript())
    await new.assert_sound()
    await new.engine.close()


@POLICIES
async def test_lost_while_a_child_is_at_work(tmp_path: Path, on_crash: str) -> None:
    model = ScriptedModel([AGENT], [Say("looking"), Hold("never")])
    r = await begin(tmp_path, model, tools=(AgentTool(),))
    await r.submit(run_id="x")
    await r.model.wait_requests(2)
    await spin()
    new = await gone_on(r, tmp_path, ScriptedModel("over"), on_crash, tools=(AgentTool(),))
    assert (await new.end("x")).outcome == outcome(on_crash)
    assert "cut off" in (await new.results())[0][1]
    assert await new.engine.workspaces.live_runs() == []
    (child,) = [run for run in new.store.data.runs.values() if run.options.parent_run_id == "x"]
    assert child.outcome == "interrupted"
    await new.assert_sound()
    await new.engine.close()


async def test_a_run_lost_again_and_again_is_given_up_and_what_it_cost_is_counted_once(tmp_path: Path) -> None:
    tool = ActingTool()
    store = None
    for number in range(5):
        first = [*do(f"a{number}"), EndReply(usage=Usage(10, 1))]
        r = await begin(tmp_path, ScriptedModel(first, [Hold("never")]), store, tools=(tool,))
        if number == 0:
            await r.submit(run_id="x")
        if (await r.engine.run(r.workspace, "x")).state == "ended":
            break
        await r.model.wait_requests(2)
        await spin()
        store = await killed(r)
    ended = await r.end("x")
    assert (ended.outcome, ended.resumes, ended.usage.input_tokens) == ("interrupted", 3, 40)
    assert (await r.engine.session(r.workspace, r.session)).usage.input_tokens == 40
    await r.assert_sound()
    await r.engine.close()


async def test_runs_queued_behind_a_lost_one_go_on_and_the_next_request_is_valid(tmp_path: Path) -> None:
    tool = ActingTool(slow=never)
    r = await begin(tmp_path, ScriptedModel(do("slow", "a")), tools=(tool,))
    await r.submit(run_id="x")
    await r.submit(run_id="y")
    await until(lambda: len(tool.begun) == 2)
    async with rig(tmp_path, ScriptedModel("next"), await killed(r), runs={"on_crash": "end"}, tools=(tool,)) as new:
        assert ((await new.end("x")).outcome, (await new.end("y")).text) == ("interrupted", "next")
        await new.assert_sound()
