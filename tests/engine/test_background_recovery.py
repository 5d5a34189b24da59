"""Recovery in the background: each workspace independently, each Run once, nothing is served before it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.agent.assembly import make_engine
from kedge.config.schema import Config
from kedge.core.records import LaneRecord, Prompt, RunOptions, RunRecord
from kedge.errors import Starting, StoreUnavailable
from kedge.store.memory import MemoryData
from kedge.testing.manual_system import CountingIds, ManualClock
from kedge.testing.scripted import Hold, ScriptedModel
from kedge.wire import frames
from tests.engine.rig import (
    CLIENT,
    FaultyStore,
    OneModel,
    kill,
    rig,
    spin,
    start,
    until,
)


class UnreadableLane(FaultyStore):
    """The Lane of one session cannot be read."""

    def __init__(self, data: MemoryData | None, session_id: str) -> None:
        super().__init__(data)
        self.session_id = session_id

    async def lane(self, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        if session_id == self.session_id:
            raise StoreUnavailable("the disk does not answer")
        return await super().lane(session_id)


@pytest.mark.found(
    "a review of recovery: a server that fails to start repeatedly",
    "each start resumed the Runs of the first workspaces and then failed at another one; after three starts these Runs "
    "were ended as the cause of the crashes; each workspace is now recovered independently, read before written",
)
async def test_failed_attempt_does_not_count_as_a_resumption(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    r = await start(one, ScriptedModel([Hold("never")], [Hold("never")]))
    await r.submit(run_id="x")
    other = await r.engine.workspaces.open(str(two), CLIENT)
    session = await r.engine.create_session(other, "")
    await r.engine.submit(other, session.id, Prompt("y"), RunOptions(), "y")
    store = UnreadableLane((await kill(r)).data, session.id)
    new = await start(one, ScriptedModel("first", "second"), store)
    assert ((await new.end("x")).resumes, (await new.end("x")).outcome) == (1, "completed")
    await until(lambda: not new.engine.recovery.is_starting)
    with pytest.raises(Starting, match="the disk does not answer"):
        new.engine.workspaces.get(other.id)
    for _ in range(4):
        with pytest.raises(StoreUnavailable):
            await new.engine.workspaces.open(str(two), CLIENT)
    assert [run.run_id for run in await new.engine.workspaces.live_runs()] == ["y"]
    assert not new.engine.refuse_new_if_idle()
    store.session_id = ""
    again = await new.engine.workspaces.open(str(two), CLIENT)
    ended = await new.engine.wait_run(again, "y", 20)
    assert (ended.resumes, ended.outcome) == (1, "completed")
    await new.engine.close()


class HeldLane(FaultyStore):
    """The Lane of each session is read when the gate opens."""

    def __init__(self, data: MemoryData) -> None:
        super().__init__(data)
        self.gate, self.waiting = asyncio.Event(), asyncio.Event()

    async def lane(self, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        self.waiting.set()
        await self.gate.wait()
        return await super().lane(session_id)


@pytest.mark.found(
    "fault 6",
    "the server recovered all workspaces before it listened; now requests are served at once, and only those to a "
    "workspace with live Runs wait for its own recovery",
)
async def test_workspace_is_refused_until_it_is_recovered(tmp_path: Path) -> None:
    lost, other = tmp_path / "lost", tmp_path / "other"
    lost.mkdir()
    other.mkdir()
    r = await start(lost, ScriptedModel([Hold("never")]))
    await r.submit(run_id="x")
    await r.model.wait_requests(1)
    store = HeldLane((await kill(r)).data)
    models = OneModel(ScriptedModel("done", "more"))
    engine = make_engine(store, ManualClock(), CountingIds(after=1000), frames, models, Config())
    await engine.open()
    await store.waiting.wait()
    opened = await engine.workspaces.open(str(other), CLIENT)
    await engine.create_session(opened, "served at once")
    with pytest.raises(Starting):
        engine.workspaces.get(r.workspace.id)
    assert engine.recovery.is_starting
    assert [(run.run_id, run.resumes) for run in await engine.workspaces.live_runs()] == [("x", 0)]
    opening = asyncio.create_task(engine.workspaces.open(str(lost), CLIENT))
    await spin()
    assert not opening.done()
    store.gate.set()
    workspace = await opening
    assert workspace is engine.workspaces.get(r.workspace.id)
    ended = await engine.wait_run(workspace, "x", 20)
    assert (ended.resumes, ended.text) == (1, "done")
    assert not engine.recovery.is_starting
    await engine.close()


@pytest.mark.parametrize("when", ["before the attempt", "before the write", "after the write"])
async def test_process_that_dies_in_recovery_loses_no_run(tmp_path: Path, when: str) -> None:
    r = await start(tmp_path, ScriptedModel([Hold("never")]))
    await r.submit(run_id="x")
    await r.submit(run_id="y")
    await r.model.wait_requests(1)
    data = (await kill(r)).data
    store, models = HeldLane(data), OneModel(ScriptedModel([Hold("never")]))
    engine = make_engine(store, ManualClock(), CountingIds(after=1000), frames, models, Config())
    await engine.open()
    if when != "before the attempt":
        await store.waiting.wait()
    if when == "after the write":
        store.gate.set()
        await until(lambda: any(run.resumes for run in data.live.values()))
    r.engine, r.store = engine, store
    resumes = 2 if when == "after the write" else 1
    async with rig(tmp_path, ScriptedModel("one", "two"), await kill(r)) as new:
        assert [((await new.end(run)).text, (await new.end(run)).resumes) for run in ("x", "y")] == [
            ("one", resumes),
            ("two", 0),
        ]
        await new.assert_sound()


async def test_uncertain_recovery_is_not_repeated(tmp_path: Path) -> None:
    """The append of the recovery is stored, and the store reports a failure."""
    r = await start(tmp_path, ScriptedModel([Hold("never")]))
    await r.submit(run_id="x")
    await r.model.wait_requests(1)
    store = await kill(r)
    store.fail_after = 1
    ids, models = CountingIds(after=1000), OneModel(ScriptedModel("done"))
    engine = make_engine(store, ManualClock(), ids, frames, models, Config())
    await engine.open()
    await until(lambda: not engine.recovery.is_starting)
    assert not engine.workspaces.all()
    workspace = await engine.workspaces.open(str(tmp_path), CLIENT)
    ended = await engine.wait_run(workspace, "x", 20)
    assert (ended.resumes, ended.outcome) == (1, "completed")
    await engine.close()
