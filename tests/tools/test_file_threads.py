"""The threads of a directory: a time limit for each call, few threads, and none that delays the exit of the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kedge.errors import DirectoryTimeout
from kedge.tools import file_threads
from kedge.tools.file_threads import THREADS_MAX, TOOL_THREADS_MAX, WAITING_MAX, FileThreads, checkpoint
from kedge.tools.tool_threads import ToolThreads
from tests.polling import until
from tests.tools.test_tool_threads import gate

#: A short time limit, for calls that hang. Seconds.
SHORT_S = 0.05


async def test_a_call_that_hangs_fails_and_its_thread_stops_later() -> None:
    files, passed = FileThreads("The directory /x"), list[str]()
    with gate() as closed:

        def work() -> None:
            closed.wait()
            checkpoint()
            passed.append("the checkpoint")

        with pytest.raises(DirectoryTimeout, match="^The directory /x does not answer; check the mount.$"):
            await files.run(work, limit_s=SHORT_S)
        assert files.stuck == 1
        assert await files.run(lambda: "another thread") == "another thread"
        closed.open()
        while files.stuck:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert passed == []


async def test_the_errors_of_a_call_are_its_own() -> None:
    def fail() -> None:
        raise TimeoutError("of the disk")  # ETIMEDOUT of a network file system

    with pytest.raises(TimeoutError, match="of the disk"):
        await FileThreads("The directory").run(fail)


async def test_calls_wait_for_a_thread_up_to_a_limit() -> None:
    files, began = FileThreads("The directory"), list[str]()
    with gate() as closed:
        busy = [asyncio.ensure_future(files.run(closed.wait)) for _ in range(THREADS_MAX)]
        for _ in busy:
            assert await asyncio.to_thread(closed.reached.acquire)
        with pytest.raises(DirectoryTimeout):
            await files.run(began.append, "late", limit_s=SHORT_S)
        waiting = [asyncio.ensure_future(files.run(began.append, "waited")) for _ in range(WAITING_MAX - 1)]
        await asyncio.sleep(0)
        with pytest.raises(DirectoryTimeout):  # at once: too many wait
            await files.run(began.append, "one too many")
        closed.open()
        await asyncio.gather(*busy, *waiting)
    assert began == ["waited"] * (WAITING_MAX - 1)


async def test_requests_do_not_wait_for_tools() -> None:
    files = FileThreads("The directory")
    with gate() as closed:
        tools = [asyncio.ensure_future(ToolThreads(files).run(closed.wait)) for _ in range(3 * TOOL_THREADS_MAX)]
        for _ in range(TOOL_THREADS_MAX):
            assert await asyncio.to_thread(closed.reached.acquire)
        assert await files.run(lambda: "of a request") == "of a request"
        assert not closed.reached.acquire(blocking=False)
        closed.open()
        await asyncio.gather(*tools)


async def test_tools_wait_for_busy_threads_but_not_for_stuck_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_threads, "LOOK_S", SHORT_S)
    files = FileThreads("The directory")
    with gate() as closed, gate() as slow:
        busy = [asyncio.ensure_future(ToolThreads(files).run(slow.wait)) for _ in range(TOOL_THREADS_MAX - 1)]
        with pytest.raises(DirectoryTimeout):
            await ToolThreads(files).look(closed.wait)
        with pytest.raises(DirectoryTimeout):  # no thread is free, and one is stuck
            await ToolThreads(files).run(lambda: "never")
        closed.open()
        while files.stuck:  # noqa: ASYNC110
            await asyncio.sleep(0)
        busy.append(asyncio.ensure_future(ToolThreads(files).run(slow.wait)))
        waiting = asyncio.ensure_future(ToolThreads(files).run(lambda: "waited"))
        # Longer than the limit: the threads are busy, and none is stuck.
        assert not (await asyncio.wait({waiting}, timeout=4 * SHORT_S))[0]
        slow.open()
        assert await waiting == "waited"
        await asyncio.gather(*busy)


async def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_threads, "IDLE_S", SHORT_S)
    files = FileThreads("The directory")
    for _ in range(2):  # the second call starts a thread again
        thread = await files.run(threading.get_native_id)
        await until(lambda: not Path(f"/proc/self/task/{thread}").exists())  # noqa: B023 awaited in the loop


def test_a_stuck_thread_does_not_delay_the_exit() -> None:
    program = """
import asyncio, threading
from kedge.errors import DirectoryTimeout
from kedge.tools.file_threads import FileThreads

async def main():
    try:
        await FileThreads("The directory").run(threading.Event().wait, limit_s=0.05)
    except DirectoryTimeout as error:
        print(error)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "The directory does not answer; check the mount.\n"
