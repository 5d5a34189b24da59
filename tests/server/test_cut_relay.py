"""A relay whose node cannot be reached: what it reads from the store, and a store that cannot be read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kedge.core.records import RunRecord
from kedge.engine.readers import read_mirror
from kedge.errors import StoreDamaged
from kedge.server import relay
from kedge.server.relay import Relay
from tests.engine.rig import FaultyModel, FaultyStore, rig


class WatchedStore(FaultyStore):
    """Counts the looks at the live Runs, and refuses them while it is damaged."""

    looks = 0
    is_damaged = False

    async def live_runs(self, workspace_id: str) -> list[RunRecord]:
        self.looks += 1
        if self.is_damaged:
            raise StoreDamaged("a row cannot be read")
        return await super().live_runs(workspace_id)


async def _nobody(workspace_id: str) -> None:
    """No node holds the workspace."""


async def test_prompts_are_read_again_only_after_events(tmp_path: Path) -> None:
    store = WatchedStore()
    async with rig(tmp_path, FaultyModel("one", "two", faults=[]), store) as r:
        mirror = await r.engine.workspaces.mirror(r.workspace.id)
        store.looks = 0
        for _ in range(5):
            assert not await mirror.refresh()
        assert store.looks == 1
        await r.end(await r.submit())
        assert not await mirror.refresh()
        assert store.looks == 2


async def test_readers_end_when_the_store_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "REFRESH_S", 0.001)
    store = WatchedStore()
    async with rig(tmp_path, FaultyModel(faults=[]), store) as r:
        mirror = await r.engine.workspaces.mirror(r.workspace.id)
        reader = await read_mirror(mirror, None, None, deltas=True)
        store.is_damaged = True
        link = cast(Any, SimpleNamespace(node=SimpleNamespace(holder=_nobody)))
        ended: list[Relay] = []
        one = Relay(link, mirror, lambda workspace_id: False, ended.append, lambda: "1", None)
        assert await reader.read(5.0) is None
        assert ended == [one]
        reader.close()
        store.is_damaged = False
