"""G13: every history of the lease of one workspace within a scope, on the real leases and store in memory.

test_lease_spec.py compares the states with those of an independent specification.
"""

from __future__ import annotations

import asyncio

import pytest

from proof.figures import proof
from proof.lease_walk import Bounds, WalkResult, walk

pytestmark = pytest.mark.timeout(600)


def walked(bounds: Bounds) -> WalkResult:
    with proof("G13", "states of the leases, every command tried in each", "broken promises") as figure:
        result = asyncio.run(walk(bounds))
        figure.count = result.states
        figure.notes = {
            "commands with an effect": result.transitions,
            "commands refused": result.refused,
            "appends refused by the fence": result.fenced,
        }
    return result


# The numbers are pinned, to notice a change of the leases or the walk that checks fewer states.
def test_histories_of_two_nodes_with_one_append() -> None:
    result = walked(Bounds(restarts=0, claims=2, appends=1, pauses=0))
    assert (result.states, result.transitions, result.refused, result.fenced) == (4713, 26620, 13544, 484)


@pytest.mark.long
def test_histories_of_two_nodes_with_a_pause() -> None:
    result = walked(Bounds(restarts=0, claims=2, appends=1, pauses=1))
    assert (result.states, result.transitions, result.refused, result.fenced) == (15266, 97388, 43094, 1540)


@pytest.mark.long
def test_histories_of_two_nodes_with_a_restart() -> None:
    result = walked(Bounds(restarts=1, claims=2, appends=1, pauses=1))
    assert result.states == 76918


@pytest.mark.long
def test_histories_of_three_nodes() -> None:
    result = walked(Bounds(nodes_max=3, restarts=0, claims=2, appends=1, pauses=0))
    assert result.states == 75055
