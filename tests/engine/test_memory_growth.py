"""Memory does not grow with the number of sessions or actions, even if a server runs for weeks.

The tests count objects and memory blocks, so that one leaked object per action is detected on any machine.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from weakref import ref

import pytest

from kedge.agent.assembly import make_engine
from kedge.config.schema import Config
from kedge.core.records import Prompt, RunOptions
from kedge.engine.engine import Engine
from kedge.engine.lane_state import LaneState
from kedge.engine.workspace import IDLE_LANES_MAX, Workspace
from kedge.llm.base import ModelRequest
from kedge.store.sqlite import SqliteStore
from kedge.testing.manual_system import CountingIds, ManualClock
from kedge.testing.scripted import Call, Hold, Reply, Say, ScriptedModel
from kedge.wire import frames
from proof.figures import proof, size
from tests.engine.rig import CLIENT, ActingTool, OneModel, Rig, rig, spin

#: More than stay in memory. Sessions.
MANY = IDLE_LANES_MAX + 40

#: Memory blocks are counted after each round. A leak per action shows in all rounds, a resized list in only one.
ROUNDS = 3

#: Allowance for caches that still fill in one round. Memory blocks.
CACHE_BLOCKS = 20


def lanes_in_memory(workspace: Workspace) -> int:
    """Count the Lanes that exist, including unreachable ones of the workspace."""
    gc.collect()
    return sum(isinstance(thing, LaneState) and thing.feed is workspace.feed for thing in gc.get_objects())


async def prompt_in_new_session(r: Rig) -> str:
    r.session = (await r.engine.create_session(r.workspace, "")).id
    await r.end(await r.submit())
    return r.session


@pytest.mark.found(
    "a review of memory growth for the soak test",
    "each session that was ever used stayed in memory, with all files its agent had read, until its workspace closed, "
    "and every command searched all of them; idle sessions beyond one hundred are now evicted",
)
async def test_idle_sessions_are_evicted_and_reload_unchanged(tmp_path: Path) -> None:
    tool = ActingTool()

    def reply(request: ModelRequest) -> Reply:
        return "done" if request.messages[-1].role == "tool" else [Call("bash", {"do": "a"})]

    async with rig(tmp_path, ScriptedModel(reply), tools=(tool,)) as r:
        first = await prompt_in_new_session(r)
        before = await r.transcript()
        for _ in range(MANY):
            await prompt_in_new_session(r)
        await spin()
        # Plus one: a session is loaded before the next one is evicted.
        assert len(r.workspace.lanes) <= IDLE_LANES_MAX + 1
        assert len(r.workspace._known_files) <= IDLE_LANES_MAX + 1
        assert lanes_in_memory(r.workspace) <= IDLE_LANES_MAX + 1
        assert first not in r.workspace.lanes
        r.session = first
        assert await r.transcript() == before
        run = await r.end(await r.submit())
        assert (run.seq, run.outcome) == (2, "completed")
        await r.assert_sound()


async def test_most_recently_used_session_is_evicted_last(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel(lambda request: "x")) as r:
        first = ref(r.workspace.lanes[r.session])
        for _ in range(MANY):
            other = await r.engine.create_session(r.workspace, "")
            await r.engine.session(r.workspace, r.session)
        assert first() is not None, "it was evicted and reloaded"
        assert other.id in r.workspace.lanes
        assert len(r.workspace.lanes) <= IDLE_LANES_MAX + 1


async def test_referenced_lane_stays_the_only_one_of_its_session(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel(lambda request: "x")) as r:
        lane = await r.engine.workspaces.lane(r.workspace, r.session)
        for _ in range(MANY):
            await r.engine.create_session(r.workspace, "")
        assert await r.engine.workspaces.lane(r.workspace, r.session) is lane
        del lane
        for _ in range(MANY):
            await r.engine.create_session(r.workspace, "")
        assert r.session not in r.workspace.lanes


async def test_active_sessions_are_never_evicted(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel(lambda request: [Say("so"), Hold("never")])) as r:
        sessions = [(await r.engine.create_session(r.workspace, "")).id for _ in range(2 * IDLE_LANES_MAX)]
        # Concurrently: all Lanes are referenced, and idle, before the first of them has a Run.
        runs = await asyncio.gather(
            *(r.engine.submit(r.workspace, session, Prompt("go"), RunOptions()) for session in sessions)
        )
        for _ in range(MANY):
            await r.engine.create_session(r.workspace, "")
        assert {run.run_id for run in r.workspace.live_runs()} == {run.run_id for run in runs}
        assert len(r.workspace.lanes) <= len(sessions) + IDLE_LANES_MAX + 1
        for session in sessions:
            await r.engine.cancel(r.workspace, session)
        assert {(await r.end(run)).outcome for run in runs} == {"cancelled"}
        await spin()
        await r.engine.create_session(r.workspace, "")
        await r.engine.create_session(r.workspace, "")
        assert lanes_in_memory(r.workspace) <= IDLE_LANES_MAX + 1


class Actions:
    def __init__(self, engine: Engine, workspace: Workspace, model: ScriptedModel, tool: ActingTool) -> None:
        self.engine, self.workspace, self.model, self.tool = engine, workspace, model, tool

    async def perform(self, number: int) -> None:
        engine, workspace = self.engine, self.workspace
        session = (await engine.create_session(workspace, "")).id
        match number % 4:
            case 0:
                await self.run(session, "text")
            case 1:
                reader = await workspace.feed.reader(None, session, deltas=bool(number % 8 == 1))
                await self.run(session, "tool")
                await reader.read(0)
                reader.close()
            case 2:
                run = await engine.submit(workspace, session, Prompt("hang"), RunOptions())
                await engine.submit(workspace, session, Prompt("text"), RunOptions())
                await engine.cancel(workspace, session)
                await engine.wait_run(workspace, run.run_id, 20)
            case _:
                message_id = await self.run(session, "text")
                forked = await engine.fork_session(workspace, session, message_id)
                assert await engine.reports.search(workspace, "answer", 5)
                await engine.delete_session(workspace, forked.id)
        if number % 2:
            await engine.delete_session(workspace, session)
        # The test doubles record every request.
        self.model.requests.clear()
        self.tool.started.clear()

    async def run(self, session: str, prompt: str) -> str:
        run = await self.engine.submit(self.workspace, session, Prompt(prompt), RunOptions())
        run = await self.engine.wait_run(self.workspace, run.run_id, 20)
        assert run.outcome == "completed", run
        return run.message_id


def reply(request: ModelRequest) -> Reply:
    match request.messages[-1].text:
        case "hang":
            return [Say("let me"), Hold("never")]
        case "tool":
            return [Say("let me"), Call("bash", {"do": "a"})]
        case _:
            return "an answer of some words"


@asynccontextmanager
async def actions(directory: Path) -> AsyncIterator[Actions]:
    model, tool = ScriptedModel(reply), ActingTool()
    store = SqliteStore(directory / "store")
    engine = make_engine(store, ManualClock(), CountingIds(), frames, OneModel(model), Config(), tools=(tool,))
    await engine.open()
    (directory / "workspace").mkdir()
    workspace = await engine.workspaces.open(str(directory / "workspace"), CLIENT)
    # The test takes longer than a claim without an open stream lasts.
    engine.workspaces.stream_opened(workspace, CLIENT, "watching")
    workspace.feed.ring_bytes_max = 10_000  # fills quickly
    watching = await workspace.feed.reader(None, None, deltas=True)
    try:
        yield Actions(engine, workspace, model, tool)
    finally:
        watching.close()
        await engine.close()


@pytest.mark.proof
@pytest.mark.timeout(600)
async def test_no_kind_of_action_leaks_memory_blocks(tmp_path: Path) -> None:
    count = size(ci=100, long=1_500)
    with proof("G15", "actions between two counts of memory blocks", "leaked for each action") as figure:
        async with actions(tmp_path) as performer:
            # Warm-up: fill the cache of idle sessions. Every second action leaves one session.
            for number in range(2 * MANY):
                await performer.perform(number)
            blocks = [await settled_blocks()]
            for _ in range(ROUNDS):
                for number in range(count):
                    await performer.perform(number)
                blocks.append(await settled_blocks())
        growth = min(after - before for before, after in pairwise(blocks))
        figure.count = ROUNDS * count
        figure.notes["blocks leaked for a thousand actions"] = str(round(1000 * growth / count))
        # Half of what one kind of action would leak with one object each; each kind is a quarter of them.
        assert growth < max(count / 8, CACHE_BLOCKS), f"{growth} blocks or more for each {count} actions: {blocks}"


async def settled_blocks() -> int:
    await spin()
    gc.collect()
    # Python's type attribute cache has 4,096 slots, which thousands of actions fill slowly.
    sys._clear_type_cache()
    return sys.getallocatedblocks()
