"""Stored workspaces: the cost of many at a start, removal, and forgetting those whose directory is gone."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kedge.agent.assembly import make_engine
from kedge.config.schema import Config
from kedge.core.records import WorkspaceRecord
from kedge.engine.engine import Engine
from kedge.engine.known_workspaces import is_gone
from kedge.errors import StoreDamaged, WorkspaceInUse, WorkspaceNotFound
from kedge.store.sqlite import SqliteStore
from kedge.testing.manual_system import CountingIds, ManualClock
from kedge.testing.scripted import Hold, ScriptedModel
from kedge.wire import frames
from tests.engine.rig import CLIENT, OneModel, rig


class CountingStore(SqliteStore):
    """Counts the calls of each method, and the rows that the lists among them returned."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if name.startswith("_") or not asyncio.iscoroutinefunction(attribute):
            return attribute

        async def call(*args: Any, **options: Any) -> Any:
            result = await attribute(*args, **options)
            self.calls[name] += 1 + (len(result) if isinstance(result, list) else 0)
            return result

        return call


def engine_on(store: SqliteStore) -> Engine:
    models = OneModel(ScriptedModel())
    return make_engine(store, ManualClock(), CountingIds(after=10_000), frames, models, Config())


async def start_and_list(data: Path, directory: Path) -> Counter[str]:
    """Return the calls of the store for a start and a list of the sessions of one workspace."""
    store = CountingStore(data)
    engine = engine_on(store)
    await engine.open()
    workspace = await engine.workspaces.open(str(directory), CLIENT)
    assert [session.title for session in await engine.sessions(workspace)] == ["mine"]
    calls = store.calls.copy()
    await engine.close()
    del calls["reclaim"]  # in the background: called at the start, or not yet
    return calls


@pytest.mark.found(
    "fault 6",
    "the start read 1,000 entries and all sessions of each directory ever used (5,500 of them: 26 s); it now reads "
    "which workspaces have live Runs, and each workspace when it is opened",
)
async def test_start_costs_the_same_with_many_workspaces(tmp_path: Path) -> None:
    data, directory = tmp_path / "data", tmp_path / "mine"
    directory.mkdir()
    store = SqliteStore(data)
    engine = engine_on(store)
    await engine.open()
    workspace = await engine.workspaces.open(str(directory), CLIENT)
    await engine.create_session(workspace, "mine")
    await engine.close()
    few = await start_and_list(data, directory)
    store = SqliteStore(data)
    await store.open()
    for number in range(200):
        await store.workspace(f"/gone/{number}", WorkspaceRecord(f"x{number}", f"/gone/{number}", 1, 1))
    await store.close()
    assert await start_and_list(data, directory) == few


async def test_damage_of_an_idle_workspace_is_found_when_it_is_opened(tmp_path: Path) -> None:
    """See also test_damaged_store.py, with live Runs."""
    async with rig(tmp_path, ScriptedModel("done")) as r:
        await r.end(await r.submit())
        data = r.store.data
    del data.logs[r.workspace.id].rows[2]
    data.owner = None
    async with rig(tmp_path / "..", ScriptedModel(), type(r.store)(data)) as new:
        with pytest.raises(StoreDamaged, match=rf"workspace {r.workspace.id} .* is damaged and was left unchanged"):
            await new.engine.workspaces.open(str(tmp_path), CLIENT)
        assert list(new.engine.workspaces.unserved.damaged) == [r.workspace.id]


async def test_workspace_in_use_is_not_removed(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("k")])) as r:
        known = r.engine.known_workspaces
        await r.submit(run_id="x")
        with pytest.raises(WorkspaceInUse, match="has 1 queued or active runs"):
            await known.remove(r.workspace.id)
        r.model.release("k")
        await r.end("x")
        with pytest.raises(WorkspaceInUse, match="is open in other clients"):
            await known.remove(r.workspace.id)
        assert len(await r.engine.sessions(r.workspace)) == 1
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        await known.remove(r.workspace.id)
        assert await known.page("", 10) == []
        with pytest.raises(WorkspaceNotFound):
            await known.remove(r.workspace.id)
        again = await r.engine.workspaces.open(str(tmp_path), CLIENT)
        assert again.id != r.workspace.id
        assert await r.engine.sessions(again) == []


async def test_unused_workspaces_of_gone_directories_are_forgotten(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel()) as r:
        for name in ("gone", "used", "there", "parent/gone"):
            (tmp_path / name).mkdir(parents=True)
            workspace = await r.engine.workspaces.open(str(tmp_path / name), CLIENT)
            if name == "used":
                await r.engine.create_session(workspace, "keep me")
            r.engine.workspaces.release(workspace.id, CLIENT)
        for name in ("gone", "used", "parent/gone", "parent"):
            (tmp_path / name).rmdir()
        states = {known.record.path: state for known, state in await r.engine.known_workspaces.page("", 10)}
        assert states == {
            str(tmp_path): "present",
            str(tmp_path / "gone"): "gone",
            str(tmp_path / "used"): "gone",
            str(tmp_path / "there"): "present",
            str(tmp_path / "parent/gone"): "present",
        }
        assert await r.engine.known_workspaces.forget_gone() == 1
        left = {known.record.path for known, _ in await r.engine.known_workspaces.page("", 10)}
        assert left == states.keys() - {str(tmp_path / "gone")}


def test_only_a_parent_can_prove_that_a_directory_is_gone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    assert is_gone(str(tmp_path / "missing"))
    for path in ("missing/too", "file/below", "dangling", "."):
        assert not is_gone(str(tmp_path / path)), path
