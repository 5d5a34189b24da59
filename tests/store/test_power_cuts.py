"""G3: acknowledged writes survive a power cut at any point, and the store continues from there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from random import Random

import pytest

from kedge.errors import StoreDamaged
from kedge.store.sqlite import SqliteStore
from proof.figures import IS_LONG, proof, slices
from tests.store.power_cuts import CUTS_EACH, check_cuts, check_image, disk_at, record
from tests.store.recording_disk import DATABASE, HEAD_FILE, WAL
from tests.store.samples import with_workspace
from tests.store.test_sqlite import opened
from tests.store.workload import read_files

#: Cuts that are enough to detect the losses of a store that does not sync.
DETECTING_CUTS = 300


@pytest.mark.proof
@pytest.mark.timeout(1_200 if IS_LONG else 300)
@pytest.mark.parametrize("numbers", slices(20_000, 1_000_000, CUTS_EACH), ids=lambda numbers: f"from {numbers.start}")
async def test_power_cut_loses_no_durable_write(numbers: range) -> None:
    with proof("G3", "simulated power cuts", "lost or corrupt") as figure:
        tally = await check_cuts(await record(numbers.start // CUTS_EACH), numbers)
        figure.count = tally.cuts
        figure.notes = {"distinct images": tally.distinct, **tally.modes}
        assert tally.failures == [], tally.failures[0]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("ignored_syncs", "all_durable"), [((), True), ((WAL,), False), ((DATABASE,), False), (("names", "parent"), False)]
)
async def test_cuts_detect_a_store_that_does_not_sync(ignored_syncs: tuple[str, ...], all_durable: bool) -> None:
    """The first case: each commit with synchronous=NORMAL, which SQLite's documentation recommends for a WAL."""
    tally = await check_cuts(
        await record(0, ignored_syncs=ignored_syncs, all_durable=all_durable), range(DETECTING_CUTS)
    )
    assert tally.failures
    assert all(re.search(r"python -m tests\.store\.power_cuts \d+$", line) for line in tally.failures)


async def test_cuts_are_reproducible() -> None:
    first, second = await record(0), await record(0)
    # SQLite draws the salt of the WAL at random; all else is equal, and so are the results.
    assert [(change.kind, change.name, change.offset, len(change.data)) for change in first.changes] == [
        (change.kind, change.name, change.offset, len(change.data)) for change in second.changes
    ]
    one, two = await check_cuts(first, range(100)), await check_cuts(second, range(100))
    assert (one.modes, one.distinct, one.failures) == (two.modes, two.distinct, two.failures)


# --- Found by the cuts -----------------------------------------------------------------------------------------------


@pytest.mark.found(
    "cuts in the first open of a new store",
    "a database whose first page was torn during creation was re-created without page checksums, so that later damage "
    "could be served; kedge now asks SQLite whether there is a database after SQLite's own recovery",
)
async def test_cut_during_creation_keeps_page_checksums(tmp_path: Path) -> None:
    recording = await record(0)
    at = next(i for i, change in enumerate(recording.changes) if (change.kind, change.name) == ("sync", DATABASE))
    image = disk_at(recording, at).after_loss("kept", Random(0))
    assert image is not None
    for first_page in (image[DATABASE], bytes(512) + image[DATABASE][512:], image[DATABASE][:512] + bytes(3_584)):
        result = await check_image(tmp_path / "data", {**image, DATABASE: first_page}, thorough=True)
        assert result.failure == ""


@pytest.mark.found(
    "cuts in a new directory",
    "the name of a new data directory was never synced, so that a power cut could remove all of it, acknowledged Runs "
    "included; the parent directories are now synced",
)
async def test_name_of_a_new_data_directory_survives_a_cut(tmp_path: Path) -> None:
    recording = await record(0)
    kinds = [change.kind for change in recording.changes]
    assert kinds.index("sync parent") < recording.snapshots[1].acknowledged


@pytest.mark.found(
    "a truncated database",
    "an empty database file was re-created, and its WAL removed, before the head file was checked; it is now refused, "
    "and all files stay unchanged",
)
async def test_emptied_database_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    async with opened(tmp_path / "first") as store:
        await with_workspace(store)
        shutil.copytree(tmp_path / "first", tmp_path / "damaged", ignore=shutil.ignore_patterns("*-shm"))
    (tmp_path / "damaged" / DATABASE).write_bytes(b"")
    before = read_files(tmp_path / "damaged")
    assert sorted(before) == [DATABASE, WAL, HEAD_FILE]
    with pytest.raises(StoreDamaged, match="acknowledged transactions are lost"):
        await SqliteStore(tmp_path / "damaged").open()
    assert read_files(tmp_path / "damaged") == before
