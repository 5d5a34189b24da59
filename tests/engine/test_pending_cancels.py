"""A stop does not depend on the store: a cancel that cannot be written stops its Run and is written later."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.core.events import CancelMarked, RunEnded
from kedge.engine.cancels import Cancelled
from kedge.errors import StoreUnavailable
from kedge.store.base import Write
from kedge.testing.scripted import Hold, ScriptedModel
from tests.engine.rig import OutageStore, Rig, no_asyncio_errors, rig, until


def accepts(write: Write) -> bool:
    return any(run.run_id == "b" for run in write.runs)


def ends(write: Write) -> bool:
    return any(isinstance(event, RunEnded) for _, event in write.events)


async def started(r: Rig, run_id: str = "a") -> None:
    await r.submit(run_id=run_id)
    await r.model.wait_requests(1)


async def cancel_without_store(r: Rig, store: OutageStore) -> Cancelled:
    store.out = True
    cancelled = await r.engine.cancel(r.workspace, r.session)
    assert not cancelled.is_recorded
    return cancelled


async def until_stopped(r: Rig) -> None:
    async with asyncio.timeout(10):
        await until(lambda: r.model.streams_open == 0)


async def test_a_cancel_without_a_store_ends_its_run_once(tmp_path: Path) -> None:
    store = OutageStore()
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel([Hold("never")]), store) as r:
        await started(r)
        cancelled = await cancel_without_store(r, store)
        assert [(run.run_id, run.was) for run in cancelled.covered] == [("a", "active")]
        await until_stopped(r)
        assert (await r.engine.run(r.workspace, "a")).state == "active", "its end is not recorded yet"
        store.out = False
        assert (await r.end("a")).outcome == "cancelled"
        assert await r.ends() == ["a"]
        await r.assert_sound()


async def test_a_pending_cancel_spares_later_prompts(tmp_path: Path) -> None:
    store = OutageStore()
    async with rig(tmp_path, ScriptedModel([Hold("never")], "next"), store) as r:
        await started(r)
        await cancel_without_store(r, store)
        store.out = False
        later = await r.submit(run_id="b")
        assert (await r.end(later)).text == "next"
        assert (await r.end("a")).outcome == "cancelled"


async def test_a_pending_cancel_spares_a_run_of_the_same_append(tmp_path: Path) -> None:
    """The append of a later prompt includes the pending cancel. It fails, and was stored after all."""
    store = OutageStore()
    async with rig(tmp_path, ScriptedModel([Hold("never")], "next"), store) as r:
        await started(r)
        await cancel_without_store(r, store)
        store.out, store.after = False, accepts
        with pytest.raises(StoreUnavailable):
            await r.submit(run_id="b")
        assert (await r.end("b")).text == "next"
        assert (await r.end("a")).outcome == "cancelled"
        log = await store.read(r.workspace.id, 0, 1_000)
        assert sum(isinstance(entry.event, CancelMarked) for entry in log) == 1


async def test_a_second_cancel_covers_what_the_first_one_spared(tmp_path: Path) -> None:
    store = OutageStore()
    async with rig(tmp_path, ScriptedModel([Hold("never")], [Hold("never")]), store) as r:
        await started(r)
        await cancel_without_store(r, store)
        store.out, store.after = False, accepts
        with pytest.raises(StoreUnavailable):
            await r.submit(run_id="b")
        await cancel_without_store(r, store)
        store.out = False
        assert [(await r.end(run_id)).outcome for run_id in ("a", "b")] == ["cancelled", "cancelled"]
        await r.assert_sound()


async def test_a_reload_starts_no_run_that_a_pending_cancel_covers(tmp_path: Path) -> None:
    """The end of a Run is stored without an answer, so memory does not have its successor when the cancel comes."""
    store = OutageStore()
    async with rig(tmp_path, ScriptedModel([Hold("k")], [Hold("never")]), store) as r:
        await started(r)
        await r.submit(run_id="b")
        store.after = ends
        r.model.release("k")
        await until(lambda: store.after is None)
        await cancel_without_store(r, store)
        store.out, store.fail_before = False, 3  # reads work again, writes do not
        assert (await r.end("b")).outcome == "cancelled"
        assert len(r.model.requests) == 1, "the cancelled Run sends no request"


async def test_a_cancel_stops_its_run_while_the_store_hangs(tmp_path: Path) -> None:
    store = OutageStore()
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel([Hold("never")]), store) as r:
        await started(r)
        store.held = lambda write: bool(write.events)
        cancelling = asyncio.create_task(r.engine.cancel_run(r.workspace, "a"))
        await store.waiting.wait()
        try:
            await until_stopped(r)
            cancelled = await cancelling
        finally:
            store.gate.set()
        assert (cancelled.is_recorded, [run.run_id for run in cancelled.covered]) == (False, ["a"])
        assert (await r.end("a")).outcome == "cancelled"
        assert await r.ends() == ["a"]
