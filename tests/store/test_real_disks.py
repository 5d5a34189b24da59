"""G7 on real disks: full, read-only, locked by another program; and migrations killed at each statement."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from kedge.errors import StoreUnavailable
from kedge.store.base import Write
from kedge.store.migrations import shipped, version_of
from kedge.store.sqlite import SqliteStore
from tests.store.samples import BASE, S, W, accepted, events, file_version, with_workspace
from tests.store.small_disks import mounted
from tests.store.test_sqlite import end, first_line, opened, python
from tests.store.test_sqlite_damage import fill as fill_store


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system of 1 MB."""
    with mounted(tmp_path / "disk", "size=1m,mode=0700") as path:
        yield path


def remount(path: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(path)], check=True)


def fill(path: Path) -> None:
    """Fill the disk completely."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


async def fill_with_writes(store: SqliteStore) -> int:
    """Append until the disk is full; return the number of acknowledged Writes."""
    count = 0

    async def append_forever() -> None:
        nonlocal count
        while True:
            version = file_version(f"f{count}")
            await store.append(events(accepted(f"r{count}"), files=(version,), originals={version.id: b"x" * 20_000}))
            count += 1

    with pytest.raises(StoreUnavailable, match="free some space"):
        await append_forever()
    assert count > 0, "the disk was full before anything was acknowledged"
    return count


async def test_full_disk_loses_no_acknowledged_write(small_disk: Path) -> None:
    data = small_disk / "data"
    (small_disk / "ballast").write_bytes(bytes(200_000))
    async with opened(data) as store:
        await with_workspace(store)
        count = await fill_with_writes(store)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="free some space"):
                await store.append(
                    events(accepted("more"), files=(file_version("more"),), originals={"more": b"x" * 90_000})
                )
        assert await store.verify(W) == count, "the store can still be read"
    fill(small_disk / "rest")
    # It opens on the full disk or raises a clean error.
    store = SqliteStore(data)
    try:
        await store.open()
        assert await store.verify(W) == count
    except StoreUnavailable:
        pass
    finally:
        await store.close()
    (small_disk / "rest").unlink()
    (small_disk / "ballast").unlink()
    async with opened(data) as store:
        assert await store.verify(W) == count
        assert await store.append(events(accepted("next"))) == BASE + count + 1


async def test_open_store_continues_when_there_is_space_again(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(300_000))
    async with opened(small_disk / "data") as store:
        await with_workspace(store)
        count = await fill_with_writes(store)
        (small_disk / "ballast").unlink()
        assert await store.append(events(accepted("next"))) == BASE + count + 1
        assert await store.verify(W) == count + 1


@pytest.mark.found(
    "a full disk",
    "on a disk without space for the pid in the lock file, opening the store raised a bare OSError and left the "
    "directory locked; the pid is now omitted",
)
async def test_new_store_on_a_full_disk_fails_cleanly_and_unlocked(small_disk: Path) -> None:
    (small_disk / "data").mkdir(mode=0o700)
    fill(small_disk / "rest")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="data"):
            await SqliteStore(small_disk / "data").open()
    (small_disk / "rest").unlink()
    async with opened(small_disk / "data") as store:
        await with_workspace(store)


async def test_read_only_disk_is_reported_and_loses_nothing(small_disk: Path) -> None:
    data = small_disk / "data"
    async with opened(data) as store:
        await with_workspace(store)
        await store.append(events(accepted("first")))
    remount(small_disk, "ro")
    with pytest.raises(StoreUnavailable, match="Read-only file system"):
        await SqliteStore(data).open()
    remount(small_disk, "rw")
    async with opened(data) as store:
        assert await store.append(events(accepted("next"))) == BASE + 2


HOLD_THE_LOCK = """
import sys, apsw
from kedge.store.sqlite_connect import has_page_checksums
has_page_checksums()
db = apsw.Connection(sys.argv[1], vfs="cksmvfs")
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


