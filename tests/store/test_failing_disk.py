"""G7: each operation of the disk fails in its turn: right answers or clean errors, and nothing is lost by it."""

from __future__ import annotations

import shutil

import pytest

from proof.figures import IS_LONG, proof, slices
from tests.store.faults import ERRORS, aim, attempt, plot
from tests.store.story import memory_directory

#: Trials in one part.
TRIALS_EACH = 100
#: Two for each operation in the small size; in the large one as many for each of up to three errors. Trials.
CI_TRIALS, LONG_TRIALS = 2_000, 6_000
PARTS = slices(CI_TRIALS, LONG_TRIALS, TRIALS_EACH)


@pytest.mark.proof
@pytest.mark.timeout(600 if IS_LONG else 200)
@pytest.mark.parametrize("numbers", PARTS, ids=lambda numbers: f"from {numbers.start}")
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


async def test_the_trials_let_each_operation_fail_in_each_way() -> None:
    """Those of this size, and with all errors those of the large one. A story of more operations needs more trials."""
    told = await plot()
    assert set(told.asked) == set(ERRORS)
    tried = {aim(number, told)[:3] for numbers in PARTS for number in numbers}
    wanted = {(at, kind, how) for at, kind in enumerate(told.asked) for how in (False, True)}
    assert tried == wanted, f"{len(wanted - tried)} trials are missing for {told.operations} operations"
    with_errors = {(aimed[:3], aimed.error) for aimed in (aim(number, told) for number in range(LONG_TRIALS))}
    all_errors = {(way, error) for way in wanted for error in ERRORS[way[1]]}
    assert with_errors == all_errors, f"{len(all_errors - with_errors)} errors are missing in the large size"


async def test_the_trials_find_a_store_that_forgets_what_it_acknowledged() -> None:
    told = await plot()
    place = memory_directory()
    try:
        assert (await attempt(0, told, place))[0] == ""
        told.standings[-1] = b"as if there had been more"
        assert "holds something else" in (await attempt(0, told, place))[0]
    finally:
        shutil.rmtree(place)
