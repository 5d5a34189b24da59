"""The watchdog of the event loop reports stalls, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from kedge.server.watchdog import STALL_S, Watchdog


def _stand_still(seconds: float) -> None:
    """The fault itself: it keeps the loop busy."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


async def test_a_stall_is_reported_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(lambda: True)
    watchdog.start()
    try:
        with caplog.at_level(logging.WARNING, "kedge.server"):
            while not watchdog.stalls.count:  # the machine may be busy when the first one happens
                _stand_still(4 * STALL_S)
                await asyncio.sleep(0)
    finally:
        watchdog.close()
    assert watchdog.stalls.longest_s >= STALL_S
    assert "_stand_still" in caplog.text
    assert "the event loop stalled for" in caplog.text


def test_an_idle_loop_is_not_woken() -> None:
    watchdog = Watchdog(lambda: False)

    async def watched() -> bool:
        watchdog.start()
        watchdog._requested_at = time.monotonic() - 3600  # the last request was long ago
        while watchdog._awake.is_set():  # noqa: ASYNC110 -- cleared by a timer
            await asyncio.sleep(0)
        watchdog.notice()
        woken = watchdog._awake.is_set()
        watchdog.close()
        return woken

    assert asyncio.run(watched())
