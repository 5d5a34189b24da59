"""Long work on the event loop in short slices, so that short work of others does not wait for it.

Why not a thread: it competes for the interpreter with the event loop and with the threads of the store, and each of
them waits for up to 5 ms whenever it returns from a system call. Between two slices nothing competes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

#: Work of one slice: a millisecond or two. Bytes that are encoded or copied.
SLICE_BYTES = 512 * 1024
#: The fixed cost of an item, as the bytes that take the same time. Bytes.
ITEM_BYTES = 4 * 1024


class Slices:
    """Gives other tasks a turn whenever a task has worked for a while.

    It counts the work instead of measuring its time, so that simulations are deterministic."""

    def __init__(self) -> None:
        self._work = 0

    async def count(self, size: int = 0) -> None:
        """Count an item of this size, in bytes."""
        self._work += ITEM_BYTES + size
        if self._work > SLICE_BYTES:
            self._work = 0
            await asyncio.sleep(0)


async def in_slices(items: Iterable[T], size: Callable[[T], int] = lambda item: 0) -> AsyncIterator[T]:
    """Yield the items, whose creation takes time, and give other tasks a turn in between."""
    slices = Slices()
    for item in items:
        yield item
        await slices.count(size(item))
