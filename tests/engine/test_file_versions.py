"""The space and memory of file versions: one content for each path and Run, in the SQLite store."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kedge.agent.assembly import make_engine
from kedge.config.schema import Config
from kedge.core.events import FileChanged
from kedge.core.records import Prompt, RunOptions
from kedge.engine.engine import Engine
from kedge.engine.workspace import Workspace
from kedge.errors import FilesChanged
from kedge.store.sqlite import SqliteStore
from kedge.testing.manual_system import CountingIds, ManualClock
from kedge.testing.scripted import ScriptedModel
from kedge.tools.base import ToolContext
from kedge.tools.known_files import digest
from kedge.wire import frames
from tests.engine.rig import CLIENT, ActingTool, OneModel, OutageStore, do, rig

FILE_BYTES = 1_000_000
EDITS = 60


async def change(context: ToolContext, path: Path, after: bytes | None) -> None:
    before = path.read_bytes() if path.exists() else None
    await context.host.keep_version(path, before, "" if after is None else digest(after))
    if after is None:
        path.unlink()
    else:
        path.write_bytes(after)


@asynccontextmanager
async def opened(directory: Path, tool: ActingTool, *names: str) -> AsyncIterator[tuple[Engine, Workspace]]:
    """An engine on the SQLite store. Each Run performs the next action."""
    model = ScriptedModel(*(reply for name in names for reply in (do(name), "ok")))
    store = SqliteStore(directory / "data")
    engine = make_engine(store, ManualClock(), CountingIds(), frames, OneModel(model), Config(), tools=(tool,))
    await engine.open()
    try:
        yield engine, await engine.workspaces.open(str(directory), CLIENT)
    finally:
        await engine.close()


async def act(engine: Engine, workspace: Workspace, session_id: str) -> str:
    run = await engine.submit(workspace, session_id, Prompt("go"), RunOptions(), None, None)
    ended = await engine.wait_run(workspace, run.run_id, 60)
    assert ended.outcome == "completed", ended
    return run.run_id


def database_bytes(directory: Path) -> int:
    """The size after the checkpoint of a closed store."""
    return (directory / "data" / "kedge.db").stat().st_size


@pytest.mark.found(
    "fault 18",
    "60 edits of a 4.2 MB file in one Run stored 60 contents (240 MB); the store keeps one content for each path and "
    "Run",
)
async def test_many_edits_of_a_file_store_its_first_content(tmp_path: Path) -> None:
    large, new, gone = (tmp_path / name for name in ("large", "new", "gone"))
    first = os.urandom(FILE_BYTES)  # not UTF-8
    large.write_bytes(first)
    gone.write_bytes(b"\xff\0old")

    async def edit(context: ToolContext) -> str:
        await change(context, gone, None)
        for _ in range(EDITS):
            await change(context, large, os.urandom(FILE_BYTES))
            await change(context, new, os.urandom(10))
        return "edited"

    async with opened(tmp_path, ActingTool(edit=edit), "edit") as (engine, workspace):
        session_id = (await engine.create_session(workspace, "")).id
        await act(engine, workspace, session_id)
        entries = await engine._door.store.read(workspace.id, 0, 1_000)
        assert sum(isinstance(entry.event, FileChanged) for entry in entries) == 1 + 2 * EDITS
    assert database_bytes(tmp_path) < 4 * FILE_BYTES
    async with opened(tmp_path, ActingTool()) as (engine, workspace):
        _, restored = await engine.undo.undo(workspace, session_id, None)
        assert restored == [str(gone), str(large), str(new)]
    assert (large.read_bytes() == first, gone.read_bytes(), new.exists()) == (True, b"\xff\0old", False)


@pytest.mark.found(
    "fault 18",
    "an undo read all contents of the Run at once (65 to 254 MB of memory); it restores one file after the other",
)
async def test_undo_holds_one_file_in_memory(tmp_path: Path) -> None:
    paths = [tmp_path / f"file{number}" for number in range(16)]
    for path in paths:
        path.write_bytes(os.urandom(FILE_BYTES))
    firsts = [digest(path.read_bytes()) for path in paths]

    async def edit(context: ToolContext) -> str:
        for path in paths:
            await change(context, path, os.urandom(FILE_BYTES))
        return "edited"

    async with opened(tmp_path, ActingTool(edit=edit), "edit") as (engine, workspace):
        session_id = (await engine.create_session(workspace, "")).id
        await act(engine, workspace, session_id)
        tracemalloc.start()
        try:
            await engine.undo.undo(workspace, session_id, None)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert [digest(path.read_bytes()) for path in paths] == firsts
    assert peak_bytes < len(paths) * FILE_BYTES / 2  # reading a file takes the largest permitted size for a moment


async def test_undo_below_a_later_run_restores_no_file(tmp_path: Path) -> None:
    """Every file is checked before the first is restored."""
    shared, own = tmp_path / "shared", tmp_path / "own"

    async def one(context: ToolContext) -> str:
        await change(context, own, b"own")
        await change(context, shared, b"first run")
        return "edited"

    async def two(context: ToolContext) -> str:
        await change(context, shared, b"second run")
        return "edited"

    async with opened(tmp_path, ActingTool(one=one, two=two), "one", "two") as (engine, workspace):
        session_id = (await engine.create_session(workspace, "")).id
        earlier, later = [await act(engine, workspace, session_id) for _ in range(2)]
        with pytest.raises(FilesChanged, match="shared"):
            await engine.undo.undo(workspace, session_id, earlier)
        assert (own.read_bytes(), shared.read_bytes()) == (b"own", b"second run")
        assert await engine.undo.undo(workspace, session_id, None) == (later, [str(shared)])
        assert shared.read_bytes() == b"first run"
        assert await engine.undo.undo(workspace, session_id, None) == (earlier, [str(own), str(shared)])
        assert (own.exists(), shared.exists()) == (False, False)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("edit", [1, 2])
async def test_version_repeated_after_an_outage_is_the_same(tmp_path: Path, when: str, edit: int) -> None:
    file, store = tmp_path / "a.txt", OutageStore()
    file.write_bytes(b"0")

    async def edits(context: ToolContext) -> str:
        for number in (1, 2):
            if number == edit:
                setattr(store, when, lambda write: bool(write.files))
            await change(context, file, b"%d" % number)
        return "edited"

    async with rig(tmp_path, ScriptedModel(do("edits"), "ok"), store, tools=(ActingTool(edits=edits),)) as r:
        run = await r.end(await r.submit())
        (version,) = await store.file_versions(r.workspace.id, r.session, run.run_id)
        assert (version.before, version.after) == (digest(b"0"), (digest(b"1"), digest(b"2")))
        await r.engine.undo.undo(r.workspace, r.session, None)
        assert file.read_bytes() == b"0"


@pytest.mark.found(
    "fault 18", "a deleted session left the database as large as before; its space returns to the file system"
)
async def test_database_shrinks_after_a_session_is_deleted(tmp_path: Path) -> None:
    paths = [tmp_path / f"file{number}" for number in range(20)]
    for path in paths:
        path.write_bytes(os.urandom(FILE_BYTES))

    async def remove(context: ToolContext) -> str:
        for path in paths:
            await change(context, path, None)
        return "removed"

    async with opened(tmp_path, ActingTool(remove=remove), "remove") as (engine, workspace):
        session_id = (await engine.create_session(workspace, "")).id
        await act(engine, workspace, session_id)
    before = database_bytes(tmp_path)
    assert before > len(paths) * FILE_BYTES
    async with opened(tmp_path, ActingTool()) as (engine, workspace):
        await engine.delete_session(workspace, session_id)
        await engine.reclaiming.idle()
    assert database_bytes(tmp_path) < before / 3
