"""The tests of the repository in `session.py`, where this file is tests/test_cancel.py.

They need only the standard library: `python3 -m unittest`.
"""

from __future__ import annotations

import unittest

from kedge.core.commands import Cancel, Command, Finish, Submit
from kedge.core.lane import Lane, apply_all, decide


def after(*commands: Command) -> Lane:
    lane = Lane()
    for command in commands:
        lane = apply_all(lane, decide(lane, command))
    return lane


def submit(run_id: str) -> Submit:
    return Submit(run_id, "content", "queue", now=1)


class CancelRules(unittest.TestCase):
    def test_first_prompt_is_active(self) -> None:
        assert after(submit("a")).state_of("a") == "active"

    def test_cancel_covers_the_last_run(self) -> None:
        assert after(submit("a"), Cancel(2)).state_of("a") == "stopping"

    def test_cancel_ends_queued_runs(self) -> None:
        assert after(submit("a"), submit("b"), Cancel(2)).state_of("b") is None

    def test_cancel_spares_later_runs(self) -> None:
        lane = after(submit("a"), Cancel(2), submit("c"), Finish("a", "completed", "", 3))
        assert lane.state_of("c") == "active"
