"""Leases of a node without the directory: they end with their workspaces, also if the store was away for a moment."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from kedge.agent.assembly import make_engine
from kedge.config.schema import Config
from kedge.core.records import Prompt, RunOptions, WorkspaceRecord, first_position
from kedge.engine.engine import Engine
from kedge.engine.placement import Leased
from kedge.errors import StoreUnavailable
from kedge.store.base import Write
from kedge.store.leases import Claimed, HeldBy, NodeInfo
from kedge.store.memory import MemoryData, MemoryStore
from kedge.store.memory_leases import MemoryLeases
from kedge.testing.manual_system import CountingIds, ManualClock
from kedge.testing.scripted import ScriptedModel
from kedge.wire import frames
from tests.engine.rig import CLIENT, OneModel, until

PATH = "/elsewhere/project"


class FailingLeases(MemoryLeases):
    """Fails once at each of these places: the database was away, or its answer was lost."""

    fails: frozenset[str] = frozenset()

    def _fail(self, place: str) -> None:
        if place in self.fails:
            self.fails -= {place}
            raise StoreUnavailable(f"lost: {place}")

    async def claim(self, workspace_id: str) -> Claimed | HeldBy:
        claim = await super().claim(workspace_id)
        self._fail("claim")
        return claim

    async def release(self, workspace_id: str) -> None:
        self._fail("release")
        await super().release(workspace_id)


class FailingStore(MemoryStore):
    is_away = False

    async def append(self, write: Write) -> int:
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().append(write)


async def node(data: MemoryData, name: str, root: str, *replies: str) -> tuple[Engine, FailingLeases]:
    leases = FailingLeases(data, lambda: 0, f"{name}.1")
    await leases.register(NodeInfo(name, f"http://{name}", (root,), leases.incarnation, name))
    placement = Leased(leases, (root,))
    store, model = FailingStore(data, leases), OneModel(ScriptedModel(*replies))
    engine = make_engine(store, ManualClock(), CountingIds(), frames, model, Config(), placement=placement)
    await engine.open()
    return engine, leases


@pytest.mark.parametrize("fails", [{"claim"}, {"release"}, {"claim", "release"}])
async def test_lease_of_a_closed_workspace_is_released(tmp_path: Path, fails: set[str]) -> None:
    data = MemoryData()
    engine, leases = await node(data, "a", "/other")
    await engine._store.workspace(PATH, WorkspaceRecord("w1", PATH, 0, first_position("w1")))
    if "claim" not in fails:
        workspace = await engine.workspaces.open(PATH, CLIENT)
        session = await engine.create_session(workspace, "")
        await engine.submit(workspace, session.id, Prompt("hello"), RunOptions())
    leases.fails = frozenset(fails)
    if "claim" in fails:
        with pytest.raises(StoreUnavailable):
            await engine.workspaces.open(PATH, CLIENT)
    late = FailingLeases(data, lambda: 0, "late.1")
    await late.register(NodeInfo("late", "http://late", ("/elsewhere",), "late.1", "late"))
    for _ in range(3):  # as the node does every few seconds
        with suppress(StoreUnavailable):
            await engine.take_over()
        await asyncio.gather(*engine.workspaces._ending, return_exceptions=True)
    assert await late.holder("w1") is None
    assert [one.id for one in await late.orphans(9)] == ([] if "claim" in fails else ["w1"])
    await engine.close()


async def test_interrupted_recovery_continues_without_a_client(tmp_path: Path) -> None:
    data, path = MemoryData(), str(tmp_path)
    without, leases = await node(data, "a", "/other")
    await without._store.workspace(path, WorkspaceRecord("w1", path, 0, first_position("w1")))
    workspace = await without.workspaces.open(path, CLIENT)
    session = await without.create_session(workspace, "")
    run = await without.submit(workspace, session.id, Prompt("hello"), RunOptions())
    engine, _ = await node(data, "b", path, "done")
    await leases.unregister()  # a is lost
    store = engine._store
    assert isinstance(store, FailingStore)
    store.is_away = True
    with pytest.raises(StoreUnavailable):
        await engine.workspaces.open(path, CLIENT)
    store.is_away = False
    await engine.take_over()
    await until(lambda: engine.workspaces.find("w1") is not None)
    assert (await engine.wait_run(engine.workspaces.get("w1"), run.run_id, 20)).text == "done"
    await engine.close()