async def test_append_fails_while_another_program_holds_the_lock(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_workspace(store)
        other = python(HOLD_THE_LOCK, tmp_path / "kedge.db")
        try:
            assert first_line(other) == "held"
            with pytest.raises(StoreUnavailable, match="another program holds its lock"):
                await store.append(events(accepted()))
            assert await store.bounds(W) == (BASE, BASE), "readers are not blocked"
        finally:
            end(other)
        assert await store.append(events(accepted())) == BASE + 1


OPEN_AND_APPEND = """
import asyncio, sys
from pathlib import Path
from kedge.errors import KedgeError
from kedge.store.sqlite import SqliteStore
from tests.store.samples import accepted, events, with_workspace

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    try:
        await store.open()
        await with_workspace(store)
        print(await store.append(events(accepted())))
    except KedgeError as error:
        print(type(error).__name__, error.message)
    await store.close()

asyncio.run(main())
"""


@pytest.mark.found(
    "failing system calls",
    "on a file system without locks, opening the store raised a bare OSError; it now raises StoreUnavailable",
)
@pytest.mark.parametrize(
    ("call", "name", "message"),
    [
        ("flock", "kedge.lock", "StoreUnavailable cannot lock"),
        ("pwrite64", "kedge.lock", "1001"),
        ("pwrite64", "kedge.head", "StoreUnavailable cannot use"),
        ("fsync", "", "StoreUnavailable cannot use"),
        ("pread64", "kedge.db", "StoreUnavailable cannot use"),
    ],
)
def test_failed_system_call_outside_sqlite_is_a_clean_error(tmp_path: Path, call: str, name: str, message: str) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace, which makes system calls fail, is not installed")
    data = tmp_path / "data"
    wrap = [strace, "-f", "-o", "/dev/null", "-P", str(data / name), "-e", f"inject={call}:error=EIO:when=1"]
    if subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace may not trace here")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [*wrap, sys.executable, "-c", OPEN_AND_APPEND, str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert re.match(message, done.stdout), done.stdout
    again = subprocess.run(command[len(wrap) :], capture_output=True, text=True, check=True, env=environment)
    assert re.match("100[12]$", again.stdout), again.stdout


# --- Migrations ------------------------------------------------------------------------------------------------------

#: For each statement of a migration, kills a process just before it. Prints the number of statements.
DIE_AT_EACH_STATEMENT = """
import os, shutil, signal, sys
from pathlib import Path
import apsw
from kedge.store.migrations import Migration, migrate, shipped
from kedge.store.sqlite_connect import has_page_checksums
assert has_page_checksums()
first, place = Path(sys.argv[1]), Path(sys.argv[2])
for number in range(1000):
    shutil.copytree(first, place / str(number))
    pid = os.fork()
    if pid == 0:
        db = apsw.Connection(str(place / str(number) / "kedge.db"), vfs="cksmvfs")
        db.pragma("journal_mode", "wal")
        left = [number]
        def trace(*_):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return True
        db.exec_trace = trace
        sql = "CREATE TABLE a (b);" + "INSERT INTO a VALUES (1);" * 5 + "DELETE FROM runs; DROP TABLE asks"
        migrate(db, [*shipped(), Migration(len(shipped()) + 1, "next", sql)])
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
        break
print(number)
"""


async def test_kill_at_any_statement_rolls_back_a_migration(tmp_path: Path) -> None:
    await fill_store(tmp_path / "first")
    (tmp_path / "killed").mkdir()
    process = python(DIE_AT_EACH_STATEMENT, tmp_path / "first", tmp_path / "killed")
    output, _ = process.communicate()
    count = int(output)
    assert count > 8
    for number in range(count + 1):
        directory = tmp_path / "killed" / str(number)
        db = apsw.Connection(str(directory / "kedge.db"), vfs="cksmvfs")
        assert version_of(db) == len(shipped()) + (number == count)
        db.close()
    for number in range(count):
        async with opened(tmp_path / "killed" / str(number)) as store:
            assert await store.verify(W) == 30
            assert (len(await store.runs(S, 100)), len(await store.asks(W))) == (20, 1)
            assert await store.append(Write(W, files=(file_version("f2"),))) == BASE + 30
