"""The open connections of browsers and users, which end when the access is revoked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class OpenConnections:
    def __init__(self) -> None:
        #: Browser or user -> ends of its open connections. A list: two requests of one connection have the same end.
        self._ends: dict[str, list[Callable[[], None]]] = {}

    @contextmanager
    def added(self, name: str, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` if the access of `name` ends within this block."""
        ends = self._ends.setdefault(name, [])
        ends.append(end)
        try:
            yield
        finally:
            ends.remove(end)
            if not ends and self._ends.get(name) is ends:
                del self._ends[name]

    def end(self, name: str, spared: Callable[[], None] | None = None) -> None:
        """End the connections of `name`, except for `spared`."""
        for end in self._ends.pop(name, []):
            if end != spared:
                end()
