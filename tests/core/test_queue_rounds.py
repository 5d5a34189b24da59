"""Rules 10 and 11 of the Lane for several authors: shares of the queue, and its rounds."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.core.commands import Cancel, CancelRun, Command, Finish, MoveRun, Submit, WhenBusy
from kedge.core.events import RunAccepted
from kedge.core.lane import Lane, LaneRun, apply_all, decide
from kedge.errors import QueueFull

NOW = 7
AUTHORS = ("", "ann", "bob", "cid")


def by(author: str, run_id: str, when_busy: WhenBusy = "queue", own_max: int = 100) -> Submit:
    return Submit(run_id, f"content of {run_id}", when_busy, NOW, author=author, queue_runs_per_user_max=own_max)


def after(lane: Lane, *commands: Command) -> Lane:
    for command in commands:
        lane = apply_all(lane, decide(lane, command))
    return lane


def end(run_id: str) -> Finish:
    return Finish(run_id, "completed", "", NOW)


def queue_of(lane: Lane) -> str:
    return "".join(run.run_id for run in lane.queue)


#: `a` to `d` by ann, of which `a` is active, and `e` by bob.
FIVE = after(Lane(), *(by("ann", run_id) for run_id in "abcd"), by("bob", "e"))


def test_named_user_has_a_share_of_the_queue() -> None:
    lane = after(Lane(), *(by("ann", run_id) for run_id in "abc"))
    with pytest.raises(QueueFull, match="User ann has 2 queued runs .* cancel some"):
        decide(lane, by("ann", "d", own_max=2))
    assert decide(lane, by("bob", "d", own_max=2))
    assert decide(lane, by("ann", "d", "interrupt", own_max=2))


def test_owner_may_fill_the_queue() -> None:
    assert queue_of(after(Lane(), *(by("", run_id, own_max=1) for run_id in "abcd"))) == "bcd"


def test_new_author_waits_for_one_run_of_each_other() -> None:
    assert queue_of(FIVE) == "becd"
    assert queue_of(after(FIVE, by("", "f"))) == "befcd"


def test_place_of_a_new_run_is_in_the_log() -> None:
    events = decide(FIVE, by("", "f", "fold"))
    assert events == (RunAccepted("f", 6, True, NOW, before="c"),)
    assert apply_all(FIVE, events).queue[2] == LaneRun("f", 6, folds=True)


def test_rounds_are_counted_again_after_a_start() -> None:
    assert queue_of(after(FIVE, end("a"), by("cid", "f"))) == "ecfd"


def test_moves_win_over_rounds() -> None:
    lane = after(FIVE, MoveRun("d", "b", NOW))
    assert queue_of(lane) == "dbec"
    lane = after(lane, by("bob", "f"))  # `b` is the second Run of ann now, and `c` the third
    assert queue_of(lane) == "dbefc"
    lane = after(lane, MoveRun("e", None, NOW))
    assert queue_of(after(lane, by("cid", "g"))) == "dbfgce"


def test_rounds_do_not_change_what_a_cancel_covers() -> None:
    lane = after(FIVE, Cancel(NOW, "bob"))
    assert (lane.mark, lane.queue) == (5, ())
    assert after(lane, by("ann", "f")).state_of("f") == "queued"


@given(st.lists(st.sampled_from(AUTHORS), max_size=25))
def test_no_run_waits_for_a_later_round(authors: list[str]) -> None:
    queue = after(Lane(), by("", "first"), *(by(author, f"r{number}") for number, author in enumerate(authors))).queue
    rounds = [[run.author for run in queue[: index + 1]].count(run.author) for index, run in enumerate(queue)]
    assert rounds == sorted(rounds)
    for _, own in groupby(sorted(queue, key=lambda run: run.author), key=lambda run: run.author):
        seqs = [run.seq for run in own]
        assert seqs == sorted(seqs)


@given(st.lists(st.sampled_from((*AUTHORS, "end", "remove")), max_size=60))
def test_first_run_of_an_author_is_never_overtaken(acts: list[str]) -> None:
    """Not after ends and removals, either: each queued Run becomes the first of its author, and then starts in time."""
    lane = after(Lane(), by("", "first"))
    for number, act in enumerate(acts):
        queue = lane.queue
        if act == "remove":
            lane = after(lane, *(CancelRun(run.run_id, NOW) for run in queue[number % 3 : number % 3 + 1]))
        elif act == "end":
            lane = after(lane, *([end(lane.active.run_id)] if lane.active else []))
        else:
            lane = after(lane, by(act, f"r{number}"))
            ids = [run.run_id for run in lane.queue]
            firsts = {run.author: run.run_id for run in reversed(queue)}
            assert not ids or set(firsts.values()) <= set(ids[: ids.index(f"r{number}")])
