"""The proof of the Lane: every interleaving of so many prompts, cancels and crashes, on the real decide and apply."""

from __future__ import annotations

import pytest

from kedge.core.lane import LIFECYCLE
from kedge.testing.histories import walk


# The numbers are pinned: a change of the Lane or of the walk that makes it look at less is seen here.
def test_every_history_of_3_prompts_2_cancels_and_1_crash_keeps_the_promises() -> None:
    result = walk(prompts=3, cancels=2, crashes=1, run_cancels=2, steps=2, moves=1, clears=1)
    assert (result.states, result.transitions, result.ended) == (2963, 82550, 159)
    assert result.rows == set(LIFECYCLE)


def test_every_history_of_4_prompts_1_cancel_and_1_crash_keeps_the_promises() -> None:
    result = walk(prompts=4, cancels=1, crashes=1, run_cancels=1, steps=2)
    assert (result.states, result.transitions, result.ended) == (3902, 119244, 79)
    assert result.rows == set(LIFECYCLE)


def test_every_history_of_2_prompts_and_3_crashes_keeps_the_promises() -> None:
    result = walk(prompts=2, cancels=1, crashes=3, run_cancels=1, steps=2, resumes_max=2)
    assert (result.states, result.transitions, result.ended) == (450, 8962, 45)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_history_of_4_prompts_2_cancels_and_1_crash_keeps_the_promises() -> None:
    result = walk(prompts=4, cancels=2, crashes=1, run_cancels=2, steps=2, moves=1, clears=1)
    assert (result.states, result.transitions, result.ended) == (23915, 818473, 411)
    assert result.rows == set(LIFECYCLE)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_history_of_5_prompts_2_cancels_and_1_crash_keeps_the_promises() -> None:
    result = walk(prompts=5, cancels=2, crashes=1, run_cancels=1, steps=2)
    assert (result.states, result.transitions, result.ended) == (15373, 565128, 157)


def test_every_row_of_the_lifecycle_is_used() -> None:
    assert walk(prompts=3, cancels=1).rows == set(LIFECYCLE)
