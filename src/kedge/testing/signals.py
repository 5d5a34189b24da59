"""Wait until a condition is true, without a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Signal:
    """`wait_until` checks its condition after each `notify`. For one event loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            await self._changed.wait()


class Keys:
    """Named gates. A released key stays released."""

    #: Released keys in one run. Only a script with an endless supply of names reaches it. Items.
    KEYS_MAX = 10_000

    def __init__(self) -> None:
        self._released: set[str] = set()
        self._signal = Signal()

    def release(self, key: str) -> None:
        if len(self._released) >= self.KEYS_MAX:
            raise ValueError(f"more than {self.KEYS_MAX} keys were released")
        self._released.add(key)
        self._signal.notify()

    def released(self, key: str) -> bool:
        return key in self._released

    async def wait(self, key: str) -> None:
        await self._signal.wait_until(lambda: key in self._released)
