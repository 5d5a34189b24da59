"""The threads of tools: few for each Run, and no work that starts after its call has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kedge.tools.edit import EditTool
from kedge.tools.file_threads import TOOL_THREADS_MAX, FileThreads, checkpoint
from kedge.tools.ls import LsTool
from kedge.tools.search import GlobTool, GrepTool
from kedge.tools.tool_threads import RUN_THREADS_MAX, ToolThreads
from kedge.tools.view import ViewTool
from kedge.tools.write import WriteTool
from tests.tools.contexts import call, make_context


class Gate:
    """Holds threads until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self._opened = threading.Event()

    def wait(self) -> None:
        self.reached.release()
        self._opened.wait()

    def open(self) -> None:
        self._opened.set()


@contextmanager
def gate() -> Iterator[Gate]:
    """Opened at the end, whatever happens: a thread cannot be stopped."""
    closed = Gate()
    try:
        yield closed
    finally:
        closed.open()


async def test_one_run_cannot_take_all_threads() -> None:
    assert RUN_THREADS_MAX < TOOL_THREADS_MAX
    files = FileThreads("The directory")
    with gate() as closed:
        greedy = ToolThreads(files)
        waiting = [asyncio.ensure_future(greedy.run(closed.wait)) for _ in range(3 * TOOL_THREADS_MAX)]
        for _ in range(RUN_THREADS_MAX):
            await ToolThreads(files).run(closed.reached.acquire)
        assert await ToolThreads(files).run(lambda: "of another run") == "of another run"
        assert greedy.busy == RUN_THREADS_MAX
        assert not closed.reached.acquire(blocking=False)
        closed.open()
        await asyncio.gather(*waiting)
    assert greedy.busy == 0


async def test_work_abandoned_before_it_starts_never_runs() -> None:
    began: list[str] = []
    files = FileThreads("The directory")
    with gate() as closed:
        busy = [asyncio.ensure_future(ToolThreads(files).run(closed.wait)) for _ in range(TOOL_THREADS_MAX)]
        await asyncio.sleep(0)
        threads = ToolThreads(files)
        late = [asyncio.ensure_future(threads.run(began.append, "late")) for _ in range(RUN_THREADS_MAX)]
        await asyncio.sleep(0)
        for task in late:
            task.cancel()
        await asyncio.wait(late)
        await threads.idle()  # although all threads are taken
        # Nor does it keep the room of what its Run does next.
        after = asyncio.ensure_future(threads.run(began.append, "after"))
        closed.open()
        await asyncio.gather(after, *busy)
    assert began == ["after"]


async def test_cancelled_work_ends_at_its_next_checkpoint() -> None:
    passed: list[int] = []
    with gate() as closed:

        def work() -> None:
            closed.wait()
            checkpoint()
            passed.append(1)

        files = FileThreads("The directory")
        threads = ToolThreads(files)
        task = asyncio.ensure_future(threads.run(work))
        await ToolThreads(files).run(closed.reached.acquire)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert threads.busy == 1
        idle = asyncio.ensure_future(threads.idle())
        await asyncio.sleep(0)
        assert not idle.done()
        closed.open()
        await idle
    assert (passed, threads.busy) == ([], 0)


@pytest.mark.found(
    "attack 3",
    "edits that took minutes held the threads which all sessions, the store and the prompts shared; tools have threads "
    "of their own now, a few for each Run",
)
@pytest.mark.timeout(20)
async def test_file_tools_leave_the_default_executor_alone(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    with gate() as closed, ThreadPoolExecutor(1) as pool:
        try:
            asyncio.get_running_loop().set_default_executor(pool)
            taken = asyncio.get_running_loop().run_in_executor(None, closed.wait)
            await call(WriteTool(), context, path="a", content="one\n")
            await call(EditTool(), context, path="a", old_string="one", new_string="two")
            await call(ViewTool(), context, path="a")
            await call(LsTool(), context)
            await call(GlobTool(), context, pattern="*")
            output = await call(GrepTool(), context, pattern="tw.")
        finally:
            closed.open()
        await taken
    assert "two" in output.content
