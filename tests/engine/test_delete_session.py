"""Deletion of sessions. After a failed delete, a session works as before (SCENARIOS C6, G4)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.core.events import RunEnded
from kedge.errors import SessionNotFound, StoreUnavailable
from kedge.testing.scripted import Call, Hold, ScriptedModel
from tests.engine.rig import OutageStore, rig, spin


async def test_session_accepts_prompts_after_a_failed_delete(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("fine")) as r:
        r.store.fail_before = 1
        with pytest.raises(StoreUnavailable):
            await r.engine.delete_session(r.workspace, r.session)
        assert (await r.end(await r.submit(run_id="a"))).text == "fine"
        await r.engine.delete_session(r.workspace, r.session)


async def test_session_continues_if_its_runs_cannot_be_cancelled(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("k")], "next")) as r:
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        r.store.fail_before = 1
        with pytest.raises(StoreUnavailable):
            await r.engine.delete_session(r.workspace, r.session)
        await r.submit(run_id="b")
        r.model.release("k")
        assert [(await r.end(run_id)).outcome for run_id in "ab"] == ["completed", "completed"]


async def test_delete_stored_despite_an_error_is_final(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("never")) as r:
        r.store.fail_after = 1
        with pytest.raises(StoreUnavailable):
            await r.engine.delete_session(r.workspace, r.session)
        with pytest.raises(SessionNotFound):
            await r.submit(run_id="a")


async def test_session_with_folded_runs_can_be_deleted(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("k"), Call("x")], [Hold("never")])) as r:
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        await r.submit(run_id="b", when_busy="fold")
        r.model.release("k")
        await r.model.wait_requests(2)
        assert (await r.engine.run(r.workspace, "b")).folded_into == "a"
        await r.engine.delete_session(r.workspace, r.session)
        assert await r.engine.sessions(r.workspace) == []


async def test_concurrent_changes_do_not_restore_a_deleted_session(tmp_path: Path) -> None:
    store = OutageStore()
    async with rig(tmp_path, ScriptedModel("x"), store) as r:
        store.held = lambda write: bool(write.deleted_sessions)
        deleting = asyncio.create_task(r.engine.delete_session(r.workspace, r.session))
        await store.waiting.wait()
        others = [
            asyncio.create_task(r.engine.change_session(r.workspace, r.session, "back again")),
            asyncio.create_task(r.engine.delete_session(r.workspace, r.session)),
        ]
        await spin()
        store.gate.set()
        await deleting
        assert [type(error) for error in await asyncio.gather(*others, return_exceptions=True)] == [SessionNotFound] * 2
        assert await r.engine.sessions(r.workspace) == []
        assert (await r.log_kinds()).count("SessionChanged") == 2


async def test_cancelled_delete_leaves_the_session_usable(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("never")], "y")) as r:
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        deleting = asyncio.create_task(r.engine.delete_session(r.workspace, r.session))
        await asyncio.sleep(0)
        deleting.cancel()
        await asyncio.gather(deleting, return_exceptions=True)
        await spin()
        assert (await r.end(await r.submit(run_id="b"))).text == "y"


async def test_deleted_session_ends_its_runs_and_accepts_no_more(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("never")])) as r:
        await r.submit(run_id="a")
        await r.submit(run_id="b")
        await r.model.wait_requests(1)
        deleting = asyncio.create_task(r.engine.delete_session(r.workspace, r.session))
        await asyncio.sleep(0)
        with pytest.raises(SessionNotFound):
            await r.submit(run_id="c")
        await deleting
        ends = {entry.event.run_id: entry.event.outcome for entry in await r.log() if isinstance(entry.event, RunEnded)}
        assert ends == {"a": "cancelled", "b": "cancelled"}
        with pytest.raises(SessionNotFound):
            await r.engine.session(r.workspace, r.session)
