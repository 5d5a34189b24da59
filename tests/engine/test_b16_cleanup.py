"""SCENARIOS B16, and B2 and B6 where HTTP cannot make it certain: a model that does not stop when it is told to.

Over HTTP a model is hung up on, and that always works. So these tests put a model into the process that ignores
cancellation until the test lets it go, which is what a library or a tool may do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kedge.core.events import CancelMarked
from kedge.testing.scripted import Hold, Linger, Say, ScriptedModel
from tests.engine.rig import Rig, rig, spin

#: Longer than the test needs; only a failure waits for it. Seconds.
LONG_S = 15.0
SHORT_S = 0.05
#: Too short for a Run that never stops, long enough for one with nothing to clean up on a busy machine. Seconds.
ENOUGH_S = 1.0


@asynccontextmanager
async def stubborn(directory: Path, cleanup_s: float) -> AsyncIterator[Rig]:
    """An engine at work on Run "a" of a model that has said "shown", says no more, and cannot be stopped before "gone"
    is released. That happens at the end in any case, or the event loop could not be closed."""
    model = ScriptedModel([Linger("gone"), Say("shown"), Hold("never"), Say("late")], "next", "after that")
    async with rig(directory, model, runs={"cleanup_s": cleanup_s}) as r:
        try:
            await r.submit(run_id="a")
            await r.model.wait_requests(1)
            await spin()
            yield r
        finally:
            r.model.release("gone")


async def completes(r: Rig) -> list[dict[str, Any]]:
    """The `run_complete` frames of the log, as a client that replays it gets them."""
    reader = await r.engine.workspaces.read_events(r.workspace, 0, None, deltas=False)
    data = b""
    while frames := await reader.read(0):
        data += frames
    reader.close()
    envelopes = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: ")]
    return [envelope["payload"]["payload"] for envelope in envelopes if envelope["type"] == "run_complete"]


@pytest.mark.parametrize("whole_session", [True, False])
async def test_b16_a_cleanup_that_takes_too_long_ends_the_run_as_failed_to_clean_up(
    tmp_path: Path, whole_session: bool
) -> None:
    async with stubborn(tmp_path, SHORT_S) as r:
        if whole_session:
            await r.engine.cancel(r.workspace, r.session)
        else:
            await r.engine.cancel_run(r.workspace, "a")
        ended = await r.end("a")
        assert (ended.outcome, ended.cleanup, ended.text) == ("cancelled", "failed", "shown")
        assert "left behind" in ended.error, "it says what is left"
        assert r.model.streams_open == 1
        (reported,) = await completes(r)
        assert (reported["run_id"], reported["outcome"], reported["cleanup"]) == ("a", "cancelled", "failed")
        assert (await r.transcript())[1] == ("assistant", "shown", "canceled")


async def test_b16_the_queue_goes_on_behind_a_run_that_was_left_behind(tmp_path: Path) -> None:
    async with stubborn(tmp_path, ENOUGH_S) as r:
        await r.submit(run_id="b")
        await r.engine.cancel_run(r.workspace, "a")
        assert (await r.end("a")).cleanup == "failed"
        following = await r.end("b")
        assert (following.outcome, following.cleanup, following.text) == ("completed", "clean", "next")
        entries = len(await r.log())
        r.model.release("gone")
        r.model.release("never")
        await r.model.wait_open(0)
        await spin()
        assert len(await r.log()) == entries, "what was left behind writes nothing more"
        assert [reported["run_id"] for reported in await completes(r)] == ["a", "b"]


async def test_b16_a_cleanup_that_is_slow_but_in_time_is_clean(tmp_path: Path) -> None:
    async with stubborn(tmp_path, LONG_S) as r:
        await r.engine.cancel(r.workspace, r.session)
        await spin()
        run = await r.engine.run(r.workspace, "a")
        assert (run.state, run.stopping) == ("active", True), "it ends when its clean-up is done, not before"
        r.model.release("gone")
        ended = await r.end("a")
        assert (ended.outcome, ended.cleanup, ended.error) == ("cancelled", "clean", "")


async def test_b16_neither_deleting_the_session_nor_shutting_down_hangs(tmp_path: Path) -> None:
    async with stubborn(tmp_path, SHORT_S) as r:
        async with asyncio.timeout(10):
            await r.engine.delete_session(r.workspace, r.session)
    async with stubborn(tmp_path, SHORT_S) as r:
        async with asyncio.timeout(10):
            await r.engine.close()
        store = r.store.reopened()
    await store.open()
    ended = await store.run(r.workspace.id, "a")
    assert ended is not None
    assert (ended.state, ended.outcome, ended.cleanup) == ("ended", "interrupted", "failed")


async def test_b6_a_second_cancel_while_the_first_is_pending_changes_nothing(tmp_path: Path) -> None:
    async with stubborn(tmp_path, LONG_S) as r:
        first = await r.engine.cancel(r.workspace, r.session)
        entries = len(await r.log())
        again = await asyncio.gather(*(r.engine.cancel(r.workspace, r.session) for _ in range(5)))
        assert again == [first] * 5
        assert (await r.engine.cancel_run(r.workspace, "a")).covered == first.covered
        assert len(await r.log()) == entries, "nothing was recorded"
        r.model.release("gone")
        assert (await r.end("a")).outcome == "cancelled"


async def test_b6_a_later_cancel_extends_the_mark_to_prompts_accepted_since(tmp_path: Path) -> None:
    async with stubborn(tmp_path, LONG_S) as r:
        first = await r.engine.cancel(r.workspace, r.session)
        await r.submit(run_id="b")
        await r.submit(run_id="c")
        later = await r.engine.cancel(r.workspace, r.session)
        await r.submit(run_id="d")
        assert (first.mark, later.mark) == (1, 3)
        assert {run.run_id: run.was for run in later.covered} == {"a": "active", "b": "queued", "c": "queued"}
        marks = [entry.event.mark for entry in await r.log() if isinstance(entry.event, CancelMarked)]
        assert marks == [1, 3]
        r.model.release("gone")
        outcomes = [(await r.end(run_id)).outcome for run_id in "abcd"]
        assert outcomes == ["cancelled", "cancelled", "cancelled", "completed"]


async def test_b4_a_prompt_accepted_while_the_cancel_is_pending_completes(tmp_path: Path) -> None:
    """Whatever is sent while the covered Run is still stopping: it waits its time, in any way of waiting, and runs."""
    async with stubborn(tmp_path, LONG_S) as r:
        await r.engine.cancel(r.workspace, r.session)
        await r.submit(run_id="b", when_busy="queue")
        await r.submit(run_id="c", when_busy="fold")
        r.model.release("gone")
        assert (await r.end("a")).outcome == "cancelled"
        ends = [await r.end(run_id) for run_id in "bc"]
        assert [end.outcome for end in ends] == ["completed", "completed"]
        assert all(run.folded_into != "a" for run in ends), "a Run that is told to stop takes in nobody"


async def test_b2_a_run_cancelled_before_it_did_anything_asks_no_model(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("never")) as r:
        await asyncio.gather(r.submit("do it", run_id="a"), r.engine.cancel(r.workspace, r.session))
        ended = await r.end("a")
        assert (ended.outcome, ended.steps) == ("cancelled", 0)
        assert r.model.requests == []
        assert await r.transcript() == [("user", "do it", None), ("assistant", "", "canceled")]
