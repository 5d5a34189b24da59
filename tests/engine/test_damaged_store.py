"""A process that starts on a damaged store: what is damaged is left alone, everything else goes on."""

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

#: What befalls the second workspace, as SQL with its id. Each page stays well-formed.
DAMAGES = {
    "an entry of the log is changed": "UPDATE log SET session_id = 'x' WHERE workspace_id = ?1 AND kind = 'RunStarted'",
    "an entry of the log is missing": "DELETE FROM log WHERE workspace_id = ?1 AND kind = 'RunStarted'",
    "the end of the log is missing": (
        "DELETE FROM log WHERE workspace_id = ?1 AND position = (SELECT head FROM workspaces WHERE id = ?1)"
    ),
    "the log is said to be longer": "UPDATE workspaces SET head = head + 1 WHERE id = ?1",
    "a Run cannot be read": "UPDATE runs SET record = x'7b' WHERE workspace_id = ?1 AND run_id = 'second'",
    "a prompt is missing": "DELETE FROM prompts WHERE workspace_id = ?1 AND run_id = 'second'",
    "a Run is missing": "DELETE FROM runs WHERE workspace_id = ?1 AND run_id = 'second'",
    "a Run has not ended by its record alone": (
        "UPDATE runs SET state = 'active', record = CAST(replace(record, '\"ended\"', '\"active\"') AS BLOB)"
        " WHERE workspace_id = ?1 AND run_id = 'over'"
    ),
    "a Lane is missing": "DELETE FROM lanes WHERE workspace_id = ?1",
    "a Lane is of old": "UPDATE lanes SET next_seq = 1 WHERE workspace_id = ?1",
    "a session cannot be read": "UPDATE sessions SET record = x'7b' WHERE workspace_id = ?1",
    "a session is missing": "DELETE FROM sessions WHERE workspace_id = ?1",
    "a message cannot be read": "UPDATE messages SET parts = x'00' WHERE workspace_id = ?1",
}

TABLES = ("workspaces", "log", "sessions", "lanes", "runs", "prompts", "messages", "asks", "grants", "file_versions")


@dataclass
class Left:
    """What a lost process left behind."""

    data: Path
    whole: Path
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
        """Everything that is stored of the damaged workspace."""
        db = self.connection()
        key = {"workspaces": "id"}
        found = {
            table: db.execute(
                f"SELECT * FROM {table} WHERE {key.get(table, 'workspace_id')} = ?", (self.id,)
            ).fetchall()
            for table in TABLES
        }
        ordinals = "SELECT ordinal FROM messages WHERE workspace_id = ?"
        tails = f"SELECT * FROM message_tails WHERE message_ordinal IN ({ordinals})"
        found["tails"] = db.execute(tails, (self.id,)).fetchall()
        db.close()
        return found


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
    """One session for each of these Runs; the id of the workspace."""
    directory.mkdir(exist_ok=True)
    workspace = await engine.workspaces.open(str(directory), CLIENT)
    for run_id in run_ids:
        session = await engine.create_session(workspace, run_id)
        await engine.submit(workspace, session.id, Prompt("hello"), RunOptions(), run_id)
    return workspace.id


@pytest.fixture
async def left(tmp_path: Path) -> Left:
    """A process was lost while a Run streamed in one workspace, and two in the other one."""
    held: list[Reply] = [[Say("half"), Hold("never")]] * 3
    model, whole, damaged = ScriptedModel("over", *held), tmp_path / "whole", tmp_path / "damaged"
    async with process(tmp_path / "first", model, 0) as engine:
        workspace_id = await submit(engine, damaged, "over")
        await ended(engine, damaged, "over")
        await submit(engine, damaged, "first", "second")
        await submit(engine, whole, "x")
        await model.wait_requests(4)
        shutil.copytree(tmp_path / "first", tmp_path / "data", ignore=shutil.ignore_patterns("*-shm"))
    return Left(tmp_path / "data", whole, damaged, workspace_id)


async def ended(engine: Engine, directory: Path, run_id: str) -> RunRecord:
    workspace = await engine.workspaces.open(str(directory), CLIENT)
    return await engine.wait_run(workspace, run_id, 50)


