"""Long work in the SQLite store does not delay short work."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from kedge.core.records import Prompt
from kedge.errors import StoreUnavailable
from kedge.store.base import Write
from kedge.store.sqlite_threads import READ_THREADS_MAX, SHORT_WRITE_BYTES_MAX
from tests.store.samples import S, W, accepted, events, message, run, session, with_workspace
from tests.store.test_sqlite import opened, writer_held


@pytest.mark.found(
    "fault 7",
    "one thread read for all clients, so that a search or a long transcript delayed every other read; long reads now "
    "leave one reading thread free",
)
async def test_short_read_passes_long_reads(tmp_path: Path) -> None:
    loop, running, released = asyncio.get_running_loop(), asyncio.Semaphore(0), threading.Event()

    def hold(_: apsw.Connection) -> None:
        loop.call_soon_threadsafe(running.release)
        released.wait()

    async with opened(tmp_path) as store:
        await with_workspace(store)
        await store.append(Write(W, sessions=(session(),)))
        assert store._reader is not None
        held = [asyncio.ensure_future(store._reader.ask(hold, is_long=True)) for _ in range(READ_THREADS_MAX + 1)]
        try:
            for _ in range(READ_THREADS_MAX - 1):
                await running.acquire()
            # More than one: the last thread may serve the first before it could take a long read.
            for _ in range(10):
                assert await store.session(W, S) == session()
            assert not any(task.done() for task in held)
        finally:
            released.set()
            await asyncio.gather(*held)


@pytest.mark.found(
    "fault 7", "a small append waited for all the large ones before it; it now waits for one of them at most"
)
async def test_small_append_passes_large_ones(tmp_path: Path) -> None:
    order: list[str] = []

    async def append(name: str, write: Write) -> None:
        await store.append(write)
        order.append(name)

    async with opened(tmp_path) as store:
        await with_workspace(store, W, "w2")
        large = [Write(W, messages=(message(f"m{n}", "x" * (SHORT_WRITE_BYTES_MAX + 1)),)) for n in range(3)]
        async with writer_held(store):
            appends = [asyncio.ensure_future(append(f"large {n}", write)) for n, write in enumerate(large)]
            appends.append(asyncio.ensure_future(append("small", events(accepted(), workspace_id="w2"))))
            await asyncio.sleep(0)
        await asyncio.gather(*appends)
    assert order.index("small") <= 1, order
    assert [name for name in order if name != "small"] == ["large 0", "large 1", "large 2"]


@pytest.mark.found(
    "fault 5",
    "a move encoded the prompts of the whole queue, only to find them unchanged; the store encodes no prompt that is "
    "marked as unchanged",
)
async def test_prompt_marked_as_unchanged_is_not_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_workspace(store)
        await store.append(Write(W, runs=(run(prompt=Prompt("stored")),)))
        # Another text, by which a written prompt is recognised.
        moved = run(prompt=Prompt("other"), steps=1)
        await store.append(Write(W, runs=(moved,), unchanged_prompts=frozenset({"r1"})))
        assert await store.run(W, "r1") == replace(moved, prompt=Prompt("stored"))


async def test_failed_read_is_reported_while_another_reads(tmp_path: Path) -> None:
    """The error names the database, whose first connection may be in use by another thread."""
    loop, running, released = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def hold(db: apsw.Connection) -> None:
        db.create_scalar_function("hold", lambda *_: released.wait(), 0)
        loop.call_soon_threadsafe(running.set)
        db.execute("SELECT hold()").fetchall()

    async with opened(tmp_path) as store:
        assert store._reader is not None
        held = asyncio.ensure_future(store._reader.ask(hold))
        try:
            await running.wait()
            for _ in range(20):
                with pytest.raises(StoreUnavailable):
                    await store._reader.ask(lambda db: db.execute("SELECT nonsense"))
        finally:
            released.set()
            await held
