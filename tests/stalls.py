"""The event loop of a server under test never stands still: its watchdog would have logged it."""

from __future__ import annotations


def assert_no_stall(log: str) -> None:
    """`log`: of a server. Its watchdog writes a line, and the stack, for each stall over 100 ms."""
    start = log.find("event loop stalled")
    assert start < 0, f"the {log[start : start + 3000]}"
