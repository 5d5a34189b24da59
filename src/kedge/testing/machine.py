"""A machine for the engine's ports that does the same every time: a clock moved by hand, ids that count."""

from __future__ import annotations


class ManualClock:
    """Time stands still until the test moves it. Starts at a round moment, so that Positions are easy to read."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, seconds: float) -> None:
        self._now_ms += int(seconds * 1000)


class CountingIds:
    """w1, s2, m3, ...: unique, and short enough to be read in a failure. A second process begins `after` the first."""

    def __init__(self, after: int = 0) -> None:
        self._count = after

    def new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"
