"""Shutdown: what is interrupted, what is kept for the next process, and when a server counts as idle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.core.records import Attachment, Prompt, RunOptions
from kedge.errors import ShuttingDown
from kedge.testing.scripted import Hold, Say, ScriptedModel
from tests.engine.rig import CLIENT, FaultyStore, OutageStore, rig, spin, until


async def test_shutdown_interrupts_the_active_run_and_keeps_the_queue(tmp_path: Path) -> None:
    store = FaultyStore()
    async with rig(tmp_path, ScriptedModel([Say("half"), Hold("never")]), store) as r:
        await r.submit(run_id="a")
        await r.submit(run_id="b")
        await r.submit(run_id="c")
        await r.model.wait_requests(1)
        await spin()
        await r.engine.close()
        with pytest.raises(ShuttingDown):
            await r.submit(run_id="d")
    again = FaultyStore(store.data)
    async with rig(tmp_path, ScriptedModel("second", "third"), again) as r:
        ends = [(await r.end(run_id)).outcome for run_id in ("a", "b", "c")]
        assert ends == ["interrupted", "completed", "completed"]
        assert (await r.transcript())[1] == ("assistant", "half", "error")


async def test_shutdown_releases_waiters_of_queued_runs(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("never")])) as r:
        await r.submit(run_id="a")
        await r.submit(run_id="b")
        await r.submit(run_id="c")
        waiting = asyncio.create_task(r.engine.wait_run(r.workspace, "c", 3600))
        await r.model.wait_requests(1)
        await r.engine.close()
        assert (await waiting).state == "queued"


async def test_unused_server_refuses_new_clients_once_it_exits(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("x")) as r:
        assert not r.engine.refuse_new_if_unused()
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        opening = asyncio.create_task(r.engine.workspaces.open(str(tmp_path), CLIENT))
        await asyncio.sleep(0)
        assert not r.engine.refuse_new_if_unused()
        r.engine.workspaces.release((await opening).id, CLIENT)
        assert r.engine.refuse_new_if_unused()
        assert r.engine.is_closing


@pytest.mark.found(
    "a review of the engine: a submit in progress while an idle server shuts down",
    "a prompt whose append was in progress did not count; the server exited, and the accepted Run was interrupted or "
    "waited for the next start; the idle check now includes appends in progress, and new work is refused at once",
)
async def test_server_with_a_submit_in_progress_is_not_idle(tmp_path: Path) -> None:
    store = OutageStore()
    async with rig(tmp_path, ScriptedModel("done"), store) as r:
        store.held = lambda write: bool(write.runs)
        submitting = asyncio.create_task(r.submit(run_id="a"))
        await store.waiting.wait()
        store.held = None
        was_idle = r.engine.refuse_new_if_idle()
        store.gate.set()
        await submitting
        assert not was_idle
        assert (await r.end("a")).text == "done"
        await until(r.engine.refuse_new_if_idle)
        assert r.engine.is_closing


async def test_server_reading_attached_files_is_not_idle(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    async with rig(tmp_path, ScriptedModel("done")) as r:
        prompt = Prompt("look", (Attachment(str(tmp_path / "a.txt"), "a.txt", "text/plain"),))
        submitting = asyncio.create_task(r.engine.submit(r.workspace, r.session, prompt, RunOptions(), "a"))
        await asyncio.sleep(0)  # the submit has started, and a thread reads the file
        was_idle = r.engine.refuse_new_if_idle()
        await submitting
        assert not was_idle
        assert (await r.end("a")).text == "done"
