"""Waiting for another process or thread whose progress can only be polled.

The pause is not for synchronisation: the condition decides. Without a pause the test would take a core from the
process that it waits for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

#: Between two checks of a condition. Seconds.
PAUSE_S = 0.005


async def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds. The timeout of the test ends a hang."""
    while not condition():  # noqa: ASYNC110 -- another process makes it true
        await asyncio.sleep(PAUSE_S)


def block_until(condition: Callable[[], object], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(PAUSE_S)
