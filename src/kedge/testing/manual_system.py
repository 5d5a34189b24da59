"""A deterministic clock and deterministic ids for the engine."""

from __future__ import annotations


class ManualClock:
    """A clock that only the test moves. It starts at a round number, so that Positions are easy to read."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, seconds: float) -> None:
        self._now_ms += int(seconds * 1000)


class CountingIds:
    """Unique short ids: w1, s2, m3, ... A second process continues `after` the first."""

    def __init__(self, after: int = 0) -> None:
        self._count = after

    def new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"
