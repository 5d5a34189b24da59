"""A task that counts passes of the event loop: work that does not give way prevents them."""

from __future__ import annotations

import asyncio


class PassCounter:
    def __init__(self) -> None:
        self._passes = 0
        self._task = asyncio.get_running_loop().create_task(self._count())

    async def _count(self) -> None:
        while True:
            self._passes += 1
            await asyncio.sleep(0)

    def stop(self) -> int:
        """Return the passes since the start."""
        self._task.cancel()
        return self._passes
