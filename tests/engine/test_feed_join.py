"""A reader moves from the log to the ring while the ring advances."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.core.records import LaneRecord, RunRecord
from kedge.errors import StoreUnavailable
from kedge.store.base import Write
from kedge.testing.scripted import Hold, Say, ScriptedModel
from tests.engine.rig import FaultyStore, rig, until
from tests.engine.test_feed import positions, read_all, reader


async def test_flush_during_a_join_evicts_no_frame_the_reader_needs(tmp_path: Path) -> None:
    """Found by conformance D4: a reader that returned to the ring at this point missed a `run_complete`."""
    async with rig(tmp_path, ScriptedModel([Say("x"), Hold("k")])) as r:
        feed = r.workspace.feed
        follower, late = await reader(r), await reader(r)
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        await until(lambda: any(draft.chars for draft in feed._drafts.values()))
        expected = positions(await read_all(follower))
        # Unflushed text is so long that the ring would evict the frames the late reader still needs.
        (draft,) = feed._drafts.values()
        draft.add("text", "y" * feed.ring_bytes_max)
        feed.text_added(draft)
        assert positions(await read_all(late)) == expected
        r.model.release("k")
        await r.end("a")


class LateStore(FaultyStore):
    """Appended entries can be read before the append returns to its caller."""

    def __init__(self) -> None:
        super().__init__()
        self.acknowledged = asyncio.Event()
        self.acknowledged.set()

    async def append(self, write: Write) -> int:
        head = await super().append(write)
        await self.acknowledged.wait()
        return head


async def test_event_read_from_the_log_is_not_repeated_by_the_ring(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("x"), LateStore()) as r:
        assert isinstance(r.store, LateStore)
        r.store.acknowledged.clear()
        creating = asyncio.create_task(r.engine.create_session(r.workspace, "new"))
        await until(lambda: r.store.appends == 2)
        ahead = await reader(r, after=0)
        assert len(await read_all(ahead)) == 2
        r.store.acknowledged.set()
        await creating
        assert await read_all(ahead) == []
        await r.end(await r.submit())
        assert positions(await read_all(ahead)) == positions(await read_all(await reader(r, after=0)))[2:]


class HeldLanes(FaultyStore):
    """Blocks reads of Lanes until the gate is open, so that a stale Lane stays stale."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def lane(self, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        await self.gate.wait()
        return await super().lane(session_id)


async def test_uncertain_event_precedes_later_ones_of_other_sessions(tmp_path: Path) -> None:
    store = HeldLanes()
    async with rig(tmp_path, ScriptedModel(), store) as r:
        live = await reader(r, after=0)
        seen = await read_all(live)
        store.fail_after = 1
        with pytest.raises(StoreUnavailable):
            await r.engine.change_session(r.workspace, r.session, "happened")
        await r.engine.create_session(r.workspace, "later")
        seen += await read_all(live)
        store.gate.set()
        await r.engine._door.refresh(r.workspace.lanes[r.session])  # the Lane is reloaded
        assert [body["title"] for _, body, _ in seen] == ["", "happened", "later"]
        assert await read_all(live) == []
        assert positions(seen) == positions(await read_all(await reader(r, after=0)))


async def test_reader_of_a_log_that_is_trimmed_meanwhile_gets_a_gap(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel()) as r:
        for title in ("one", "two", "three"):
            await r.engine.create_session(r.workspace, title)
        late = await reader(r, after=0)
        await r.store.trim(r.workspace.id, 2)
        frames = await read_all(late)
        assert [event for event, _, _ in frames] == ["gap", "session", "session"], frames
        assert [body["title"] for _, body, _ in frames[1:]] == ["two", "three"]
