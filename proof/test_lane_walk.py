"""The proof of the Lane: every interleaving of a few prompts, cancels and crashes, on the real decide and apply.

test_lane_spec.py compares the states with those of an independent specification.
"""

from __future__ import annotations

from dataclasses import asdict

import pytest

from kedge.core.commands import Cancel, CancelRun, ClearQueue, Submit
from kedge.core.lane import LIFECYCLE
from proof.figures import proof
from proof.walk import Bounds, Transition, WalkResult, walk

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


def walked(bounds: Bounds) -> WalkResult:
    """Walk within these bounds, and report the figures."""
    with (
        proof("G1", "states of the Lane, every command tried in each", "broken promises") as states,
        proof(
            "G2", "cancels put to the Lane, held against the Runs accepted before them", "covered wrongly"
        ) as cancels,
    ):

        def on_transition(transition: Transition) -> None:
            match transition.command:
                case Cancel() | CancelRun() | ClearQueue():
                    cancels.count += 1
                case Submit(when_busy="interrupt") if len(transition.events) > 2:  # a Run was covered
                    cancels.count += 1

        result = walk(**asdict(bounds), on_transition=on_transition)
        states.count = result.states
        states.notes["commands put"] = result.transitions
    return result


# The numbers are pinned, to notice a change of the Lane or the walk that checks fewer states.
def test_histories_of_3_prompts_2_cancels_1_crash() -> None:
    result = walked(Bounds(prompts=3, cancels=2, crashes=1, run_cancels=2, steps=2, moves=1, clears=1, late_folds=1))
    assert (result.states, result.transitions, result.ended) == (6055, 196423, 311)
    assert result.rows == set(LIFECYCLE)


def test_histories_of_4_prompts_1_cancel_1_crash() -> None:
    result = walked(Bounds(prompts=4, cancels=1, crashes=1, run_cancels=1, steps=2))
    assert (result.states, result.transitions, result.ended) == (3868, 135839, 79)


def test_histories_of_2_prompts_3_crashes() -> None:
    result = walked(Bounds(prompts=2, cancels=1, crashes=3, run_cancels=1, steps=2, resumes_max=2))
    assert (result.states, result.transitions, result.ended) == (450, 10517, 45)


def test_histories_of_4_prompts_of_2_authors() -> None:
    result = walked(
        Bounds(prompts=4, cancels=0, crashes=0, run_cancels=1, steps=1, moves=1, authors=2, queue_runs_per_user_max=2)
    )
    assert (result.states, result.transitions, result.ended) == (11701, 400958, 33)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_histories_of_4_prompts_2_cancels_1_crash() -> None:
    result = walked(Bounds(prompts=4, cancels=2, crashes=1, run_cancels=2, steps=2, moves=1, clears=1))
    assert (result.states, result.transitions, result.ended) == (23713, 929972, 411)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_histories_of_5_prompts_2_cancels_1_crash() -> None:
    result = walked(Bounds(prompts=5, cancels=2, crashes=1, run_cancels=1, steps=2))
    assert (result.states, result.transitions, result.ended) == (15215, 637605, 157)


def test_every_row_of_the_lifecycle_is_used() -> None:
    assert walk(prompts=3, cancels=1, late_folds=1).rows == set(LIFECYCLE)
