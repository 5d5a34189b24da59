"""Child agents: the Run of a child always ends with the Run of its parent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.agent.model_choice import RunModel
from kedge.config.schema import Config
from kedge.core.events import RunAccepted
from kedge.core.records import Usage
from kedge.errors import BadConfig
from kedge.llm.base import ModelRequest
from kedge.llm.catalogue import Price
from kedge.store.base import Write
from kedge.testing.scripted import Call, EndReply, Fail, Hold, Reply, Say, ScriptedModel
from kedge.tools.agent import AgentTool
from tests.engine.rig import (
    CLIENT,
    OneModel,
    OutageStore,
    PlainMachine,
    Rig,
    no_asyncio_errors,
    rig,
    spin,
    until,
    until_marked,
)


def agent(number: int = 0) -> Call:
    return Call("agent", {"prompt": f"child {number}", "description": f"child {number}"})


def is_child(request: ModelRequest) -> bool:
    return request.messages[0].text.startswith("child")


def makes_child_session(write: Write) -> bool:
    return any(session.parent_session_id and not session.message_count for session in write.sessions) and not write.lane


def accepts_child(write: Write) -> bool:
    child = any(run.options.parent_run_id for run in write.runs)
    return child and any(isinstance(event, RunAccepted) for _, event in write.events)


async def children(r: Rig) -> list[str | None]:
    return [run.outcome for run in r.store.data.runs.values() if run.options.parent_run_id]


async def assert_all_ended(r: Rig) -> None:
    """Assert that no Run is live in any session. A child that outlives its parent would be."""
    await until(lambda: not r.store.data.live)
    await r.assert_sound()


async def test_many_children_run_concurrently_and_costs_are_summed(tmp_path: Path) -> None:
    count = 30

    def reply(request: ModelRequest) -> Reply:
        if is_child(request):
            return [Say(f"found by {request.messages[0].text}"), EndReply(usage=Usage(10, 1))]
        if len(request.messages) == 1:
            return [*(agent(number) for number in range(count)), EndReply(usage=Usage(100, 1))]
        return "all of them"

    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel(reply), tools=(AgentTool(),)) as r:
        ended = await r.end(await r.submit())
        assert (ended.text, ended.usage.input_tokens) == ("all of them", 100 + 10 * count)
        assert sorted(content for _, content in await r.results()) == sorted(
            f"found by child {number}" for number in range(count)
        )
        assert await children(r) == ["completed"] * count
        await assert_all_ended(r)


async def test_failed_child_is_an_error_result_of_the_parent(tmp_path: Path) -> None:
    model = ScriptedModel([agent()], [Fail("on fire")], "well")
    async with rig(tmp_path, model, tools=(AgentTool(),)) as r:
        assert (await r.end(await r.submit())).text == "well"
        assert "on fire" in (await r.results())[0][1]
        await assert_all_ended(r)


async def test_child_that_ends_before_the_wait_reports_its_end(tmp_path: Path) -> None:
    class NoModelForChildren(OneModel):
        asked = 0

        async def choose(self, config: Config, name: str) -> RunModel:
            self.asked += 1
            if self.asked == 2:
                raise BadConfig("no model for children")
            return await super().choose(config, name)

    model = ScriptedModel([agent()], "well")
    async with rig(tmp_path, model, models=NoModelForChildren(model), tools=(AgentTool(),)) as r:
        assert (await r.end(await r.submit())).text == "well"
        assert "no model for children" in (await r.results())[0][1]


@pytest.mark.parametrize("what", [makes_child_session, accepts_child])
async def test_parent_cancelled_during_child_accept_leaves_no_child(tmp_path: Path, what: object) -> None:
    store = OutageStore()
    async with (
        no_asyncio_errors(),
        rig(tmp_path, ScriptedModel([agent()], [Hold("never")]), store, tools=(AgentTool(),)) as r,
    ):
        store.held = what  # type: ignore[assignment]
        run = await r.submit()
        await store.waiting.wait()
        await r.engine.cancel_run(r.workspace, run.run_id)
        await spin()
        store.gate.set()
        assert (await r.end(run)).outcome == "cancelled"
        assert await children(r) in ([], ["cancelled"])
        await assert_all_ended(r)


@pytest.mark.parametrize("passes", range(0, 40, 3))
async def test_parent_cancelled_at_any_point_of_child_startup(tmp_path: Path, passes: int) -> None:
    model = ScriptedModel([agent()], [Hold("never")])
    async with no_asyncio_errors(), rig(tmp_path, model, tools=(AgentTool(),)) as r:
        run = await r.submit()
        await until(lambda: len(r.store.data.sessions) == 2)
        await spin(passes)
        await r.engine.cancel_run(r.workspace, run.run_id)
        assert (await r.end(run)).outcome == "cancelled"
        await assert_all_ended(r)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", [makes_child_session, accepts_child])
async def test_uncertainly_accepted_child_ends_with_its_parent(tmp_path: Path, what: object, when: str) -> None:
    store = OutageStore()
    model = ScriptedModel([agent()], "without it")
    async with no_asyncio_errors(), rig(tmp_path, model, store, tools=(AgentTool(),)) as r:
        setattr(store, when, what)
        assert (await r.end(await r.submit())).text == "without it"
        ((_, content),) = await r.results()
        assert "could not be started" in content
        await assert_all_ended(r)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_uncertain_cancel_of_a_child_still_cancels_it(tmp_path: Path, when: str) -> None:
    def cancels_child(write: Write) -> bool:
        return any(run.options.parent_run_id and run.stopping and run.state == "active" for run in write.runs)

    store = OutageStore()
    async with (
        no_asyncio_errors(),
        rig(tmp_path, ScriptedModel([agent()], [Hold("never")]), store, tools=(AgentTool(),)) as r,
    ):
        run = await r.submit()
        await r.model.wait_requests(2)
        setattr(store, when, cancels_child)
        await r.engine.cancel_run(r.workspace, run.run_id)
        assert (await r.end(run)).outcome == "cancelled"
        assert await children(r) == ["cancelled"], "the child ends before its parent"
        await assert_all_ended(r)


async def test_session_with_a_running_child_can_be_deleted(tmp_path: Path) -> None:
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel([agent()], [Hold("never")]), tools=(AgentTool(),)) as r:
        await r.submit()
        await r.model.wait_requests(2)
        await r.engine.delete_session(r.workspace, r.session)
        assert r.model.streams_open == 0
        assert not r.store.data.live
        assert await children(r) == ["cancelled"]


async def test_deleted_child_session_is_an_error_result(tmp_path: Path) -> None:
    async with (
        no_asyncio_errors(),
        rig(tmp_path, ScriptedModel([agent()], [Hold("never")], "well"), tools=(AgentTool(),)) as r,
    ):
        run = await r.submit()
        await r.model.wait_requests(2)
        (child,) = [session for session in await r.engine.sessions(r.workspace) if session.parent_session_id]
        await r.engine.delete_session(r.workspace, child.id)
        assert (await r.end(run)).text == "well"
        assert "cancelled" in (await r.results())[0][1]
        await assert_all_ended(r)


async def test_parent_and_child_keep_an_unclaimed_workspace_open(tmp_path: Path) -> None:
    model = ScriptedModel([agent()], [Hold("k"), Say("found")], "done")
    async with no_asyncio_errors(), rig(tmp_path, model, tools=(AgentTool(),)) as r:
        await r.submit(run_id="x")
        await r.model.wait_requests(2)
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        model.release("k")
        await until(lambda: r.engine.workspaces.all() == [])
        assert r.store.data.runs[r.workspace.id, "x"].text == "done"


async def test_shutdown_ends_parent_and_child(tmp_path: Path) -> None:
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel([agent()], [Hold("never")]), tools=(AgentTool(),)) as r:
        await r.submit(run_id="x")
        await r.model.wait_requests(2)
        await asyncio.wait_for(r.engine.close(), 20)
        assert not r.store.data.live
        assert {run.outcome for run in r.store.data.runs.values()} <= {"interrupted", "cancelled"}


@pytest.mark.found(
    "the steps of simulator seed 3547 in another order",
    "a Run that started a child during a shutdown, before it was stopped itself, failed with the refusal; it is now "
    "interrupted like all others",
)
async def test_child_refused_by_a_shutdown_interrupts_the_parent(tmp_path: Path) -> None:
    model, machine = ScriptedModel([Hold("k"), agent()]), PlainMachine()
    async with no_asyncio_errors(), rig(tmp_path, model, tools=(AgentTool(),), machine=machine) as r:
        # The server ends user commands first. A slow one delays the stop of the Run.
        stubborn = "trap '' TERM; echo $$ > mark; while :; do sleep 0.05; done"
        command_task = asyncio.create_task(r.engine.user_commands.run(r.workspace, r.session, stubborn))
        await until_marked(tmp_path / "mark")
        await r.submit(run_id="x")
        await r.model.wait_requests(1)
        closing = asyncio.create_task(r.engine.close())
        await until(lambda: r.engine.is_closing)
        model.release("k")
        await closing
        await asyncio.gather(command_task, return_exceptions=True)
        (run,) = r.store.data.runs.values()
        assert (run.outcome, run.reason) == ("interrupted", "shutdown")


@pytest.mark.found(
    "a review of the engine: a Step that starts many agents",
    "each of them received the whole remaining budget; they now share it",
)
async def test_concurrent_children_share_the_remaining_budget(tmp_path: Path) -> None:
    agents = [Call("agent", {"prompt": f"child {number}", "description": "child"}) for number in range(4)]
    model = ScriptedModel([*agents, EndReply(usage=Usage(1_000_000, 0))], *["found"] * 4, "done")
    models = OneModel(model, price=Price(0.2, 1.0))
    async with rig(tmp_path, model, models=models, tools=(AgentTool(),)) as r:
        assert (await r.end(await r.submit(budget_usd=1.0))).text == "done"
        budgets = [run.options.budget_usd or 0.0 for run in r.store.data.runs.values() if run.options.parent_run_id]
        assert len(budgets) == 4
        assert sum(budgets) <= 0.8 + 1e-9


@pytest.mark.found(
    "a review of the engine: an agent of a session with its own model",
    "the agent used the configured model, or none, and a Run with a budget could start any number of agents without "
    "one; an agent now has the model of its session and the remaining budget",
)
async def test_child_inherits_session_model_and_remaining_budget(tmp_path: Path) -> None:
    class RecordingModels(OneModel):
        async def choose(self, config: Config, name: str) -> RunModel:
            self.names = [*getattr(self, "names", []), name]
            return await super().choose(config, name)

    agent = Call("agent", {"prompt": "child", "description": "child"})
    model = ScriptedModel([agent, EndReply(usage=Usage(1_000_000, 0))], "found", "done")
    models = RecordingModels(model, price=Price(0.25, 1.0))
    async with rig(tmp_path, model, models=models, tools=(AgentTool(),)) as r:
        await r.engine.change_session(r.workspace, r.session, None, "own/model", "low")
        assert (await r.end(await r.submit(budget_usd=1.0))).text == "done"
        assert models.names == ["own/model", "own/model"]
        (child,) = (run for run in r.store.data.runs.values() if run.options.parent_run_id)
        assert child.options.budget_usd == pytest.approx(0.75)
        assert [one.request.effort for one in model.requests] == ["low", "low", "low"]
        fork = await r.engine.fork_session(
            r.workspace, r.session, (await r.engine.messages(r.workspace, r.session, None, 1))[0].id
        )
        assert (fork.model, fork.effort) == ("own/model", "low")
