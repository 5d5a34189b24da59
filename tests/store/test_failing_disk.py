"""G7: each operation of the disk fails in its turn: right answers or clean errors, and nothing is lost by it."""

from __future__ import annotations

import shutil

import pytest

from tests.proof import IS_LONG, proof, slices
from tests.store.faults import ERRORS, attempt, plot, trial
from tests.store.story import memory_directory

#: Trials in one part.
TRIALS_EACH = 100


@pytest.mark.proof
@pytest.mark.timeout(600 if IS_LONG else 200)
@pytest.mark.parametrize("numbers", slices(600, 6_000, TRIALS_EACH), ids=lambda numbers: f"from {numbers.start}")
async def test_whatever_operation_fails_the_answer_is_right_or_a_clean_error(numbers: range) -> None:
    """Two trials for each operation: it fails once, and all fail from it on. The large size has each error of each."""
    with proof("G7", "failed operations of the disk", "wrong answers or losses") as figure:
        told = await plot()
        place = memory_directory()
        try:
            for number in numbers:
                wrong, disk, _ = await attempt(number, told, place)
                assert not wrong, wrong
                figure.count += 1
                kind = disk.failed[0].partition(" ")[0]
                figure.notes[kind] = int(figure.notes.get(kind, 0)) + 1
        finally:
            shutil.rmtree(place)


async def test_every_kind_of_operation_has_its_trial() -> None:
    told = await plot()
    failing = {trial(number, told)[0].fails_at for number in range(0, 2 * told.operations, 2)}
    assert failing == set(range(told.operations))
    assert set(told.asked) == set(ERRORS)


async def test_the_trials_find_a_store_that_forgets_what_it_acknowledged() -> None:
    told = await plot()
    place = memory_directory()
    try:
        assert (await attempt(0, told, place))[0] == ""
        told.standings[-1] = b"as if there had been more"
        assert "holds something else" in (await attempt(0, told, place))[0]
    finally:
        shutil.rmtree(place)
