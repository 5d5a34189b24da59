"""Damage is detected and never served; migrations are atomic."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path
from typing import Any

import apsw
import pytest

from kedge.errors import StoreDamaged, StoreError
from kedge.store.base import Write
from kedge.store.migrations import Migration, migrate, shipped, version_of
from kedge.store.sqlite import SqliteStore
from kedge.store.sqlite_connect import has_page_checksums
from tests.store.samples import (
    BASE,
    S,
    W,
    accepted,
    ask,
    ended,
    events,
    file_version,
    grant,
    lane,
    message,
    run,
    session,
    tail,
    with_workspace,
)
from tests.store.test_sqlite import opened, python


async def fill(directory: Path, runs: int = 20) -> None:
    async with opened(directory) as store:
        await with_workspace(store)
        await store.append(Write(W, sessions=(session(),), messages=(message(),), tails=(tail("!"),)))
        await store.append(Write(W, asks=(ask(),), grants=(grant(),)))
        await store.append(Write(W, files=(file_version(),), originals={"f1": b"old " * 3_000}))
        for i in range(runs):
            state = "ended" if i % 2 else "queued"
            added = (accepted(f"r{i}", i),) if state == "queued" else (accepted(f"r{i}", i), ended(f"r{i}"))
            await store.append(
                events(*added, lane=lane(i + 1, i), runs=(run(f"r{i}", seq=i, state=state),), durable=False)
            )


async def observed(store: SqliteStore) -> dict[str, Any]:
    await store.verify(W)
    return {
        "log": await store.read(W, 0, 1_000),
        "workspaces": await store.workspaces(),
        "sessions": await store.sessions(W),
        "lane": await store.lane(S),
        "runs": await store.runs(S, 100),
        "messages": await store.messages(S, None, 100),
        "search": await store.search(W, "hel", 10),
        "asks": await store.asks(W),
        "grants": await store.grants(W),
        "files": await store.file_versions(W, S, None),
        "content": await store.original(W, "f1"),
        **{f"r{i}": await store.run(W, f"r{i}") for i in range(20)},
    }


# --- The log's chain -------------------------------------------------------------------------------------------------

#: Changes by another program, with every page still well-formed.
CHANGES = {
    "an entry has another content": "UPDATE log SET payload = replace(payload, 'r4', 'r5') WHERE position = 1007",
    "an entry has another session": "UPDATE log SET session_id = 's2' WHERE position = 1007",
    "an entry has another Run": "UPDATE log SET run_id = 'r5' WHERE position = 1007",
    "an entry is missing": "DELETE FROM log WHERE position = 1007",
    "an entry is of another log": "UPDATE log SET hash = zeroblob(32) WHERE position = 1007",
}


@pytest.mark.parametrize("change", CHANGES)
async def test_changed_log_is_refused_by_read_and_verify(tmp_path: Path, change: str) -> None:
    await fill(tmp_path)
    db = apsw.Connection(str(tmp_path / "kedge.db"), vfs="cksmvfs")
    db.execute(CHANGES[change].replace("replace(payload, 'r4', 'r5')", "CAST(replace(payload, 'r4', 'r5') AS BLOB)"))
    assert db.changes() == 1
    db.close()
    async with opened(tmp_path) as store:
        assert len(await store.read(W, 0, 6)) == 6, "entries before the damage can still be read"
        for call in (store.read(W, 0, 100), store.read(W, BASE + 6, 1), store.verify(W)):
            with pytest.raises(StoreDamaged, match=f"workspace {W} is damaged at position 1007"):
                await call


@pytest.mark.parametrize(
    ("change", "position"),
    [
        ("DELETE FROM log WHERE position = (SELECT max(position) FROM log)", 1030),
        ("UPDATE workspaces SET head_hash = floor_hash", 1030),
        ("UPDATE workspaces SET floor_hash = head_hash", 1001),
    ],
)
async def test_both_ends_of_the_log_are_checked(tmp_path: Path, change: str, position: int) -> None:
    await fill(tmp_path)
    db = apsw.Connection(str(tmp_path / "kedge.db"), vfs="cksmvfs")
    db.execute(change)
    db.close()
    async with opened(tmp_path) as store:
        for call in (store.read(W, 0, 100), store.verify(W)):
            with pytest.raises(StoreDamaged, match=f"{position}"):
                await call


async def test_file_version_without_its_content_is_refused(tmp_path: Path) -> None:
    """If it counted as a file that did not exist, undo would remove the file."""
    await fill(tmp_path)
    db = apsw.Connection(str(tmp_path / "kedge.db"), vfs="cksmvfs")
    db.execute("DELETE FROM file_contents")
    db.close()
    async with opened(tmp_path) as store:
        with pytest.raises(StoreDamaged, match="file version f1 of workspace w1 has no content"):
            await store.original(W, "f1")


# --- Bits ------------------------------------------------------------------------------------------------------------


async def test_flipped_bit_in_an_entry_is_detected(tmp_path: Path) -> None:
    await fill(tmp_path)
    path = tmp_path / "kedge.db"
    content = bytearray(path.read_bytes())
    at = content.index(b'{"type":"RunAccepted","data":{"run_id":"r3"') + 46
    content[at] ^= 4
    path.write_bytes(content)
    async with opened(tmp_path) as store:
        for call in (store.read(W, 0, 100), store.verify(W)):
            with pytest.raises(StoreDamaged, match="restore the data directory"):
                await call


async def check_flips(base: Path, name: str, rng: random.Random, expected: dict[str, Any]) -> None:
    """Flip one bit of this file of `base / "good"`, several times: the store returns correct data or an error."""
    size = (base / "good" / name).stat().st_size
    detected = 0
    for number in range(25):
        directory = base / str(number)
        shutil.copytree(base / "good", directory)
        with (directory / name).open("r+b") as file:
            file.seek(rng.randrange(size))
            (byte,) = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))
        store = SqliteStore(directory)
        try:
            await store.open()
            assert await observed(store) == expected
        except StoreDamaged:
            detected += 1
        finally:
            await store.close()
        shutil.rmtree(directory)
    assert detected > 0


@pytest.mark.parametrize("seed", range(6))
async def test_flipped_bits_in_the_database_are_detected_or_harmless(tmp_path: Path, seed: int) -> None:
    await fill(tmp_path / "good")
    async with opened(tmp_path / "good") as store:
        expected = await observed(store)
    await check_flips(tmp_path, "kedge.db", random.Random(seed), expected)


async def crashed(directory: Path, copy: Path) -> dict[str, Any]:
    """Leave the files of a killed store in `copy`: an old database and a WAL with the rest. Return its data."""
    await fill(directory, 10)
    async with opened(directory) as store:
        for i in range(10, 20):
            await store.append(events(accepted(f"r{i}", i), lane=lane(i + 1, i), runs=(run(f"r{i}", seq=i),)))
        expected = await observed(store)
        shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*-shm"))
    return expected


@pytest.mark.parametrize("seed", range(6))
async def test_flipped_bits_in_the_wal_are_detected_or_harmless(tmp_path: Path, seed: int) -> None:
    """SQLite silently drops the frames after a damaged one."""
    expected = await crashed(tmp_path / "first", tmp_path / "good")
    await check_flips(tmp_path, "kedge.db-wal", random.Random(seed), expected)


async def test_crash_alone_is_not_reported_as_damage(tmp_path: Path) -> None:
    expected = await crashed(tmp_path / "first", tmp_path / "good")
    async with opened(tmp_path / "good") as store:
        assert await observed(store) == expected


async def test_database_without_its_wal_is_refused_until_overridden(tmp_path: Path) -> None:
    await crashed(tmp_path / "first", tmp_path / "good")
    (tmp_path / "good" / "kedge.db-wal").unlink()
    with pytest.raises(StoreDamaged, match=r"acknowledged transactions are lost.*remove .*kedge\.head"):
        await SqliteStore(tmp_path / "good").open()
    (tmp_path / "good" / "kedge.head").unlink()
    async with opened(tmp_path / "good") as store:
        assert await store.verify(W) == 15


@pytest.mark.parametrize(("durable", "refused"), [(True, True), (False, False)])
async def test_power_cut_may_lose_writes_that_were_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, refused: bool
) -> None:
    await fill(tmp_path / "first")
    async with opened(tmp_path / "first") as store:
        shutil.copytree(tmp_path / "first", tmp_path / "cut", ignore=shutil.ignore_patterns("*-shm", "*-wal"))
        await store.append(events(accepted("lost"), durable=durable))
        shutil.copy(tmp_path / "first" / "kedge.head", tmp_path / "cut" / "kedge.head")
    monkeypatch.setattr("kedge.store.head_file._boot_id", lambda: b"another boot".ljust(36, b"\0"))
    store = SqliteStore(tmp_path / "cut")
    if refused:
        with pytest.raises(StoreDamaged, match="acknowledged transactions are lost"):
            await store.open()
    else:
        await store.open()
        assert await store.verify(W) == 30
        await store.close()


@pytest.mark.parametrize("content", [b"not a database " * 1_000, b"SQLite format 3\0" + b"\xff" * 8_000])
async def test_file_that_is_not_a_database_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kedge.db").write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"kedge\.db is damaged"):
        await SqliteStore(tmp_path).open()
    assert (tmp_path / "kedge.db").read_bytes() == content


async def test_checksum_vfs_is_not_the_default_of_the_process() -> None:
    assert has_page_checksums()
    assert apsw.vfs_names()[0] != "cksmvfs"


async def test_database_without_page_checksums_is_used_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.store.sqlite_connect.has_page_checksums", lambda: False)
    await fill(tmp_path)
    assert (tmp_path / "kedge.db").read_bytes()[20] == 0
    monkeypatch.undo()
    async with opened(tmp_path) as store:
        assert await store.verify(W) == 30
        assert await store.append(events(accepted("new"))) == BASE + 31


async def test_database_with_page_checksums_requires_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(tmp_path)
    monkeypatch.setattr("kedge.store.sqlite_connect.has_page_checksums", lambda: False)
    with pytest.raises(StoreError, match="install the apsw wheel"):
        await SqliteStore(tmp_path).open()


# --- Migrations ------------------------------------------------------------------------------------------------------

TWO = [Migration(1, "one", "CREATE TABLE one (a); CREATE TABLE more (a)"), Migration(2, "two", "CREATE TABLE two (a)")]


def tables(db: apsw.Connection) -> list[str]:
    return [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema ORDER BY name")]


def test_new_database_gets_every_migration() -> None:
    db = apsw.Connection(":memory:")
    assert migrate(db, TWO) == 2
    assert tables(db) == ["more", "one", "two"]
    assert version_of(db) == 2
    assert migrate(db, TWO) == 0


def test_older_database_gets_missing_migrations() -> None:
    db = apsw.Connection(":memory:")
    migrate(db, TWO[:1])
    db.execute("INSERT INTO one VALUES (5)")
    assert migrate(db, TWO) == 1
    assert list(db.execute("SELECT a FROM one")) == [(5,)]


def test_failed_migration_leaves_the_old_version() -> None:
    db = apsw.Connection(":memory:")
    migrate(db, TWO[:1])
    with pytest.raises(apsw.SQLError):
        migrate(db, [*TWO, Migration(3, "bad", "CREATE TABLE three (a); CREATE TABLE one (a)")])
    assert tables(db) == ["more", "one"]
    assert version_of(db) == 1


def test_shipped_migrations_are_numbered_without_gaps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert [migration.number for migration in shipped()] == list(range(1, len(shipped()) + 1))
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "0002_late.sql").write_text("SELECT 1")
    monkeypatch.setattr("kedge.store.migrations.resources.files", lambda _: tmp_path)
    with pytest.raises(StoreError, match="incomplete"):
        shipped.__wrapped__()  # bypasses the cache


async def test_database_of_a_newer_kedge_is_refused_unchanged(tmp_path: Path) -> None:
    await fill(tmp_path)
    db = apsw.Connection(str(tmp_path / "kedge.db"), vfs="cksmvfs")
    db.pragma("user_version", 99)
    db.close()
    before = (tmp_path / "kedge.db").read_bytes()
    with pytest.raises(StoreError, match=f"newer kedge .schema 99, supported: {len(shipped())}."):
        await SqliteStore(tmp_path).open()
    assert (tmp_path / "kedge.db").read_bytes() == before


async def test_database_of_another_program_is_refused(tmp_path: Path) -> None:
    db = apsw.Connection(str(tmp_path / "kedge.db"))
    db.execute("CREATE TABLE theirs (a)")
    db.close()
    with pytest.raises(StoreError, match="another program"):
        await SqliteStore(tmp_path).open()


MIGRATE_AND_DIE = """
import os, signal, sys, apsw
from kedge.store.migrations import Migration, migrate, shipped
db = apsw.Connection(sys.argv[1])
db.pragma("journal_mode", "wal")
db.create_scalar_function("die", lambda: os.kill(os.getpid(), signal.SIGKILL))
last = Migration(len(shipped()) + 1, "deadly", "CREATE TABLE last (a); INSERT INTO last VALUES (1); SELECT die()")
migrate(db, [*shipped(), last])
"""


async def test_killed_migration_is_rolled_back(tmp_path: Path) -> None:
    process = python(MIGRATE_AND_DIE, tmp_path / "kedge.db")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    db = apsw.Connection(str(tmp_path / "kedge.db"))
    assert version_of(db) == 0
    assert tables(db) == []
    db.close()
    await fill(tmp_path)
    async with opened(tmp_path) as store:
        assert await store.verify(W) == 30
