"""Undo of file changes: uncertain appends, concurrent Runs and files that cannot be restored."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.errors import FilesChanged, KedgeError, LaneBusy, RunNotFound, StoreUnavailable
from kedge.testing.scripted import Hold, ScriptedModel
from kedge.tools.base import ToolContext
from kedge.tools.known_files import digest
from tests.engine.rig import ActingTool, OutageStore, do, no_asyncio_errors, rig, spin, until


def writes(path: Path, text: str) -> ActingTool:
    async def write(context: ToolContext) -> str:
        before = path.read_bytes() if path.exists() else None
        await context.host.keep_version(path, before, digest(text.encode()))
        path.write_text(text)
        return "written"

    return ActingTool(write=write)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_uncertain_undo_can_be_repeated(tmp_path: Path, when: str) -> None:
    file, store = tmp_path / "a.txt", OutageStore()
    file.write_text("one")
    async with rig(tmp_path, ScriptedModel(do("write"), "ok"), store, tools=(writes(file, "two"),)) as r:
        run = await r.end(await r.submit())
        setattr(store, when, lambda write: bool(write.files))
        with pytest.raises(StoreUnavailable):
            await r.engine.undo.undo(r.workspace, r.session, run.run_id)
        assert file.read_text() == "one"
        if when == "before":
            assert await r.engine.undo.undo(r.workspace, r.session, run.run_id) == (run.run_id, [])
        assert await r.store.runs_with_files(r.session) == []
        with pytest.raises(RunNotFound):
            await r.engine.undo.undo(r.workspace, r.session, None)


async def test_run_accepted_during_an_undo_starts_after_it(tmp_path: Path) -> None:
    """Otherwise the Run could change the files that the undo restores."""
    file, store = tmp_path / "a.txt", OutageStore()
    file.write_text("one")
    model = ScriptedModel(do("write"), "ok", [Hold("never")])
    async with no_asyncio_errors(), rig(tmp_path, model, store, tools=(writes(file, "two"),)) as r:
        await r.end(await r.submit())
        store.held = lambda write: bool(write.files)
        undoing = asyncio.create_task(r.engine.undo.undo(r.workspace, r.session, None))
        await until(lambda: r.workspace._in_use > 0)
        submitting = asyncio.create_task(r.submit(run_id="y"))
        await store.waiting.wait()
        await spin()
        request_count = len(model.requests)
        store.gate.set()
        assert (await undoing)[1] == [str(file)]
        assert request_count == 2, "the Run does not start while files are restored"
        await submitting
        await model.wait_requests(3)
        assert file.read_text() == "one"


async def test_undo_is_refused_while_a_run_is_active(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    model = ScriptedModel(do("write"), "ok", [Hold("never")])
    async with rig(tmp_path, model, tools=(writes(file, "two"),)) as r:
        await r.end(await r.submit())
        await r.submit(run_id="y")
        with pytest.raises(LaneBusy):
            await r.engine.undo.undo(r.workspace, r.session, None)
        assert file.exists()


async def test_file_that_cannot_be_restored_is_a_typed_error(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    file = directory / "a.txt"
    file.write_text("one")
    async with rig(tmp_path, ScriptedModel(do("write"), "ok"), tools=(writes(file, "two"),)) as r:
        await r.end(await r.submit())
        file.unlink()
        directory.rmdir()
        directory.write_text("a file where the directory was")
        with pytest.raises(KedgeError) as raised:
            await r.engine.undo.undo(r.workspace, r.session, None)
        assert isinstance(raised.value, FilesChanged)
        await spin()
