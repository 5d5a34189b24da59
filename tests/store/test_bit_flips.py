"""G12: damage to the database or its WAL is detected or harmless. The store never returns a wrong answer."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import apsw
import pytest

from kedge.errors import StoreDamaged, WorkspaceNotFound
from kedge.store.base import Write
from kedge.store.sqlite import SqliteStore
from proof.figures import IS_LONG, proof, slices
from tests.store.damage import DAMAGES_EACH, PAGE_BYTES, answers, check_damage, check_damages, killed_store, swap
from tests.store.recording_disk import DATABASE, HEAD_FILE, WAL
from tests.store.samples import BASE, W, accepted, events, file_version, message, run, session, with_workspace
from tests.store.test_sqlite import append_together, opened
from tests.store.workload import memory_directory, read_files, write_files


@pytest.mark.proof
@pytest.mark.timeout(600 if IS_LONG else 200)
@pytest.mark.parametrize("numbers", slices(2_000, 200_000, DAMAGES_EACH), ids=lambda numbers: f"from {numbers.start}")
async def test_damage_is_detected_or_harmless(numbers: range) -> None:
    with proof("G12", "bit flips and other damage", "served") as figure:
        tally = await check_damages(await killed_store(numbers.start // DAMAGES_EACH), numbers)
        figure.count = tally.damages
        figure.notes = dict(tally.outcomes)
        assert tally.failures == [], tally.failures[0]
        assert tally.outcomes["detected at open"] > 0
        assert tally.outcomes["detected on read"] > 0


async def test_damage_is_served_without_the_head_file() -> None:
    """The proof detects failures: SQLite itself silently drops the end of a damaged WAL."""
    store_files = await killed_store(0)
    store_files.image[HEAD_FILE] = b""
    base = memory_directory()
    try:
        content = bytearray(store_files.image[WAL])
        content[len(content) // 2] ^= 1
        outcome, failure = await check_damage(base / "data", store_files, {**store_files.image, WAL: bytes(content)})
    finally:
        shutil.rmtree(base)
    assert (outcome, "a wrong answer" in failure) == ("wrong", True)


async def test_swapped_pages_never_yield_a_different_log() -> None:
    """Each page is valid, so only the hash chain of the log detects the swap. Records have none and may be wrong."""
    store_files, base = await killed_store(0), memory_directory()
    logs = {name: query for name, query in store_files.queries.items() if name.startswith("log of")}
    detected = 0
    try:
        for number in range(100):
            content = bytearray(store_files.image[DATABASE])
            swap(content, 0, PAGE_BYTES, Random(number))
            write_files(base / "data", {**store_files.image, DATABASE: bytes(content)})
            store = SqliteStore(base / "data")
            try:
                await store.open()
                for name, answer in (await answers(store, logs)).items():
                    # Not found: the index of the workspaces is an empty page of another index now.
                    is_error = isinstance(answer, StoreDamaged | WorkspaceNotFound)
                    assert answer == store_files.truth[name] or is_error, f"swap {number}: {answer}"
                    detected += is_error
            except StoreDamaged:
                detected += 1
            finally:
                await store.close()
    finally:
        shutil.rmtree(base)
    assert detected > 0


# --- Regressions -------- ---------------------------------------------------------------------------------------------


@pytest.mark.found(
    "bit flips in the headers",
    "one flipped bit in byte 20 of the database permanently disabled all page checksums; the byte is now checked "
    "against the checksum of the first page",
)
@pytest.mark.parametrize("bit", range(8))
async def test_flip_that_disables_checksums_is_detected(tmp_path: Path, bit: int) -> None:
    async with opened(tmp_path) as store:
        await with_workspace(store)
    content = bytearray((tmp_path / DATABASE).read_bytes())
    content[20] ^= 1 << bit
    (tmp_path / DATABASE).write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"kedge\.db is damaged"):
        await SqliteStore(tmp_path).open()
    assert (tmp_path / DATABASE).read_bytes() == content


@pytest.mark.found(
    "damage 52",
    "a truncated database file with a WAL was read as if padded with zeros, and long texts and files were served with "
    "them; a file that lacks pages which are not in the WAL either is now refused",
)
async def test_truncated_database_with_a_wal_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "first") as store:
        await with_workspace(store)
        await store.append(Write(W, files=(file_version(),), originals={"f1": b"x" * 50_000}))
    async with opened(tmp_path / "first") as store:
        await store.append(events(accepted()))
        image = read_files(tmp_path / "first")
    full = len(image[DATABASE])
    for size in (full, full - 1, full - PAGE_BYTES, full // 2):
        write_files(tmp_path / "cut", {**image, DATABASE: image[DATABASE][:size]})
        store = SqliteStore(tmp_path / "cut")
        if size == full:
            await store.open()
            await store.close()
            continue
        with pytest.raises(StoreDamaged, match=r"kedge\.db is damaged"):
            await store.open()


async def test_database_that_grew_only_in_its_wal_is_complete(tmp_path: Path) -> None:
    """Also with missing pages that were freed again, which are not needed."""
    async with opened(tmp_path / "first") as store:
        await with_workspace(store)
        await store.append(Write(W, files=(file_version(),), originals={"f1": b"x" * 500_000}, sessions=(session(),)))
        await store.append(Write(W, deleted_sessions=("s1",)))
        write_files(tmp_path / "killed", read_files(tmp_path / "first"))
    async with opened(tmp_path / "killed") as store:
        assert await store.sessions(W) == []


async def two_workspaces(directory: Path) -> None:
    """Create two workspaces with a message of many pages each, and damage the pages of the second."""
    async with opened(directory) as store:
        await with_workspace(store, W, "w2")
        for workspace_id in (W, "w2"):
            long = message(f"m-{workspace_id}", f"{workspace_id} says " * 2_000, f"s-{workspace_id}")
            records = {"sessions": (session(f"s-{workspace_id}", workspace_id),), "messages": (long,)}
            live = (run(f"r-{workspace_id}", f"s-{workspace_id}", workspace_id),)
            await store.append(
                events(accepted(), session_id=f"s-{workspace_id}", workspace_id=workspace_id, runs=live, **records)
            )
    content = bytearray((directory / DATABASE).read_bytes())
    content[content.rindex(b"w2 says")] ^= 4
    (directory / DATABASE).write_bytes(content)


async def test_damaged_workspace_is_named_and_others_are_served(tmp_path: Path) -> None:
    await two_workspaces(tmp_path)
    async with opened(tmp_path) as store:
        with pytest.raises(StoreDamaged, match=r"kedge\.db is damaged .*checksum.* found while reading session s-w2;"):
            await store.messages("s-w2", None, 10)
        with pytest.raises(StoreDamaged, match=r"found while reading workspace w2;"):
            await store.search("w2", "says", 10)
        intact = await store.message(W, "m-w1")
        assert intact is not None
        assert intact.text == "w1 says " * 2_000
        assert [len(await store.live_runs(workspace_id)) for workspace_id in (W, "w2")] == [1, 1]
        assert await store.append(events(accepted("next"))) == BASE + 2
        assert [await store.verify(workspace_id) for workspace_id in (W, "w2")] == [2, 1]


@pytest.mark.found(
    "damage in one workspace of two",
    "a Write that hit damage failed all others of its batch, also those of intact workspaces, and blamed their "
    "workspaces; each is now retried alone",
)
async def test_write_that_hits_damage_fails_alone_in_its_batch(tmp_path: Path) -> None:
    await two_workspaces(tmp_path)
    async with opened(tmp_path) as store:
        # Replacing the message frees its old pages, which reads the damaged one.
        broken = events(accepted("x"), workspace_id="w2", messages=(message("m-w2", "short", "s-w2"),))
        one, two, three = await append_together(store, [events(accepted("a")), broken, events(accepted("b"))])
        assert (one, three) == (BASE + 2, BASE + 3)
        assert isinstance(two, StoreDamaged)
        assert str(two).count("found while reading workspace w2;")
        assert await store.verify(W) == 3
    assert read_files(tmp_path).keys() >= {DATABASE}
    db = apsw.Connection(str(tmp_path / DATABASE), vfs="cksmvfs")
    assert db.execute("SELECT count(*) FROM log").fetchall() == [(4,)]
    db.close()
