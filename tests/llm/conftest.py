from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from kedge.llm.transport import new_client
from kedge.testing import ScriptedEndpoint
from tests.llm.support import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with new_client() as client, AsyncExitStack() as stack:
        yield Bench(client, stack)


@pytest.fixture
async def endpoint() -> AsyncIterator[ScriptedEndpoint]:
    async with ScriptedEndpoint() as endpoint:
        yield endpoint
