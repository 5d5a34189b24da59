"""A crash in each phase of a Run: the next process ends it, repeats no tool call and leaves a sound transcript."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kedge.agent.assembly import make_engine
from kedge.agent.model_choice import RunModel
from kedge.config.schema import Config
from kedge.core.approvals import Ask
from kedge.core.records import Usage
from kedge.core.transcript import Message
from kedge.errors import AskWithdrawn, BadConfig, ModelFailed, StoreDamaged
from kedge.testing.manual_system import CountingIds, ManualClock
from kedge.testing.scripted import Call, EndReply, Hold, Say, ScriptedModel
from kedge.tools.agent import AgentTool
from kedge.tools.base import ToolContext
from kedge.tools.edit import EditTool
from kedge.tools.question import QuestionTool
from kedge.tools.view import ViewTool
from kedge.wire import frames
from tests.engine.rig import (
    ActingTool,
    Fault,
    FaultyModel,
    FaultyStore,
    OneModel,
    Rig,
    do,
    kill,
    never,
    rig,
    spin,
    start,
    until,
)

AGENT = Call("agent", {"prompt": "look", "description": "looking"})

POLICIES = pytest.mark.parametrize("on_crash", ["resume", "end"])


async def restart(r: Rig, tmp_path: Path, model: ScriptedModel, on_crash: str, **options: Any) -> Rig:
    """Kill the process and start the next one on its store."""
    return await start(tmp_path, model, await kill(r), runs={"on_crash": on_crash}, **options)


def expected_outcome(on_crash: str) -> str:
    return "completed" if on_crash == "resume" else "interrupted"


@POLICIES
async def test_crash_while_a_step_streams_after_tool_calls(tmp_path: Path, on_crash: str) -> None:
    tool = ActingTool()
    model = ScriptedModel(do("a"), [Say("half"), Hold("never")])
    r = await start(tmp_path, model, tools=(tool,))
    await r.submit(run_id="x")
    await r.model.wait_requests(2)
    await spin()
    new = await restart(r, tmp_path, ScriptedModel("whole"), on_crash, tools=(tool,))
    assert (await new.end("x")).outcome == expected_outcome(on_crash)
    assert tool.started == ["a"]
    await new.assert_sound()
    await new.engine.close()


@POLICIES
@pytest.mark.parametrize("ready", [0, 1, 2])
async def test_crash_while_tools_are_running(tmp_path: Path, on_crash: str, ready: int) -> None:
    """Two calls, of which `ready` have their result."""
    names = ["a", "b"][:ready] + ["slow", "slower"][: 2 - ready]
    tool = ActingTool(slow=never, slower=never)
    model = ScriptedModel(do(*names), [Hold("never")])
    r = await start(tmp_path, model, tools=(tool,))
    await r.submit(run_id="x")
    await until(lambda: len(tool.started) == 2)
    while len(await r.results()) < ready:  # noqa: ASYNC110
        await asyncio.sleep(0)
    new = await restart(r, tmp_path, ScriptedModel("over"), on_crash, tools=(tool,))
    assert (await new.end("x")).outcome == expected_outcome(on_crash)
    assert sorted(tool.started) == sorted(names), "no call is repeated"
    results = dict(await new.results())
    assert [("cut off" in results[f"call_1_{index}"]) for index in range(2)] == [index >= ready for index in range(2)]
    await new.assert_sound()
    await new.engine.close()


@POLICIES
async def test_crash_with_a_pending_ask_and_a_running_call(tmp_path: Path, on_crash: str) -> None:
    async def block(context: ToolContext) -> str:
        return await never(context)

    tool = ActingTool(b=block)
    ask, b = Call("bash", {"do": "a", "ask": True}), Call("bash", {"do": "b"})
    r = await start(tmp_path, ScriptedModel([ask, b]), tools=(tool,))
    await r.submit(run_id="x")
    await r.until_started(tool, "b")
    (asked,) = await r.until_asked()
    new = await restart(r, tmp_path, ScriptedModel("over"), on_crash, tools=(tool,))
    if on_crash == "resume":
        # Not waited for: an Ask that was withdrawn would never be pending again.
        assert await new.engine.asks.pending(new.workspace) == [asked], "the Ask is kept, not repeated"
        await new.engine.asks.answer(new.workspace, asked.id, "allow")
    assert (await new.end("x")).outcome == expected_outcome(on_crash)
    assert tool.started == (["b", "a"] if on_crash == "resume" else ["b"])
    settled = await new.store.ask(new.workspace.id, asked.id)
    assert settled is not None
    assert settled.state == ("answered" if on_crash == "resume" else "withdrawn")
    await new.assert_sound()
    await new.engine.close()


@POLICIES
async def test_crash_right_after_an_answer_does_not_repeat_the_call(tmp_path: Path, on_crash: str) -> None:
    tool = ActingTool(a=never)
    r = await start(tmp_path, ScriptedModel(do("a", ask=True)), tools=(tool,))
    await r.submit(run_id="x")
    (asked,) = await r.until_asked()
    await r.engine.asks.answer(r.workspace, asked.id, "allow")
    new = await restart(r, tmp_path, ScriptedModel("over"), on_crash, tools=(tool,))
    assert (await new.end("x")).outcome == expected_outcome(on_crash)
    assert tool.started in ([], ["a"])
    assert "cut off" in (await new.results())[0][1]
    await new.assert_sound()
    await new.engine.close()


async def test_pending_question_survives_a_crash(tmp_path: Path) -> None:
    question = Call("question", {"questions": [{"question": "Which?"}]})
    r = await start(tmp_path, ScriptedModel([question]), tools=(QuestionTool(),))
    await r.submit(run_id="x")
    (asked,) = await r.until_asked()
    new = await restart(r, tmp_path, ScriptedModel("thanks"), "resume", tools=(QuestionTool(),))
    # The resumed Run has not reached the question yet. The answer must not be lost.
    await new.engine.asks.answer_question(new.workspace, asked.id, '["this"]')
    assert (await new.end("x")).text == "thanks"
    assert "Answer: this" in (await new.results())[0][1]
    await new.assert_sound()
    await new.engine.close()


async def test_durable_cancel_takes_effect_after_a_crash(tmp_path: Path) -> None:
    tool = ActingTool(slow=never)
    r = await start(tmp_path, ScriptedModel(do("slow")), tools=(tool,))
    await r.submit(run_id="x")
    await r.until_started(tool, "slow")
    await r.engine.cancel(r.workspace, r.session)
    new = await restart(r, tmp_path, ScriptedModel("never"), "resume", tools=(tool,))
    assert (await new.end("x")).outcome == "cancelled"
    await new.assert_sound()
    await new.engine.close()


@POLICIES
async def test_crash_while_a_summary_streams(tmp_path: Path, on_crash: str) -> None:
    tool = ActingTool()
    models = OneModel(ScriptedModel([*do("a"), EndReply(usage=Usage(1000, 1))], [Say("sum"), Hold("never")]))
    models.context_window = 1000
    r = await start(tmp_path, models.model, tools=(tool,), models=models)  # type: ignore[arg-type]
    await r.submit(run_id="x")
    await r.model.wait_requests(2)
    await spin()
    new = await restart(r, tmp_path, ScriptedModel("whole"), on_crash, tools=(tool,))
    assert (await new.end("x")).outcome == expected_outcome(on_crash)
    assert (await new.engine.session(new.workspace, new.session)).summary_message_id == ""
    assert tool.started == ["a"]
    await new.assert_sound()
    await new.engine.close()


@POLICIES
async def test_crash_during_the_backoff_of_a_retry(tmp_path: Path, on_crash: str) -> None:
    fault = Fault(ModelFailed("busy", retryable=True, wait_s=100), "half an answer")
    model = FaultyModel("never", faults=[fault])
    r = await start(tmp_path, model)
    await r.submit(run_id="x")
    await until(lambda: bool(model.refused))
    while "RetryReported" not in await r.log_kinds():  # noqa: ASYNC110
        await asyncio.sleep(0)
    new = await restart(r, tmp_path, ScriptedModel("whole"), on_crash)
    ended = await new.end("x")
    assert (ended.outcome, ended.text) == (expected_outcome(on_crash), "whole" if on_crash == "resume" else "")
    assert "half" not in str(await new.transcript())
    await new.assert_sound()
    await new.engine.close()


@POLICIES
async def test_crash_while_a_child_is_running(tmp_path: Path, on_crash: str) -> None:
    model = ScriptedModel([AGENT], [Say("looking"), Hold("never")])
    r = await start(tmp_path, model, tools=(AgentTool(),))
    await r.submit(run_id="x")
    await r.model.wait_requests(2)
    await spin()
    new = await restart(r, tmp_path, ScriptedModel("over"), on_crash, tools=(AgentTool(),))
    assert (await new.end("x")).outcome == expected_outcome(on_crash)
    assert "cut off" in (await new.results())[0][1]
    assert await new.engine.workspaces.live_runs() == []
    (child,) = [run for run in new.store.data.runs.values() if run.options.parent_run_id == "x"]
    assert child.outcome == "interrupted"
    await new.assert_sound()
    await new.engine.close()


async def test_run_lost_repeatedly_is_given_up_and_counted_once(tmp_path: Path) -> None:
    tool = ActingTool()
    store = None
    for number in range(5):
        first = [*do(f"a{number}"), EndReply(usage=Usage(10, 1))]
        r = await start(tmp_path, ScriptedModel(first, [Hold("never")]), store, tools=(tool,))
        if number == 0:
            await r.submit(run_id="x")
        if (await r.engine.run(r.workspace, "x")).state == "ended":
            break
        await r.model.wait_requests(2)
        await spin()
        store = await kill(r)
    ended = await r.end("x")
    assert (ended.outcome, ended.resumes, ended.usage.input_tokens) == ("interrupted", 2, 30)
    assert ended.error == "the server process was lost"
    assert (await r.engine.session(r.workspace, r.session)).usage.input_tokens == 30
    await r.assert_sound()
    await r.engine.close()


async def test_runs_queued_after_a_lost_run_continue(tmp_path: Path) -> None:
    tool = ActingTool(slow=never)
    r = await start(tmp_path, ScriptedModel(do("slow", "a")), tools=(tool,))
    await r.submit(run_id="x")
    await r.submit(run_id="y")
    await until(lambda: len(tool.started) == 2)
    async with rig(tmp_path, ScriptedModel("next"), await kill(r), runs={"on_crash": "end"}, tools=(tool,)) as new:
        assert ((await new.end("x")).outcome, (await new.end("y")).text) == ("interrupted", "next")
        await new.assert_sound()


async def test_g2_step_count_continues_in_a_resumed_run(tmp_path: Path) -> None:
    tool, model = ActingTool(), ScriptedModel(do("a"), [Say("half"), Hold("never")])
    r = await start(tmp_path, model, tools=(tool,))
    await r.submit(run_id="x", max_steps=3)
    await r.model.wait_requests(2)
    endless = ScriptedModel(*([Call("bash", {"do": name})] for name in "bcdef"))
    new = await start(tmp_path, endless, await kill(r), tools=(tool,))
    ended = await new.end("x")
    assert (ended.reason, ended.steps) == ("max_steps", 3)
    await new.engine.close()


EDITS = (ViewTool(), EditTool())

CHANGE = Call("edit", {"path": "a.txt", "old_string": "old", "new_string": "new"})


async def pending_edit_ask(tmp_path: Path) -> tuple[Rig, Ask]:
    (tmp_path / "a.txt").write_text("old\n")
    model = ScriptedModel([Call("view", {"path": "a.txt"})], [CHANGE], [Hold("never")])
    r = await start(tmp_path, model, tools=EDITS)
    await r.submit(run_id="x")
    (ask,) = await r.until_asked()
    return r, ask


@pytest.mark.found(
    "a review of the engine: a server killed while an edit waits for approval",
    "the next process had not read the file, failed the call and left the Ask pending, so that an answer was accepted "
    "without effect; an Ask now stays valid for the edit it showed, and an obsolete one is withdrawn",
)
async def test_pending_edit_approval_survives_a_crash(tmp_path: Path) -> None:
    r, ask = await pending_edit_ask(tmp_path)
    new = await start(tmp_path, ScriptedModel("done"), await kill(r), tools=EDITS)
    assert [again.id for again in await new.until_asked()] == [ask.id]
    assert (await new.engine.asks.answer(new.workspace, ask.id, "allow")).first
    assert (await new.end("x")).text == "done"
    assert (tmp_path / "a.txt").read_text() == "new\n"
    await new.assert_sound()
    await new.engine.close()


async def test_ask_about_an_outdated_edit_is_withdrawn(tmp_path: Path) -> None:
    r, ask = await pending_edit_ask(tmp_path)
    (tmp_path / "a.txt").write_text("old, and more\n")
    new = await start(tmp_path, ScriptedModel([Hold("k"), Say("done")]), await kill(r), tools=EDITS)
    await new.model.wait_requests(1)
    assert await new.engine.asks.pending(new.workspace) == []
    with pytest.raises(AskWithdrawn):
        await new.engine.asks.answer(new.workspace, ask.id, "allow")
    assert "was not read yet" in (await new.results())[-1][1]
    new.model.release("k")
    assert (await new.end("x")).text == "done"
    await new.assert_sound()
    await new.engine.close()


async def test_ask_allowed_by_config_since_is_withdrawn_first(tmp_path: Path) -> None:
    pending: list[int] = []

    class CountingEditTool(EditTool):
        async def prepare(self, args, context):  # type: ignore[no-untyped-def]
            prepared = await super().prepare(args, context)
            made = prepared.run

            async def run():  # type: ignore[no-untyped-def]
                pending.append(len(await new.engine.asks.pending(new.workspace)))
                return await made()

            return type(prepared)(prepared.intent, run)

    r, _ = await pending_edit_ask(tmp_path)
    store = await kill(r)
    allowed: dict[str, Any] = {"permissions": {"allow": ["edit"]}}
    new = await start(tmp_path, ScriptedModel("done"), store, tools=(ViewTool(), CountingEditTool()), **allowed)
    assert (await new.end("x")).text == "done"
    assert pending == [0]
    assert (tmp_path / "a.txt").read_text() == "new\n"
    await new.assert_sound()
    await new.engine.close()


@pytest.mark.found(
    "a review of the engine: a resumed Run that ends before its first Step",
    "its usage was lost, and its calls that waited for approval had no result; both are restored first",
)
async def test_resumed_run_without_a_model_keeps_usage_and_results(tmp_path: Path) -> None:
    class NoModel(OneModel):
        async def choose(self, config: Config, name: str) -> RunModel:
            raise BadConfig("the model was removed")

    tool, model = ActingTool(), ScriptedModel([*do("a", ask=True), EndReply(usage=Usage(100, 7))])
    r = await start(tmp_path, model, tools=(tool,))
    await r.submit(run_id="x")
    await r.until_asked()
    none = ScriptedModel()
    new = await start(tmp_path, none, await kill(r), tools=(tool,), models=NoModel(none))
    ended = await new.end("x")
    assert (ended.outcome, ended.usage.input_tokens, tool.started) == ("failed", 100, [])
    assert (await new.engine.session(new.workspace, new.session)).usage.input_tokens == 100
    await new.assert_sound()
    await new.engine.close()


class DamagedAfterRecovery(FaultyStore):
    """Transcripts can be read once, by recovery, and are damaged after that."""

    reads = 0

    async def last_messages(self, session_id: str, limit: int, first: str = "") -> list[Message]:
        self.reads += 1
        if self.reads > 1:
            raise StoreDamaged("a page does not fit its checksum")
        return await super().last_messages(session_id, limit, first)


async def test_resumed_run_with_an_unreadable_transcript_ends(tmp_path: Path) -> None:
    tool = ActingTool()
    r = await start(tmp_path, ScriptedModel(do("a", ask=True)), tools=(tool,))
    await r.submit(run_id="x")
    await r.until_asked()
    store = DamagedAfterRecovery((await kill(r)).data)
    new = await start(tmp_path, ScriptedModel(), store, tools=(tool,))
    ended = await new.end("x")
    assert (ended.outcome, ended.reason, store.reads) == ("failed", "store_damaged", 3)
    await new.engine.close()


async def test_usage_of_a_step_survives_a_crash_in_its_tools(tmp_path: Path) -> None:
    tool = ActingTool(slow=never)
    r = await start(tmp_path, ScriptedModel([*do("slow"), EndReply(usage=Usage(10, 1))]), tools=(tool,))
    await r.submit(run_id="x")
    await r.until_started(tool, "slow")
    new = await start(tmp_path, ScriptedModel("over"), await kill(r), tools=(tool,))
    assert (await new.end("x")).usage == Usage(10, 1)
    await new.engine.close()


@pytest.mark.parametrize(("on_crash", "expected"), [("resume", "completed"), ("end", "interrupted")])
async def test_no_run_stays_active_after_a_crash(tmp_path: Path, on_crash: str, expected: str) -> None:
    store = FaultyStore()
    dead = rig(tmp_path, ScriptedModel([Say("lost "), Hold("never")]), store)
    r = await dead.__aenter__()
    await r.submit(run_id="a")
    await r.submit(run_id="b")
    await r.model.wait_requests(1)
    await spin()
    # Simulate a crash: take the store away without stopping anything.
    living = FaultyStore(store.data)
    async with rig(tmp_path, ScriptedModel(lambda request: "done"), living, runs={"on_crash": on_crash}) as new:
        first, second = await new.end("a"), await new.end("b")
        assert (first.outcome, second.outcome) == (expected, "completed")
        assert (await new.log_kinds()).count("RunEnded") == 2
        for asked in new.model.requests:  # no partial attempt, no empty message is sent to the model
            roles = [message.role for message in asked.request.messages]
            assert roles[-1] == "user"
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_broken_repository_config_does_not_prevent_recovery(tmp_path: Path) -> None:
    store = FaultyStore()
    async with rig(tmp_path, ScriptedModel([Hold("never")]), store) as r:
        await r.submit(run_id="a")
        await r.submit(run_id="b")
        await r.model.wait_requests(1)
    (tmp_path / "kedge.toml").write_text("model = ")
    ids, models = CountingIds(after=1000), OneModel(ScriptedModel("done"))
    engine = make_engine(FaultyStore(store.data), ManualClock(), ids, frames, models, Config())
    await engine.open()
    await until(lambda: not engine.recovery.is_starting)
    (workspace,) = engine.workspaces.all()
    assert (await engine.wait_run(workspace, "b", 20)).text == "done"
    await engine.close()
