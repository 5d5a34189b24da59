"""G12: damage in the database or its WAL is seen, or does no harm. A wrong answer is never given."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import apsw
import pytest

from kedge.errors import StoreDamaged
from kedge.store.base import Write
from kedge.store.sqlite import SqliteStore
from proof.figures import IS_LONG, proof, slices
from tests.store.flips import DAMAGES_EACH, PAGE_BYTES, answers, damage_all, meet, swap, victim
from tests.store.power import DATABASE, NOTE, WAL
from tests.store.samples import BASE, W, accepted, events, file_version, message, run, session, with_workspace
from tests.store.story import held, memory_directory, put
from tests.store.test_sqlite import append_together, opened


@pytest.mark.proof
@pytest.mark.timeout(600 if IS_LONG else 200)
@pytest.mark.parametrize("numbers", slices(2_000, 200_000, DAMAGES_EACH), ids=lambda numbers: f"from {numbers.start}")
async def test_damage_is_seen_or_harmless(numbers: range) -> None:
    with proof("G12", "bit flips and other damage", "served") as figure:
        tally = await damage_all(await victim(numbers.start // DAMAGES_EACH), numbers)
        figure.count = tally.damages
        figure.notes = dict(tally.outcomes)
        assert tally.wrong == [], tally.wrong[0]
        assert tally.outcomes["seen at the start"] > 0
        assert tally.outcomes["seen when it was read"] > 0


async def test_the_damage_would_be_served_without_the_note_beside_the_database() -> None:
    """What the proof is worth: SQLite itself drops the end of a damaged WAL without a word."""
    struck = await victim(0)
    struck.image[NOTE] = b""
    place = memory_directory()
    try:
        content = bytearray(struck.image[WAL])
        content[len(content) // 2] ^= 1
        outcome, wrong = await meet(place / "data", struck, {**struck.image, WAL: bytes(content)})
    finally:
        shutil.rmtree(place)
    assert (outcome, "a wrong answer" in wrong) == ("wrong", True)


async def test_pages_that_swapped_places_never_tell_another_history() -> None:
    """Each page is whole, so only the log's chain can tell. (Of records, wrong ones may be given: none is chained.)"""
    struck, place = await victim(0), memory_directory()
    logs = {name: look for name, look in struck.looks.items() if name.startswith("log of")}
    seen = 0
    try:
        for number in range(100):
            content = bytearray(struck.image[DATABASE])
            swap(content, 0, PAGE_BYTES, Random(number))
            put(place / "data", {**struck.image, DATABASE: bytes(content)})
            store = SqliteStore(place / "data")
            try:
                await store.open()
                for name, answer in (await answers(store, logs)).items():
                    assert answer == struck.truth[name] or isinstance(answer, StoreDamaged), f"swap {number}: {answer}"
                    seen += isinstance(answer, StoreDamaged)
            except StoreDamaged:
                seen += 1
            finally:
                await store.close()
    finally:
        shutil.rmtree(place)
    assert seen > 0


# --- Found by the damage ---------------------------------------------------------------------------------------------


