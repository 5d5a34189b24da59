"""One of each: one workspace for a directory, one Lane for a session, one decision at a time for a Lane."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from kedge.core.records import SessionRecord
from kedge.engine.door import ATTEMPTS_MAX
from kedge.errors import VersionConflict
from kedge.store.base import LaneWrite, Write
from kedge.store.memory import MemoryData
from kedge.testing.scripted import ScriptedModel
from tests.engine.rig import CLIENT, FaultyStore, rig, spin, until

OTHER_CLIENT = "00000000-0000-4000-8000-000000000002"


class HeldReads(FaultyStore):
    """Answers what is asked when a workspace or a Lane is first wanted, but not before the gate is open."""

    def __init__(self, data: MemoryData | None = None) -> None:
        super().__init__(data)
        self.gate = asyncio.Event()
        self.gate.set()
        self.held = 0

    async def bounds(self, workspace_id: str) -> tuple[int, int]:
        found = await super().bounds(workspace_id)
        await self._wait()
        return found

    async def session(self, workspace_id: str, session_id: str) -> SessionRecord | None:
        found = await super().session(workspace_id, session_id)
        await self._wait()
        return found

    async def _wait(self) -> None:
        self.held += not self.gate.is_set()
        await self.gate.wait()


async def test_concurrent_opens_of_a_directory_share_one_workspace(tmp_path: Path) -> None:
    store = HeldReads()
    async with rig(tmp_path, ScriptedModel(), store) as r:
        directory = tmp_path / "other"
        directory.mkdir()
        store.gate.clear()
        opening = [
            asyncio.create_task(r.engine.workspaces.open(str(directory), client)) for client in (CLIENT, OTHER_CLIENT)
        ]
        await until(lambda: store.held > 0)
        await spin()  # the second is as far as it gets while the first waits
        store.gate.set()
        one, two = await asyncio.gather(*opening)
        assert one is two is r.engine.workspaces.get(one.id)
        assert one.claims.has(CLIENT)
        assert one.claims.has(OTHER_CLIENT)


async def test_concurrent_requests_for_a_session_share_one_lane(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel()) as before:
        pass
    store = HeldReads(before.store.data)
    async with rig(tmp_path, ScriptedModel(), store) as r:
        assert r.session == before.session
        assert r.session not in r.workspace.lanes
        store.gate.clear()
        asking = [asyncio.create_task(r.engine.workspaces.lane(r.workspace, r.session)) for _ in range(2)]
        await until(lambda: store.held == 2)
        store.gate.set()
        one, two = await asyncio.gather(*asking)
        assert one is two is r.workspace.lanes[r.session]


class OtherServer(FaultyStore):
    """Before each of our next decisions is written, another server has a Run of its own in the same Lane, from its
    accept to its end."""

    goes_first = 0

    async def append(self, write: Write) -> int:
        if write.lane is not None and self.goes_first:
            self.goes_first -= 1
            record, live = await self.lane(write.lane.lane.session_id)
            assert live == []
            moved = replace(record, version=record.version + 3, next_seq=record.next_seq + 1)
            await super().append(Write(write.workspace_id, lane=LaneWrite(moved, record.version)))
        return await super().append(write)


@pytest.mark.parametrize("conflicts", [1, ATTEMPTS_MAX - 1])
async def test_conflict_with_another_server_reloads_and_decides_again(tmp_path: Path, conflicts: int) -> None:
    store = OtherServer()
    async with rig(tmp_path, ScriptedModel("x", "y"), store) as r:
        store.goes_first = conflicts
        accepted = await r.submit(run_id="a")
        assert (accepted.seq, store.goes_first) == (conflicts + 1, 0)
        assert (await r.end("a")).text == "x"
        assert (await r.end(await r.submit(run_id="b"))).seq == conflicts + 2
        await r.assert_sound()


async def test_repeated_conflicts_are_given_up_without_a_change(tmp_path: Path) -> None:
    store = OtherServer()
    async with rig(tmp_path, ScriptedModel("x"), store) as r:
        store.goes_first = ATTEMPTS_MAX
        with pytest.raises(
            VersionConflict, match=f"^session {r.session} is being changed by another server; try again"
        ):
            await r.submit(run_id="a")
        assert store.goes_first == 0
        assert await r.engine.runs(r.workspace, r.session, 10) == []
        # The other one has done with it, and the client tries again, as it was told.
        assert (await r.submit(run_id="a")).seq == ATTEMPTS_MAX + 1
        assert (await r.end("a")).text == "x"
        await r.assert_sound()
