"""Undo of file changes: uncertain appends, concurrent Runs and files that cannot be restored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kedge.core.reversal import Reversal
from kedge.errors import FilesChanged, KedgeError, LaneBusy, RunNotFound, StoreUnavailable
from kedge.llm import openai_request
from kedge.llm.base import ModelRequest
from kedge.store.base import Write
from kedge.testing.scripted import Hold, ScriptedModel
from kedge.tools.base import ToolContext
from kedge.tools.known_files import digest
from tests.engine.rig import ActingTool, OutageStore, Rig, do, no_asyncio_errors, rig, spin, until


def writes(path: Path, text: str) -> ActingTool:
    return ActingTool(write=writing(path, text))


def writing(path: Path, text: str) -> Callable[[ToolContext], Awaitable[str]]:
    async def write(context: ToolContext) -> str:
        before = path.read_bytes() if path.exists() else None
        await context.host.keep_version(path, before, digest(text.encode()))
        path.write_text(text)
        return "written"

    return write


def openai_text(request: ModelRequest) -> str:
    """The messages of the user as a provider receives them."""
    body = openai_request.request_body(request, "x/y")
    return "\n".join(str(message["content"]) for message in body["messages"] if message["role"] == "user")


#: The Writes of an undo of one file, in order.
STAGES: dict[str, Callable[[Write], bool]] = {
    "begin": lambda write: bool(write.messages),
    "content": lambda write: bool(write.files) and not write.messages,
    "end": lambda write: bool(write.files) and bool(write.messages),
}


async def reversals(r: Rig) -> list[Reversal]:
    messages = await r.store.messages(r.session, None, 100)
    return [part for message in messages for part in message.all(Reversal)]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("stage", list(STAGES))
async def test_interrupted_undo_is_reported_and_repeatable(tmp_path: Path, when: str, stage: str) -> None:
    """After a failure of each write, a restored file is in the transcript, and a repetition and a redo are complete."""
    file, other, store = tmp_path / "a.txt", tmp_path / "b.txt", OutageStore()
    file.write_text("one")
    tool = ActingTool(write=writing(file, "two"), other=writing(other, "new"))
    model = ScriptedModel(do("write", "other"), "ok", "done")
    async with rig(tmp_path, model, store, tools=(tool,)) as r:
        run = await r.end(await r.submit())
        setattr(store, when, STAGES[stage])
        with pytest.raises(StoreUnavailable):
            await r.engine.undo.undo(r.workspace, r.session, run.run_id)
        stored = {"begin before": [], "end after": ["done"]}.get(f"{stage} {when}", ["started"])
        assert [(part.action, part.state) for part in await reversals(r)] == [("undo", state) for state in stored]
        if stored == ["done"]:
            with pytest.raises(RunNotFound):
                await r.engine.undo.undo(r.workspace, r.session, run.run_id)
        else:
            await r.engine.undo.undo(r.workspace, r.session, run.run_id)
        assert (file.read_text(), other.exists()) == ("one", False)
        assert (await reversals(r))[-1].state == "done"
        assert (await r.engine.undo.redo(r.workspace, r.session))[0] == run.run_id
        assert (file.read_text(), other.read_text()) == ("two", "new")
        with pytest.raises(RunNotFound):
            await r.engine.undo.redo(r.workspace, r.session)
        await r.end(await r.submit())
        assert "Your changes to these files are there again" in openai_text(model.requests[-1].request)


async def test_model_is_informed_of_an_undo(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    model = ScriptedModel(do("write"), "ok", "done")
    async with rig(tmp_path, model, tools=(writes(file, "two"),)) as r:
        run = await r.end(await r.submit())
        await r.engine.undo.undo(r.workspace, r.session, None)
        await r.end(await r.submit())
        assert await reversals(r) == [Reversal("undo", "done", (str(file),), run_id=run.run_id)]
        text = openai_text(model.requests[-1].request)
        assert "I undid the file changes of an earlier run. Your changes to these files are gone" in text
        assert str(file) in text


async def test_redo_spares_files_changed_since(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    async with rig(tmp_path, ScriptedModel(do("write"), "ok"), tools=(writes(file, "two"),)) as r:
        await r.end(await r.submit())
        for _ in range(2):  # an undo that was redone can be undone again
            await r.engine.undo.undo(r.workspace, r.session, None)
            assert not file.exists()
            await r.engine.undo.redo(r.workspace, r.session)
            assert file.read_text() == "two"
        await r.engine.undo.undo(r.workspace, r.session, None)
        file.write_text("by hand")
        with pytest.raises(FilesChanged):
            await r.engine.undo.redo(r.workspace, r.session)
        assert file.read_text() == "by hand"
        assert len(await reversals(r)) == 5


async def test_run_accepted_during_an_undo_starts_after_it(tmp_path: Path) -> None:
    """Otherwise the Run could change the files that the undo restores."""
    file, store = tmp_path / "a.txt", OutageStore()
    file.write_text("one")
    model = ScriptedModel(do("write"), "ok", [Hold("never")])
    async with no_asyncio_errors(), rig(tmp_path, model, store, tools=(writes(file, "two"),)) as r:
        await r.end(await r.submit())
        store.held = STAGES["end"]
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
