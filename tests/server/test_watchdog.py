"""The watchdog of the event loop logs stalls and nothing else."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time

import pytest

from kedge.server.watchdog import STALL_S, Watchdog

#: The time for which the test stops a process: much longer than any real stall in it. Seconds.
PAUSE_S = 1.0


def _block_the_loop(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


async def test_a_stall_is_logged_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(lambda: True)
    watchdog.start()
    try:
        with caplog.at_level(logging.WARNING, "kedge.server"):
            while not watchdog.stalls.count:  # the machine may be busy when the first one happens
                _block_the_loop(4 * STALL_S)
                await asyncio.sleep(0)
    finally:
        watchdog.close()
    assert watchdog.stalls.longest_s >= STALL_S
    assert "_block_the_loop" in caplog.text
    assert "the event loop stalled for" in caplog.text


def test_the_watchdog_of_an_idle_loop_pauses() -> None:
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


_PAUSED_IN_A_CALLBACK = """
import asyncio, os, signal, time
from kedge.server.watchdog import BEAT_S, Watchdog

async def some_beats():
    until = time.monotonic() + 3 * BEAT_S
    while time.monotonic() < until:
        await asyncio.sleep(0)

async def main():
    watchdog = Watchdog(lambda: True)
    watchdog.start()
    await some_beats()
    os.kill(os.getpid(), signal.SIGSTOP)
    while watchdog._late[0] != watchdog._due_at:  # the thread takes the stack of the late loop
        os.sched_yield()
    await some_beats()
    print(watchdog.stalls.longest_s)

asyncio.run(main())
"""


def test_a_paused_process_is_not_a_stall() -> None:
    process = subprocess.Popen([sys.executable, "-c", _PAUSED_IN_A_CALLBACK], stdout=subprocess.PIPE, text=True)
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(PAUSE_S)
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert float(output) < PAUSE_S / 2
