"""G3: what was acknowledged survives a loss of power at any moment, and the store goes on from there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from random import Random

import pytest

from kedge.errors import StoreDamaged
from kedge.store.sqlite import SqliteStore
from proof.figures import IS_LONG, proof, slices
from tests.store.cuts import CUTS_EACH, cut, look, platter_at, record
from tests.store.power import DATABASE, NOTE, WAL
from tests.store.samples import with_workspace
from tests.store.story import held
from tests.store.test_sqlite import opened

#: Cuts that are enough to see what a store that does not sync loses.
BITES = 300


@pytest.mark.proof
@pytest.mark.timeout(1_200 if IS_LONG else 300)
@pytest.mark.parametrize("numbers", slices(20_000, 1_000_000, CUTS_EACH), ids=lambda numbers: f"from {numbers.start}")
async def test_a_loss_of_power_loses_nothing_that_was_promised(numbers: range) -> None:
    with proof("G3", "simulated power cuts", "lost or corrupt") as figure:
        tally = await cut(await record(numbers.start // CUTS_EACH), numbers)
        figure.count = tally.cuts
        figure.notes = {"distinct images": tally.distinct, **tally.manners}
        assert tally.wrong == [], tally.wrong[0]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("deaf_to", "promises_all"), [((), True), ((WAL,), False), ((DATABASE,), False), (("names", "parent"), False)]
)
async def test_the_cuts_find_the_losses_of_a_store_that_does_not_sync(
    deaf_to: tuple[str, ...], promises_all: bool
) -> None:
    """The first: every commit with synchronous=NORMAL, which SQLite's documents recommend for a WAL."""
    tally = await cut(await record(0, deaf_to=deaf_to, promises_all=promises_all), range(BITES))
    assert tally.wrong
    assert all(re.search(r"python -m tests\.store\.cuts \d+$", line) for line in tally.wrong)


async def test_a_cut_is_the_same_each_time() -> None:
    first, second = await record(0), await record(0)
    # SQLite draws the WAL's salt at random; all else is the same, and so is what becomes of it.
    assert [(change.kind, change.name, change.offset, len(change.data)) for change in first.changes] == [
        (change.kind, change.name, change.offset, len(change.data)) for change in second.changes
    ]
    one, two = await cut(first, range(100)), await cut(second, range(100))
    assert (one.manners, one.distinct, one.wrong) == (two.manners, two.distinct, two.wrong)


# --- Found by the cuts -----------------------------------------------------------------------------------------------


@pytest.mark.found(
    "cuts in the first open of a new store",
    "a database whose first page was torn while it was made was made anew without page checksums, so that later damage "
    "could be served; SQLite is now asked whether there is a database, after it has cleaned up",
)
async def test_a_cut_while_the_database_is_made_does_not_cost_it_its_checksums(tmp_path: Path) -> None:
    recording = await record(0)
    at = next(i for i, change in enumerate(recording.changes) if (change.kind, change.name) == ("sync", DATABASE))
    image = platter_at(recording, at).cut("kept", Random(0))
    assert image is not None
    for first_page in (image[DATABASE], bytes(512) + image[DATABASE][512:], image[DATABASE][:512] + bytes(3_584)):
        found = await look(tmp_path / "data", {**image, DATABASE: first_page}, thorough=True)
        assert found.wrong == ""


@pytest.mark.found(
    "cuts with directories of their own",
    "the name of a new data directory was never synced, so that a loss of power could take all of it away, "
    "acknowledged Runs included; the directories above it are synced now",
)
async def test_the_name_of_a_new_data_directory_survives(tmp_path: Path) -> None:
    recording = await record(0)
    kinds = [change.kind for change in recording.changes]
    assert kinds.index("sync parent") < recording.moments[1].acknowledged


@pytest.mark.found(
    "a truncated database",
    "a database of no bytes was made anew, and its WAL removed, before the note beside it was looked at; "
    "now it is refused, and all that is left of it stays",
)
async def test_a_database_that_lost_all_its_bytes_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    async with opened(tmp_path / "first") as store:
        await with_workspace(store)
        shutil.copytree(tmp_path / "first", tmp_path / "damaged", ignore=shutil.ignore_patterns("*-shm"))
    (tmp_path / "damaged" / DATABASE).write_bytes(b"")
    before = held(tmp_path / "damaged")
    assert sorted(before) == [DATABASE, WAL, NOTE]
    with pytest.raises(StoreDamaged, match="acknowledged transactions are lost"):
        await SqliteStore(tmp_path / "damaged").open()
    assert held(tmp_path / "damaged") == before