@pytest.mark.found(
    "bit flips in the headers",
    "one flipped bit in byte 20 of the database switched all page checksums off, for reading and for good; the byte is "
    "now checked against the first page's own checksum",
)
@pytest.mark.parametrize("bit", range(8))
async def test_a_flip_that_denies_the_checksums_is_seen(tmp_path: Path, bit: int) -> None:
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
    "a database file cut short beside a WAL was read as if zeros were in its place, and long texts and files were "
    "served with them; a file that is too short for what is neither in it nor in the WAL is refused now",
)
async def test_a_database_that_lost_its_end_while_there_is_a_wal_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "first") as store:
        await with_workspace(store)
        await store.append(Write(W, files=(file_version(before=b"x" * 50_000),)))
    async with opened(tmp_path / "first") as store:
        await store.append(events(accepted()))
        image = held(tmp_path / "first")
    whole = len(image[DATABASE])
    for left in (whole, whole - 1, whole - PAGE_BYTES, whole // 2):
        put(tmp_path / "cut", {**image, DATABASE: image[DATABASE][:left]})
        store = SqliteStore(tmp_path / "cut")
        if left == whole:
            await store.open()
            await store.close()
            continue
        with pytest.raises(StoreDamaged, match=r"kedge\.db is damaged"):
            await store.open()


async def test_a_database_that_has_grown_in_its_wal_alone_has_lost_nothing(tmp_path: Path) -> None:
    """Also with pages that were freed again, which nobody needs."""
    async with opened(tmp_path / "first") as store:
        await with_workspace(store)
        await store.append(Write(W, files=(file_version(before=b"x" * 500_000),), sessions=(session(),)))
        await store.append(Write(W, deleted_sessions=("s1",)))
        put(tmp_path / "killed", held(tmp_path / "first"))
    async with opened(tmp_path / "killed") as store:
        assert await store.sessions(W) == []


async def two_workspaces(directory: Path) -> None:
    """In each a message of many pages; those of the second workspace are damaged."""
    async with opened(directory) as store:
        await with_workspace(store, W, "w2")
        for workspace_id in (W, "w2"):
            said = message(f"m-{workspace_id}", f"{workspace_id} says " * 2_000, f"s-{workspace_id}")
            records = {"sessions": (session(f"s-{workspace_id}", workspace_id),), "messages": (said,)}
            live = (run(f"r-{workspace_id}", f"s-{workspace_id}", workspace_id),)
            await store.append(
                events(accepted(), session_id=f"s-{workspace_id}", workspace_id=workspace_id, runs=live, **records)
            )
    content = bytearray((directory / DATABASE).read_bytes())
    content[content.rindex(b"w2 says")] ^= 4
    (directory / DATABASE).write_bytes(content)


async def test_the_workspace_that_is_damaged_is_named_and_the_other_one_served(tmp_path: Path) -> None:
    await two_workspaces(tmp_path)
    async with opened(tmp_path) as store:
        with pytest.raises(StoreDamaged, match=r"kedge\.db is damaged .*checksum.* found while reading session s-w2;"):
            await store.messages("s-w2", None, 10)
        with pytest.raises(StoreDamaged, match=r"found while reading workspace w2;"):
            await store.search("w2", "says", 10)
        found = await store.message(W, "m-w1")
        assert found is not None
        assert found.text == "w1 says " * 2_000
        assert [len(await store.live_runs(workspace_id)) for workspace_id in (W, "w2")] == [1, 1]
        assert await store.append(events(accepted("next"))) == BASE + 2
        assert [await store.verify(workspace_id) for workspace_id in (W, "w2")] == [2, 1]


@pytest.mark.found(
    "damage in one workspace of two",
    "a Write that met damage took all others of its batch with it, those of whole workspaces too, and blamed their "
    "workspaces; each is now tried alone",
)
async def test_a_write_that_meets_damage_does_not_take_the_others_of_its_batch_with_it(tmp_path: Path) -> None:
    await two_workspaces(tmp_path)
    async with opened(tmp_path) as store:
        # Putting the message anew must free its old pages, and reads the damaged one for that.
        broken = events(accepted("x"), workspace_id="w2", messages=(message("m-w2", "short", "s-w2"),))
        one, two, three = await append_together(store, [events(accepted("a")), broken, events(accepted("b"))])
        assert (one, three) == (BASE + 2, BASE + 3)
        assert isinstance(two, StoreDamaged)
        assert str(two).count("found while reading workspace w2;")
        assert await store.verify(W) == 3
    assert held(tmp_path).keys() >= {DATABASE}
    db = apsw.Connection(str(tmp_path / DATABASE), vfs="cksmvfs")
    assert db.execute("SELECT count(*) FROM log").fetchall() == [(4,)]
    db.close()
