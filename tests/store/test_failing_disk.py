"""G7: when any disk operation fails, answers are correct or clean errors, and nothing is lost."""

from __future__ import annotations

import shutil

import pytest

from proof.figures import IS_LONG, proof, slices
from tests.store.disk_faults import ERRORS, planned_fault, record_baseline, run_trial
from tests.store.workload import memory_directory

#: Trials of one test.
TRIALS_EACH = 100
#: Two trials for each operation; in the long run two for each of its up to three errors.
CI_TRIALS, LONG_TRIALS = 2_600, 7_800
SLICES = slices(CI_TRIALS, LONG_TRIALS, TRIALS_EACH)


@pytest.mark.proof
@pytest.mark.timeout(600 if IS_LONG else 200)
@pytest.mark.parametrize("numbers", SLICES, ids=lambda numbers: f"from {numbers.start}")
async def test_disk_fault_gives_a_correct_answer_or_a_clean_error(numbers: range) -> None:
    """Two trials for each operation: it fails once, and it fails with all later ones. The long run tries each error."""
    with proof("G7", "failed operations of the disk", "wrong answers or losses") as figure:
        baseline = await record_baseline()
        base = memory_directory()
        try:
            for number in numbers:
                failure, disk, _ = await run_trial(number, baseline, base)
                assert not failure, failure
                figure.count += 1
                kind = disk.failed[0].partition(" ")[0]
                figure.notes[kind] = int(figure.notes.get(kind, 0)) + 1
        finally:
            shutil.rmtree(base)


async def test_trials_cover_each_operation_and_each_error() -> None:
    """Holds for this size, and with all errors for the long run. A workload of more operations needs more trials."""
    baseline = await record_baseline()
    assert set(baseline.kinds) == set(ERRORS)
    tried = {planned_fault(number, baseline)[:3] for numbers in SLICES for number in numbers}
    expected = {(at, kind, permanent) for at, kind in enumerate(baseline.kinds) for permanent in (False, True)}
    assert tried == expected, f"{len(expected - tried)} trials are missing for {baseline.operations} operations"
    with_errors = {
        (fault[:3], fault.error) for fault in (planned_fault(number, baseline) for number in range(LONG_TRIALS))
    }
    all_errors = {(fault, error) for fault in expected for error in ERRORS[fault[1]]}
    assert with_errors == all_errors, f"{len(all_errors - with_errors)} errors are missing in the long run"


async def test_trials_detect_a_lost_acknowledged_write() -> None:
    baseline = await record_baseline()
    base = memory_directory()
    try:
        assert (await run_trial(0, baseline, base))[0] == ""
        baseline.digests[-1] = b"a state with one more Write"
        assert "is in another state" in (await run_trial(0, baseline, base))[0]
    finally:
        shutil.rmtree(base)
