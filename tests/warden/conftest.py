from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cache

import pytest

from kedge.warden.base import MechanismChoice, SandboxChoice, WardenFailed
from kedge.warden.warden import Warden
from tests.warden.support import MECHANISMS


@cache
def missing(wanted: MechanismChoice) -> str:
    """Return why this machine does not have the mechanism; empty if it has."""

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
def mechanism(request: pytest.FixtureRequest) -> MechanismChoice:
    """Each one this machine has."""
    wanted: MechanismChoice = request.param
    if reason := missing(wanted):
        pytest.skip(reason)
    return wanted


@pytest.fixture
async def warden(mechanism: MechanismChoice) -> AsyncIterator[Warden]:
    warden = Warden(mechanism)
    await warden.start()
    yield warden
    await warden.close()


@pytest.fixture(params=["any", "landlock", "mounts", "bubblewrap"])
async def sandboxed(mechanism: MechanismChoice, request: pytest.FixtureRequest) -> AsyncIterator[Warden]:
    """All layers of the sandbox that this machine has, and each alone."""
    wanted: SandboxChoice = request.param
    warden = Warden(mechanism, wanted)
    await warden.start()
    try:
        if not warden.sandbox.is_available:
            pytest.skip(f"this machine has no sandbox of the kind {wanted}")
        yield warden
    finally:
        await warden.close()


@pytest.fixture
def subtracting(sandboxed: Warden) -> Warden:
    """A sandbox that holds more than the contents of files."""
    if not sandboxed.sandbox.can_subtract:
        pytest.skip("Landlock alone cannot subtract")
    return sandboxed
