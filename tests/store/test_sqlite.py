"""Properties of the SQLite store: its directory, lock, group commit, and behaviour on disk faults and kills."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from kedge.core.records import Prompt
from kedge.errors import StoreError, StoreLocked, StoreUnavailable, VersionConflict
from kedge.store.base import Write
from kedge.store.data_directory import DataDirectory
from kedge.store.sqlite import SqliteStore
from kedge.store.sqlite_threads import BATCH_WRITES_MAX, PENDING_REQUESTS_MAX
from tests.store.counting_disk import CountingDisk
from tests.store.samples import (
    BASE,
    S,
    W,
    accepted,
    ask,
    events,
    file_version,
    grant,
    lane,
    message,
    reclaim_all,
    run,
    session,
    tail,
    with_workspace,
)


@asynccontextmanager
async def opened(directory: Path, vfs: str | None = None) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(directory, vfs=vfs)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def writer_held(store: SqliteStore) -> AsyncIterator[None]:
    """Block the writer thread, so that requests made meanwhile form one batch."""
    assert store._writer is not None
    loop, held, released = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def hold(_: apsw.Connection) -> None:
        loop.call_soon_threadsafe(held.set)
        released.wait()

    holding = asyncio.ensure_future(store._writer.ask(hold))
    await held.wait()
    try:
        yield
    finally:
        released.set()
        await holding


async def append_together(store: SqliteStore, writes: list[Write]) -> list[Any]:
    """Append in one batch; return the results, errors included."""
    async with writer_held(store):
        appends = [asyncio.ensure_future(store.append(write)) for write in writes]
        await asyncio.sleep(0)
    return await asyncio.gather(*appends, return_exceptions=True)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- The directory ---------------------------------------------------------------------------------------------------


async def test_only_the_owner_can_read_the_stored_data(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "data"
    before = os.umask(0)
    try:
        async with opened(directory) as store:
            await with_workspace(store)
            assert mode(directory) == 0o700
            files = {path.name: mode(path) for path in directory.iterdir()}
            assert files == dict.fromkeys(
                ("kedge.db", "kedge.db-wal", "kedge.db-shm", "kedge.head", "kedge.lock"), 0o600
            )
    finally:
        os.umask(before)


async def test_files_readable_by_others_are_made_private(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    (tmp_path / "kedge.db").chmod(0o644)
    async with opened(tmp_path):
        assert mode(tmp_path / "kedge.db") == 0o600


async def test_directory_writable_by_others_is_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    with pytest.raises(StoreError, match="chmod 700"):
        await SqliteStore(tmp_path).open()
    assert not (tmp_path / "kedge.db").exists()


async def test_error_names_a_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable, match="file"):
        await SqliteStore(tmp_path / "file" / "data").open()


OPEN_AND_WAIT = """
import asyncio, sys
from pathlib import Path
from kedge.errors import StoreLocked
from kedge.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    try:
        await store.open()
    except StoreLocked as error:
        print(error.message, flush=True)
    else:
        print("open", flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


async def test_second_process_is_refused_with_pid_of_the_first(tmp_path: Path) -> None:
    async with opened(tmp_path):
        second = python(OPEN_AND_WAIT, tmp_path)
        message = first_line(second)
        end(second)
        assert f"in use by process {os.getpid()}" in message
        assert str(tmp_path) in message
        assert "stop it" in message


async def test_lock_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    first = python(OPEN_AND_WAIT, tmp_path)
    try:
        assert first_line(first) == "open"
        with pytest.raises(StoreLocked, match=f"process {first.pid}"):
            await SqliteStore(tmp_path).open()
    finally:
        end(first)
    async with opened(tmp_path) as store:
        with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
            await SqliteStore(tmp_path).open()
        assert await store.workspaces() == []


#: Claims the directory, forks a child that inherits the lock, and exits; the child runs until its stdin closes.
LEAVE_AN_ORPHAN = """
import os, sys
from pathlib import Path
from kedge.store.data_directory import DataDirectory

DataDirectory(Path(sys.argv[1])).claim()
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        pass
    print("alone", flush=True)
    sys.stdin.read()
os._exit(0)
"""


@pytest.mark.found(
    "kills of a real server, seed 307",
    "A server that was killed while it started a process left that process with a copy of its lock for a moment. The "
    "next server, started at once, reported that the directory was in use by the dead one. It now waits for a moment.",
)
async def test_claim_waits_for_a_lock_inherited_from_a_dead_process(tmp_path: Path) -> None:
    first, directory = python(LEAVE_AN_ORPHAN, tmp_path), DataDirectory(tmp_path)
    try:
        assert first_line(first) == "alone"
        first.wait()
        claiming = asyncio.create_task(asyncio.to_thread(directory.claim))
        done, _ = await asyncio.wait({claiming}, timeout=0.2)
        assert not done, "it was refused, or took a lock that is held"
    finally:
        await asyncio.to_thread(first.communicate)
    await claiming
    directory.release()


async def test_failed_open_releases_the_lock(tmp_path: Path) -> None:
    (tmp_path / "kedge.db").write_bytes(b"this is not a database, but it is long enough to be read" * 100)
    with pytest.raises(StoreError, match="is damaged"):
        await SqliteStore(tmp_path).open()
    (tmp_path / "kedge.db").unlink()
    async with opened(tmp_path) as store:
        assert await store.workspaces() == []


# --- Group commit and durability -------------------------------------------------------------------------------------


async def test_concurrent_writes_share_a_commit(tmp_path: Path) -> None:
    disk = CountingDisk()
    async with opened(tmp_path, disk.name) as store:
        await with_workspace(store)
        commits, syncs = store.commits, disk.syncs["wal"]
        positions = await append_together(store, [events(accepted(f"r{i}")) for i in range(200)])
        assert positions == list(range(BASE + 1, BASE + 201))
        assert store.commits - commits == 2, "one that blocked the writer, and one for all"
        assert disk.syncs["wal"] - syncs == 1
        assert await store.verify(W) == 200


async def test_commit_holds_a_bounded_number_of_writes(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_workspace(store)
        commits = store.commits
        await append_together(store, [events(accepted(f"r{i}")) for i in range(2 * BATCH_WRITES_MAX + 1)])
        assert store.commits - commits == 1 + 3


async def test_only_durable_writes_wait_for_the_disk(tmp_path: Path) -> None:
    disk = CountingDisk()
    async with opened(tmp_path, disk.name) as store:
        await with_workspace(store)
        for durable in (False, True, False, False, True, True, False):
            syncs, counted = disk.syncs["wal"], store.durable_commits
            await store.append(events(accepted(), durable=durable))
            assert disk.syncs["wal"] - syncs == (1 if durable else 0)
            assert store.durable_commits - counted == (1 if durable else 0)


async def test_batch_with_one_durable_write_waits_for_the_disk(tmp_path: Path) -> None:
    disk = CountingDisk()
    async with opened(tmp_path, disk.name) as store:
        await with_workspace(store)
        syncs = disk.syncs["wal"]
        await append_together(store, [events(accepted(), durable=i == 7) for i in range(20)])
        assert disk.syncs["wal"] == syncs + 1


async def test_close_moves_everything_into_the_database_file(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_workspace(store)
        await store.append(events(accepted(), durable=False))
    assert sorted(os.listdir(tmp_path)) == ["kedge.db", "kedge.head", "kedge.lock"]
    (tmp_path / "kedge.db").rename(tmp_path / "copy.db")
    assert list(apsw.Connection(str(tmp_path / "copy.db")).execute("SELECT kind FROM log")) == [("RunAccepted",)]


async def test_requests_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_workspace(store)
        results = await append_together(store, [Write(W)] * (PENDING_REQUESTS_MAX + 50))
        assert results[:PENDING_REQUESTS_MAX] == [BASE] * PENDING_REQUESTS_MAX
        assert [type(result) for result in results[PENDING_REQUESTS_MAX:]] == [StoreUnavailable] * 50


# --- Cost ------------------------------------------------------------------------------------------------------------


async def bytes_for_tails(directory: Path, count: int) -> int:
    disk = CountingDisk()
    async with opened(directory, disk.name) as store:
        await with_workspace(store)
        await store.append(Write(W, messages=(message(text=""),)))
        before = disk.bytes_written["wal"]
        for _ in range(count // 50):
            tails = tuple(tail("some words of a delta ") for _ in range(50))
            await store.append(Write(W, tails=tails, durable=False))
        assert store._writer is not None
        written = disk.bytes_written["wal"] - before
        stored = store._writer.db.pragma("page_count")
    assert isinstance(stored, int)
    return written + stored * 4096


async def test_cost_of_a_streamed_message_is_linear(tmp_path: Path) -> None:
    few = await bytes_for_tails(tmp_path / "few", 2_000)
    many = await bytes_for_tails(tmp_path / "many", 8_000)
    assert many / few < 5, "four times the tails must cost about four times the bytes"


async def test_long_prompt_is_not_rewritten_with_each_step(tmp_path: Path) -> None:
    disk = CountingDisk()
    long = Prompt("x" * 1_000_000)
    async with opened(tmp_path, disk.name) as store:
        await with_workspace(store)
        await store.append(Write(W, runs=(run(prompt=long),)))
        before = disk.bytes_written["wal"]
        for step in range(20):
            await store.append(Write(W, runs=(run(prompt=long, steps=step),), durable=False))
        assert disk.bytes_written["wal"] - before < 1_000_000
        assert await store.run(W, "r1") == run(prompt=long, steps=19)


async def test_undo_does_not_rewrite_the_content_of_the_file(tmp_path: Path) -> None:
    disk = CountingDisk()
    version, content = file_version(), b"x" * 1_000_000
    async with opened(tmp_path, disk.name) as store:
        await with_workspace(store)
        await store.append(Write(W, files=(version,), originals={version.id: content}))
        before = disk.bytes_written["wal"]
        await store.append(Write(W, files=(replace(version, undone=True),)))
        assert disk.bytes_written["wal"] - before < 100_000
        assert await store.original(W, version.id) == content
        assert await store.file_versions(W, S, "r1") == [replace(version, undone=True)]


@pytest.mark.found(
    "fault 7",
    "while a long session was removed, some commits merged the whole search index, and all writes waited up to a "
    "second; deleted rows start no merge",
)
async def test_removal_does_not_merge_the_search_index(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_workspace(store)
        for start in range(0, 1_000, 20):
            # The text of each message has other words than its neighbours.
            texts = {f"m{n}": " ".join(f"w{n * k % 9_973}" for k in range(1, 300)) for n in range(start, start + 20)}
            await store.append(Write(W, messages=tuple(message(key, text) for key, text in texts.items())))
        await store.append(Write(W, sessions=(session(),)))
        await store.append(Write(W, deleted_sessions=(S,)))
        pages = [await pages_of_index(store)]
        while await store.reclaim():
            pages.append(await pages_of_index(store))
        # A merge replaces the pages that it reads.
        replaced = max(before - after for before, after in pairwise(pages))
        assert replaced < pages[0] / 4, pages


async def pages_of_index(store: SqliteStore) -> int:
    writer, _ = store.threads()
    ((pages,),) = await writer.ask(lambda db: db.execute("SELECT count(*) FROM message_tokens_data").fetchall())
    return int(str(pages))


async def test_deleted_session_leaves_no_rows(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_workspace(store)
        assert store._writer is not None
        db = store._writer.db
        tables = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        tables = [name for name in tables if name not in ("log", "transactions", "message_tokens")]
        # The index keeps deleted tokens until it merges its segments; its list of messages is exact.
        tables = [name for name in tables if not name.startswith("message_tokens_") or name.endswith("_docsize")]

        def rows() -> dict[str, int]:
            return {name: len(db.execute(f"SELECT * FROM {name}").fetchall()) for name in tables}

        before = rows()
        records = Write(W, runs=(run(),), messages=(message(),), tails=(tail("x"),), sessions=(session(),))
        records = replace(records, lane=lane(1, 0), asks=(ask(),), grants=(grant(),), files=(file_version(),))
        await store.append(replace(records, originals={"f1": b"old"}))
        # Two rows for the Run (with its prompt), two for the file version (with its content).
        assert sum(rows().values()) == sum(before.values()) + 11
        await store.append(Write(W, deleted_sessions=("s1",)))
        await reclaim_all(store)
        assert rows() == before


# --- Faults ----------------------------------------------------------------------------------------------------------


async def test_full_disk_is_reported_until_there_is_space_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_workspace(store)
        await store.append(events(accepted("first")))
        assert store._writer is not None
        db = store._writer.db
        db.pragma("max_page_count", db.pragma("page_count"))
        large = Write(W, (("s1", accepted("r1")),), messages=(message(text="x" * 200_000),))
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="free some space"):
                await store.append(large)
        assert await store.bounds(W) == (BASE, BASE + 1)
        db.pragma("max_page_count", 1_000_000)
        assert await store.append(large) == BASE + 2
        assert await store.verify(W) == 2


@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError])
async def test_failing_disk_fails_the_batch_and_later_writes_work(tmp_path: Path, error: type[apsw.Error]) -> None:
    disk = CountingDisk()
    async with opened(tmp_path, disk.name) as store:
        await with_workspace(store)
        await store.append(events(accepted("first"), lane=lane(1, 0)))
        disk.failing = error
        refused = events(accepted("x"), lane=lane(9, 8))
        results = await append_together(store, [events(accepted("r1")), refused, events(accepted("r2"), durable=False)])
        assert [type(result) for result in results] == [StoreUnavailable] * 3
        assert all("the database" in str(result) and "disk" in str(result) for result in results)
        disk.failing = None
        assert await store.bounds(W) == (BASE, BASE + 1)
        with pytest.raises(VersionConflict):
            await store.append(refused)
        assert await store.append(events(accepted("r1"))) == BASE + 2
        assert await store.verify(W) == 2


async def test_error_names_another_program_that_holds_the_database(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_workspace(store)
        assert store._writer is not None
        store._writer.db.set_busy_timeout(0)
        shell = apsw.Connection(str(tmp_path / "kedge.db"), vfs="cksmvfs")
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="another program"):
            await store.append(events(accepted()))
        shell.execute("ROLLBACK")
        shell.close()
        assert await store.append(events(accepted())) == BASE + 1


APPEND_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from kedge.store.sqlite import SqliteStore
from tests.store.samples import W, accepted, events, message, tail, with_workspace
from kedge.store.base import Write

async def caller(store, name):
    await store.append(Write(W, messages=(message(name, ""),)))
    for number in range(10**9):
        run_id = f"{name}-{number}"
        write = events(accepted(run_id), tails=(tail("some more text ", name),), durable=number % 3 == 0)
        position = await store.append(write)
        print(position, run_id, flush=True)

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    await with_workspace(store)
    await asyncio.gather(*(caller(store, f"c{i}") for i in range(5)))

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 40, 700])
async def test_acknowledged_writes_survive_kill_9(tmp_path: Path, lines: int) -> None:
    process = python(APPEND_FOR_EVER, tmp_path)
    assert process.stdout is not None
    lines_read = [process.stdout.readline() for _ in range(lines)]
    process.send_signal(signal.SIGKILL)
    # With the same reader: its buffer may end in the middle of a line.
    lines_read += process.stdout.readlines()
    process.communicate()
    acknowledged = dict(line.split() for line in lines_read if line.endswith("\n"))
    assert len(acknowledged) >= lines
    async with opened(tmp_path) as store:
        floor, head = await store.bounds(W)
        assert await store.verify(W) == head - floor
        log = {str(entry.position): entry.event for entry in await store.read(W, 0, head)}
        assert {position: log[position] for position in acknowledged} == {
            position: accepted(run_id, 1) for position, run_id in acknowledged.items()
        }
        for caller in range(5):
            streamed = await store.message(W, f"c{caller}")
            assert streamed is not None
            assert len(streamed.text) == 15 * len([e for e in log.values() if str(e).find(f"'c{caller}-") > 0])
        assert await store.append(events(accepted("next"))) == head + 1
