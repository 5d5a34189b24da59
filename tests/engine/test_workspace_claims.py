"""Claims keep a workspace open. Without one it closes, and Runs bound to their client are cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.errors import WorkspaceClosing, WorkspaceNotFound
from kedge.store.base import Write
from kedge.testing.scripted import Hold, ScriptedModel
from tests.engine.rig import CLIENT, OutageStore, PlainMachine, rig, spin, until


async def test_workspace_closes_after_an_uncertain_last_end(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("k")])) as r:
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        r.store.fail_after = 1
        r.model.release("k")
        await until(lambda: r.engine.workspaces.all() == [])
        assert [run.state for run in await r.store.runs(r.session, 10)] == ["ended"]


async def test_unclaimed_run_is_cancelled_once_the_store_recovers(tmp_path: Path) -> None:
    store = OutageStore()
    async with rig(tmp_path, ScriptedModel([Hold("never")]), store) as r:
        await r.submit(run_id="a", on_disconnect="cancel")
        await r.model.wait_requests(1)
        before = store.appends
        store.fail_before = 3
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        assert (await r.end("a")).outcome == "cancelled"
        assert store.appends - before < 20


async def test_unclaimed_workspace_closes_and_refuses_commands(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("x")) as r:
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        with pytest.raises(WorkspaceNotFound):
            r.engine.workspaces.get(r.workspace.id)
        with pytest.raises(WorkspaceClosing):
            await r.submit()
        assert "RunAccepted" not in await r.log_kinds()


async def test_command_in_progress_keeps_its_workspace_open(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("x")) as r:
        submitting = asyncio.create_task(r.submit(run_id="a"))
        await asyncio.sleep(0)
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        assert r.engine.workspaces.get(r.workspace.id) is r.workspace
        await submitting
        await r.end("a")
        await spin()
        with pytest.raises(WorkspaceNotFound):
            r.engine.workspaces.get(r.workspace.id)


@pytest.mark.found(
    "a review of the simulator: a changed system clock",
    "claims used the system clock; set forward, it cancelled Runs whose client was away for a moment; set back, it "
    "kept workspaces open for too long; claims now use the monotonic time of the event loop",
)
@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
async def test_clock_change_does_not_affect_claims(tmp_path: Path, step_s: float) -> None:
    server = {"hold_s": 2.0, "grace_s": 2.0}
    async with rig(tmp_path, ScriptedModel([Hold("never")]), server=server) as r:
        workspaces = r.engine.workspaces
        workspaces.stream_opened(r.workspace, CLIENT, "1")
        await r.submit(run_id="bound", on_disconnect="cancel")
        workspaces.stream_closed(r.workspace, CLIENT, "1")
        r.clock.advance(step_s)
        workspaces.sweep()
        assert not (await r.engine.run(r.workspace, "bound")).stopping
        workspaces.stream_opened(r.workspace, CLIENT, "2")
        assert workspaces.all() == [r.workspace]
        workspaces.stream_closed(r.workspace, CLIENT, "2")
        assert (await r.end("bound")).outcome == "cancelled"
        await until(lambda: not workspaces.all())


@pytest.mark.found(
    "a review of the engine: a command that outlasts the last claim",
    "no sweep followed the end of a user command, an undo or an answer; a workspace without a claim stayed open "
    "forever, and so did its server; the last of them to end now closes it",
)
async def test_user_command_outlasting_the_last_claim_closes_workspace(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel(), machine=PlainMachine(), server={"hold_s": 30.0}) as r:
        command = asyncio.create_task(
            r.engine.user_commands.run(r.workspace, r.session, "while [ ! -e go ]; do sleep 0.02; done")
        )
        await until(lambda: r.workspace._in_use > 0)
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        assert r.engine.workspaces.all() == [r.workspace]
        (tmp_path / "go").touch()
        await command
        assert r.engine.workspaces.all() == []


@pytest.mark.found(
    "a review of the engine: a client that returns while the cancel of its Run cannot be stored",
    "the Run was cancelled when the disk had free space again, although its client had returned long before; the claim "
    "is now checked again before each attempt",
)
async def test_run_of_a_returned_client_is_not_cancelled_late(tmp_path: Path) -> None:
    store, refused = OutageStore(), asyncio.Event()

    def fails(write: Write) -> bool:
        refused.set()
        return True

    async with rig(tmp_path, ScriptedModel([Hold("k")]), store) as r:
        await r.submit(run_id="a", on_disconnect="cancel")
        await r.model.wait_requests(1)
        store.before = fails
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        await refused.wait()
        r.engine.workspaces.stream_opened(r.workspace, CLIENT, "again")
        await until(lambda: not r.engine.abandoned_runs.cancels)
        r.model.release("k")
        assert (await r.end("a")).outcome == "completed"
