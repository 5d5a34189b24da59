"""A session whose deletion the store refuses is still there, and works as before (SCENARIOS C6, G4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.errors import SessionNotFound, StoreUnavailable
from kedge.testing.scripted import Hold, ScriptedModel
from tests.engine.rig import rig


async def test_a_session_that_could_not_be_deleted_takes_prompts_again(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("fine")) as r:
        r.store.fail_before = 1
        with pytest.raises(StoreUnavailable):
            await r.engine.delete_session(r.workspace, r.session)
        assert (await r.end(await r.submit(run_id="a"))).text == "fine"
        await r.engine.delete_session(r.workspace, r.session)


async def test_a_session_whose_runs_could_not_be_cancelled_goes_on(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("k")], "next")) as r:
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        r.store.fail_before = 1
        with pytest.raises(StoreUnavailable):
            await r.engine.delete_session(r.workspace, r.session)
        await r.submit(run_id="b")
        r.model.release("k")
        assert [(await r.end(run_id)).outcome for run_id in "ab"] == ["completed", "completed"]


async def test_a_session_that_was_deleted_though_the_store_said_no_is_gone(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("never")) as r:
        r.store.fail_after = 1
        with pytest.raises(StoreUnavailable):
            await r.engine.delete_session(r.workspace, r.session)
        with pytest.raises(SessionNotFound):
            await r.submit(run_id="a")