async def test_runs_of_undamaged_workspaces_resume(left: Left) -> None:
    async with process(left.data, ScriptedModel("whole", "whole", "whole"), 1_000) as engine:
        assert (await ended(engine, left.whole, "x")).text == "whole"
        for run_id in ("first", "second"):
            assert (await ended(engine, left.damaged, run_id)).text == "whole"
        assert await engine.workspaces.live_runs() == []


@pytest.mark.found(
    "damage in one workspace of two",
    "a damaged row of one workspace kept the server from starting for all; a process now looks at each workspace "
    "alone, before it writes to it, and sets the damaged one aside",
)
@pytest.mark.parametrize("what", DAMAGES)
async def test_damaged_workspace_is_skipped_and_the_others_resume(
    left: Left, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    left.damage(DAMAGES[what])
    before = left.rows()
    model = ScriptedModel("whole", "and more")
    with caplog.at_level(logging.ERROR, "kedge.engine"):
        async with process(left.data, model, 1_000) as engine:
            assert (await ended(engine, left.whole, "x")).text == "whole"
            workspace = await engine.workspaces.open(str(left.whole), CLIENT)
            session = await engine.create_session(workspace, "another")
            await engine.submit(workspace, session.id, Prompt("and now?"), RunOptions(), "y")
            assert (await ended(engine, left.whole, "y")).text == "and more"
            refusal = rf"^workspace {left.id} \({left.damaged}\) is damaged .*restore the data directory from a backup"
            with pytest.raises(StoreDamaged, match=refusal):
                await engine.workspaces.open(str(left.damaged), CLIENT)
            with pytest.raises(StoreDamaged, match=refusal):
                engine.workspaces.get(left.id)
            assert engine.workspaces.damaged_count == 1
            assert [found.id for found in engine.workspaces.all()] == [workspace.id]
            assert await engine.workspaces.live_runs() == []
    assert left.rows() == before, "nothing is written to it"
    assert len(model.requests) == 2, "no Run of it has gone on"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"workspace {left.id} ({left.damaged}) is damaged")
    assert "\n" not in line
    assert line.count("restore the data directory") == 1


async def test_restored_workspace_resumes_with_the_next_process(left: Left) -> None:
    good = left.data.with_name("backup")
    shutil.copytree(left.data, good)
    left.damage(DAMAGES["a Lane is missing"])
    async with process(left.data, ScriptedModel("whole"), 1_000) as engine:
        await ended(engine, left.whole, "x")
    shutil.rmtree(left.data)
    shutil.copytree(good, left.data)
    async with process(left.data, ScriptedModel("whole", "whole", "whole"), 2_000) as engine:
        assert (await ended(engine, left.damaged, "second")).text == "whole"


async def test_damage_in_an_idle_session_is_refused_on_access(left: Left) -> None:
    """In a session nobody works in: the start does not look at it, and the rest of the workspace is served."""
    async with process(left.data, ScriptedModel("whole", "whole", "whole"), 1_000) as engine:
        runs = [await ended(engine, left.damaged, run_id) for run_id in ("first", "second")]
    left.damage("UPDATE messages SET parts = x'00' WHERE workspace_id = ?1 AND run_id = 'second'")
    async with process(left.data, ScriptedModel(), 2_000) as engine:
        workspace = await engine.workspaces.open(str(left.damaged), CLIENT)
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
        left = Left(tmp_path / "data", tmp_path / "whole", tmp_path / "damaged", damaged)
        db = left.connection()
        (record,) = db.execute("SELECT record FROM runs WHERE workspace_id = ?", (damaged,)).fetchall()[0]
        db.execute("UPDATE runs SET record = x'7b' WHERE workspace_id = ?", (damaged,))
        assert [run.run_id for run in await engine.workspaces.live_runs()] == ["x"]
        db.execute("UPDATE runs SET record = ? WHERE workspace_id = ?", (record, damaged))
        db.close()


async def test_unreadable_database_prevents_the_start(left: Left) -> None:
    left.rows()  # and with that all is in the database itself, not in its WAL
    (left.data / "kedge.db").write_bytes(b"no database " * 1_000)
    with pytest.raises(StoreDamaged, match=r"kedge\.db is damaged .*restore the data directory") as raised:
        async with process(left.data, ScriptedModel(), 1_000):
            await asyncio.sleep(0)
    assert "\n" not in raised.value.message
