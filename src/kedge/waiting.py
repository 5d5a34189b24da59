"""Waiting that a cancel does not cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def wait_out(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Until all are done, however often the waiter is cancelled meanwhile: for clean-ups, by callers that are on their
    way out anyway and raise what they are leaving with. How the tasks ended counts as looked at."""
    left = set(tasks)
    while left:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError:
            continue
        for task in left:
            if not task.cancelled():
                task.exception()
        break
