"""One workspace per directory, one Lane per session, one decision at a time per Lane."""

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
    """Holds the reads that open a workspace or load a Lane until the gate is open."""

    def __init__(self, data: MemoryData | None = None) -> None:
        super().__init__(data)
        self.gate = asyncio.Event()
        self.gate.set()
        self.held = 0

    async def bounds(self, workspace_id: str) -> tuple[int, int]:
        result = await super().bounds(workspace_id)
        await self._wait()
        return result

    async def session(self, workspace_id: str, session_id: str) -> SessionRecord | None:
        result = await super().session(workspace_id, session_id)
        await self._wait()
        return result

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
        await spin()  # the second task also blocks now
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
        tasks = [asyncio.create_task(r.engine.workspaces.lane(r.workspace, r.session)) for _ in range(2)]
        await until(lambda: store.held == 2)
        store.gate.set()
        one, two = await asyncio.gather(*tasks)
        assert one is two is r.workspace.lanes[r.session]


class OtherServer(FaultyStore):
    """Before each of our next decisions is written, another server completes a Run in the same Lane."""

    writes_first = 0

    async def append(self, write: Write) -> int:
        if write.lane is not None and self.writes_first:
            self.writes_first -= 1
            record, live = await self.lane(write.lane.lane.session_id)
            assert live == []
            moved = replace(record, version=record.version + 3, next_seq=record.next_seq + 1)
            await super().append(Write(write.workspace_id, lane=LaneWrite(moved, record.version)))
        return await super().append(write)


@pytest.mark.parametrize("conflicts", [1, ATTEMPTS_MAX - 1])
async def test_conflict_with_another_server_reloads_and_decides_again(tmp_path: Path, conflicts: int) -> None:
    store = OtherServer()
    async with rig(tmp_path, ScriptedModel("x", "y"), store) as r:
        store.writes_first = conflicts
        accepted = await r.submit(run_id="a")
        assert (accepted.seq, store.writes_first) == (conflicts + 1, 0)
        assert (await r.end("a")).text == "x"
        assert (await r.end(await r.submit(run_id="b"))).seq == conflicts + 2
        await r.assert_sound()


async def test_repeated_conflicts_are_given_up_without_a_change(tmp_path: Path) -> None:
    store = OtherServer()
    async with rig(tmp_path, ScriptedModel("x"), store) as r:
        store.writes_first = ATTEMPTS_MAX
        with pytest.raises(
            VersionConflict, match=f"^Session {r.session} is being changed by another server. Try again."
        ):
            await r.submit(run_id="a")
        assert store.writes_first == 0
        assert await r.engine.runs(r.workspace, r.session, 10) == []
        # The other server has finished, and the client retries as the error suggests.
        assert (await r.submit(run_id="a")).seq == ATTEMPTS_MAX + 1
        assert (await r.end("a")).text == "x"
        await r.assert_sound()
