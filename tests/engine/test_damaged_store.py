"""A process that starts on a damaged store skips what is damaged and resumes everything else."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from kedge.agent.assembly import make_engine
from kedge.config.schema import Config
from kedge.core.records import Prompt, RunOptions, RunRecord
from kedge.engine.engine import Engine
from kedge.errors import StoreDamaged
from kedge.store.sqlite import SqliteStore
from kedge.testing.manual_system import CountingIds, ManualClock
from kedge.testing.scripted import Hold, Reply, Say, ScriptedModel
from kedge.wire import frames
from tests.engine.rig import CLIENT, OneModel

#: Kinds of damage to the second workspace, as SQL with its id. Each page stays well-formed.
DAMAGES = {
    "an entry of the log is changed": "UPDATE log SET session_id = 'x' WHERE workspace_id = ?1 AND kind = 'RunStarted'",
    "an entry of the log is missing": "DELETE FROM log WHERE workspace_id = ?1 AND kind = 'RunStarted'",
    "the end of the log is missing": (
        "DELETE FROM log WHERE workspace_id = ?1 AND position = (SELECT head FROM workspaces WHERE id = ?1)"
    ),
    "the recorded head is too high": "UPDATE workspaces SET head = head + 1 WHERE id = ?1",
    "a Run cannot be read": "UPDATE runs SET record = x'7b' WHERE workspace_id = ?1 AND run_id = 'second'",
    "a prompt is missing": "DELETE FROM prompts WHERE workspace_id = ?1 AND run_id = 'second'",
    "a Run is missing": "DELETE FROM runs WHERE workspace_id = ?1 AND run_id = 'second'",
    "a Run is active only by its record": (
        "UPDATE runs SET state = 'active', record = CAST(replace(record, '\"ended\"', '\"active\"') AS BLOB)"
        " WHERE workspace_id = ?1 AND run_id = 'over'"
    ),
    "a Lane is missing": "DELETE FROM lanes WHERE workspace_id = ?1",
    "a Lane is outdated": "UPDATE lanes SET next_seq = 1 WHERE workspace_id = ?1",
    "a session cannot be read": "UPDATE sessions SET record = x'7b' WHERE workspace_id = ?1",
    "a session is missing": "DELETE FROM sessions WHERE workspace_id = ?1",
    "a message cannot be read": "UPDATE messages SET parts = x'00' WHERE workspace_id = ?1",
}

TABLES = ("workspaces", "log", "sessions", "lanes", "runs", "prompts", "messages", "asks", "grants", "file_versions")


@dataclass
class CrashedData:
    """The data directory of a crashed process with two workspaces."""

    data: Path
    intact: Path
    damaged: Path
    #: The id of the damaged workspace.
    id: str

    def connection(self) -> apsw.Connection:
        return apsw.Connection(str(self.data / "kedge.db"), vfs="cksmvfs")

    def damage(self, how: str) -> None:
        db = self.connection()
        db.execute(how, (self.id,))
        assert db.changes() > 0
        db.close()

    def rows(self) -> dict[str, list[Any]]:
        """Return all stored rows of the damaged workspace."""
        db = self.connection()
        key = {"workspaces": "id"}
        rows_by_table = {
            table: db.execute(
                f"SELECT * FROM {table} WHERE {key.get(table, 'workspace_id')} = ?", (self.id,)
            ).fetchall()
            for table in TABLES
        }
        ordinals = "SELECT ordinal FROM messages WHERE workspace_id = ?"
        tails = f"SELECT * FROM message_tails WHERE message_ordinal IN ({ordinals})"
        rows_by_table["tails"] = db.execute(tails, (self.id,)).fetchall()
        db.close()
        return rows_by_table


@asynccontextmanager
async def process(data: Path, model: ScriptedModel, ids_after: int) -> AsyncIterator[Engine]:
    store, ids = SqliteStore(data), CountingIds(after=ids_after)
    engine = make_engine(store, ManualClock(), ids, frames, OneModel(model), Config())
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def submit(engine: Engine, directory: Path, *run_ids: str) -> str:
    """Submit each Run in a session of its own. Return the id of the workspace."""
    directory.mkdir(exist_ok=True)
    workspace = await engine.workspaces.open(str(directory), CLIENT)
    for run_id in run_ids:
        session = await engine.create_session(workspace, run_id)
        await engine.submit(workspace, session.id, Prompt("hello"), RunOptions(), run_id)
    return workspace.id


@pytest.fixture
async def crashed(tmp_path: Path) -> CrashedData:
    """Data of a process that crashed while one workspace streamed one Run and the other two."""
    held: list[Reply] = [[Say("half"), Hold("never")]] * 3
    model, intact, damaged = ScriptedModel("over", *held), tmp_path / "whole", tmp_path / "damaged"
    async with process(tmp_path / "first", model, 0) as engine:
        workspace_id = await submit(engine, damaged, "over")
        await ended(engine, damaged, "over")
        await submit(engine, damaged, "first", "second")
        await submit(engine, intact, "x")
        await model.wait_requests(4)
        shutil.copytree(tmp_path / "first", tmp_path / "data", ignore=shutil.ignore_patterns("*-shm"))
    return CrashedData(tmp_path / "data", intact, damaged, workspace_id)


async def ended(engine: Engine, directory: Path, run_id: str) -> RunRecord:
    workspace = await engine.workspaces.open(str(directory), CLIENT)
    return await engine.wait_run(workspace, run_id, 50)


async def test_runs_of_undamaged_workspaces_resume(crashed: CrashedData) -> None:
    async with process(crashed.data, ScriptedModel("whole", "whole", "whole"), 1_000) as engine:
        assert (await ended(engine, crashed.intact, "x")).text == "whole"
        for run_id in ("first", "second"):
            assert (await ended(engine, crashed.damaged, run_id)).text == "whole"
        assert await engine.workspaces.live_runs() == []


@pytest.mark.found(
    "damage in one of two workspaces",
    "a damaged row of one workspace prevented the start of the server for all; each workspace is checked separately "
    "before anything is written to it, and a damaged one is skipped",
)
@pytest.mark.parametrize("what", DAMAGES)
async def test_damaged_workspace_is_skipped_and_the_others_resume(
    crashed: CrashedData, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    crashed.damage(DAMAGES[what])
    before = crashed.rows()
    model = ScriptedModel("whole", "and more")
    with caplog.at_level(logging.ERROR, "kedge.engine"):
        async with process(crashed.data, model, 1_000) as engine:
            assert (await ended(engine, crashed.intact, "x")).text == "whole"
            workspace = await engine.workspaces.open(str(crashed.intact), CLIENT)
            session = await engine.create_session(workspace, "another")
            await engine.submit(workspace, session.id, Prompt("and now?"), RunOptions(), "y")
            assert (await ended(engine, crashed.intact, "y")).text == "and more"
            path = crashed.damaged
            refusal = rf"^workspace {crashed.id} \({path}\) is damaged .*restore the data directory from a backup"
            with pytest.raises(StoreDamaged, match=refusal):
                await engine.workspaces.open(str(crashed.damaged), CLIENT)
            with pytest.raises(StoreDamaged, match=refusal):
                engine.workspaces.get(crashed.id)
            assert len(engine.workspaces.unserved.damaged) == 1
            assert [opened.id for opened in engine.workspaces.all()] == [workspace.id]
            assert await engine.workspaces.live_runs() == []
    assert crashed.rows() == before, "nothing is written to it"
    assert len(model.requests) == 2, "none of its Runs was resumed"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"workspace {crashed.id} ({crashed.damaged}) is damaged")
    assert "\n" not in line
    assert line.count("restore the data directory") == 1


async def test_restored_workspace_resumes_with_the_next_process(crashed: CrashedData) -> None:
    good = crashed.data.with_name("backup")
    shutil.copytree(crashed.data, good)
    crashed.damage(DAMAGES["a Lane is missing"])
    async with process(crashed.data, ScriptedModel("whole"), 1_000) as engine:
        await ended(engine, crashed.intact, "x")
    shutil.rmtree(crashed.data)
    shutil.copytree(good, crashed.data)
    async with process(crashed.data, ScriptedModel("whole", "whole", "whole"), 2_000) as engine:
        assert (await ended(engine, crashed.damaged, "second")).text == "whole"


async def test_damage_in_an_idle_session_is_refused_on_access(crashed: CrashedData) -> None:
    """The start does not read sessions without active Runs. The rest of the workspace is served."""
    async with process(crashed.data, ScriptedModel("whole", "whole", "whole"), 1_000) as engine:
        runs = [await ended(engine, crashed.damaged, run_id) for run_id in ("first", "second")]
    crashed.damage("UPDATE messages SET parts = x'00' WHERE workspace_id = ?1 AND run_id = 'second'")
    async with process(crashed.data, ScriptedModel(), 2_000) as engine:
        workspace = await engine.workspaces.open(str(crashed.damaged), CLIENT)
        assert len(await engine.messages(workspace, runs[0].session_id, None, 10)) == 3
        with pytest.raises(StoreDamaged, match="cannot decode message"):
            await engine.messages(workspace, runs[1].session_id, None, 10)


async def test_live_runs_of_undamaged_workspaces_are_listed(tmp_path: Path) -> None:
    held: list[Reply] = [[Hold("never")]] * 2
    model = ScriptedModel(*held)
    async with process(tmp_path / "data", model, 0) as engine:
        await submit(engine, tmp_path / "whole", "x")
        damaged = await submit(engine, tmp_path / "damaged", "y")
        await model.wait_requests(2)
        crashed = CrashedData(tmp_path / "data", tmp_path / "whole", tmp_path / "damaged", damaged)
        db = crashed.connection()
        (record,) = db.execute("SELECT record FROM runs WHERE workspace_id = ?", (damaged,)).fetchall()[0]
        db.execute("UPDATE runs SET record = x'7b' WHERE workspace_id = ?", (damaged,))
        assert [run.run_id for run in await engine.workspaces.live_runs()] == ["x"]
        db.execute("UPDATE runs SET record = ? WHERE workspace_id = ?", (record, damaged))
        db.close()


async def test_unreadable_database_prevents_the_start(crashed: CrashedData) -> None:
    crashed.rows()  # checkpoints the WAL into the database file
    (crashed.data / "kedge.db").write_bytes(b"no database " * 1_000)
    with pytest.raises(StoreDamaged, match=r"kedge\.db is damaged .*restore the data directory") as raised:
        async with process(crashed.data, ScriptedModel(), 1_000):
            await asyncio.sleep(0)
    assert "\n" not in raised.value.message
