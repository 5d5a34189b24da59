"""What a cancel covers, in the repository of `session.py`, where this is tests/test_cancel.py. It needs nothing but the
standard library: `python3 -m unittest`."""

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
    def test_a_prompt_is_at_work_when_nobody_is(self) -> None:
        assert after(submit("a")).state_of("a") == "active"

    def test_a_cancel_covers_the_run_accepted_last(self) -> None:
        assert after(submit("a"), Cancel(2)).state_of("a") == "stopping"

    def test_a_cancel_ends_what_is_queued(self) -> None:
        assert after(submit("a"), submit("b"), Cancel(2)).state_of("b") is None

    def test_a_cancel_spares_a_run_accepted_later(self) -> None:
        lane = after(submit("a"), Cancel(2), submit("c"), Finish("a", "completed", "", 3))
        assert lane.state_of("c") == "active"
