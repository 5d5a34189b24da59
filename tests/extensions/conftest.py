from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.extensions.mcp_rig import Rig
from tests.tools.contexts import RecordingHost


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    rig = make_rig(tmp_path_factory.mktemp("rig"))
    yield rig
    await rig.part.close()


@pytest_asyncio.fixture(loop_scope="module")
async def rig(shared_rig: Rig, tmp_path: Path) -> AsyncIterator[Rig]:
    """The workspace of a module, with no servers. Its bridge keeps running: each start takes a second."""
    shared_rig.notes, shared_rig.host = tmp_path, RecordingHost()
    shared_rig.states.clear()
    yield shared_rig
    (shared_rig.root / ".mcp.json").unlink(missing_ok=True)
    await shared_rig.configure()
    assert shared_rig.part.states() == ()


@pytest_asyncio.fixture(loop_scope="module")
async def own_rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = make_rig(tmp_path)
    yield rig
    await rig.part.close()


def make_rig(directory: Path) -> Rig:
    for name in ("root", "data"):
        (directory / name).mkdir()
    return Rig(directory / "root", directory / "data")
