from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cache

import pytest

from kedge.warden.base import Wanted, WantedSandbox, WardenFailed
from kedge.warden.warden import Warden
from tests.warden.support import MECHANISMS


@cache
def missing(wanted: Wanted) -> str:
    """Why this machine does not have the mechanism; empty if it has."""

    async def attempt() -> str:
        warden = Warden(wanted)
        try:
            await warden.start()
        except WardenFailed as error:
            return str(error)
        await warden.close()
        return ""

    return asyncio.run(attempt())


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> Wanted:
    """Each one this machine has."""
    wanted: Wanted = request.param
    if reason := missing(wanted):
        pytest.skip(reason)
    return wanted


@pytest.fixture
async def warden(mechanism: Wanted) -> AsyncIterator[Warden]:
    warden = Warden(mechanism)
    await warden.start()
    yield warden
    await warden.close()


@pytest.fixture(params=["any", "landlock", "mounts", "bubblewrap"])
async def sandboxed(mechanism: Wanted, request: pytest.FixtureRequest) -> AsyncIterator[Warden]:
    """All layers of the sandbox that this machine has, and each alone."""
    wanted: WantedSandbox = request.param
    warden = Warden(mechanism, wanted)
    await warden.start()
    try:
        if not warden.sandbox.is_there:
            pytest.skip(f"this machine has no sandbox of the kind {wanted}")
        yield warden
    finally:
        await warden.close()


@pytest.fixture
def subtracting(sandboxed: Warden) -> Warden:
    """A sandbox that holds more than the contents of files."""
    if not sandboxed.sandbox.subtracts:
        pytest.skip("Landlock alone cannot subtract")
    return sandboxed
