"""Appends whose end is unknown, stores that are away for a while: what is shown, and what goes on afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kedge.core.events import StepStarted
from kedge.core.records import LaneRecord, RunRecord
from kedge.core.transcript import ToolCall, ToolResult
from kedge.errors import StoreDamaged, StoreUnavailable
from kedge.store.base import Write
from kedge.testing.scripted import Call, Hold, Say, ScriptedModel
from tests.engine.rig import (
    CLIENT,
    TIMEOUT_S,
    ActingTool,
    FaultyStore,
    LookedAt,
    Outages,
    Rig,
    do,
    has_results,
    no_complaints,
    rig,
    spin,
    until,
)


def begins_step(write: Write) -> bool:
    return any(isinstance(event, StepStarted) for _, event in write.events)


def has_calls(write: Write) -> bool:
    return any(message.all(ToolCall) for message in write.messages)


async def assert_sound(r: Rig) -> None:
    """Every answer has an end, every call one result, and the session counts its messages right."""
    messages = await r.engine.messages(r.workspace, r.session, None, 100)
    assert all(message.finish for message in messages if message.role == "assistant"), messages
    results = [result.tool_call_id for message in messages for result in message.all(ToolResult)]
    assert sorted(results) == sorted({call.id for message in messages for call in message.all(ToolCall)})
    assert (await r.engine.session(r.workspace, r.session)).message_count == len(messages)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("which", [begins_step, has_calls, has_results])
async def test_uncertain_message_is_stored_once_and_complete(
    tmp_path: Path, when: str, which: Callable[[Write], bool]
) -> None:
    store = Outages()
    async with rig(tmp_path, ScriptedModel([Say("let me look"), Call("x")], "never"), store) as r:
        setattr(store, when, which)
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.reason) == ("failed", "store_unavailable")
        if which is not begins_step:
            assert ("assistant", "let me look", "tool_use") in await r.transcript()
        await assert_sound(r)


async def test_timeout_during_a_step_append_leaves_no_open_message(tmp_path: Path) -> None:
    store = Outages()
    async with rig(tmp_path, ScriptedModel("x"), store) as r:
        store.held = begins_step
        run = await r.submit(timeout_s=TIMEOUT_S)
        await store.waiting.wait()
        lane = r.workspace.lanes[r.session]
        await until(lambda: bool(lane.lock._waiters))  # the end waits at the door
        store.gate.set()
        assert (await r.end(run)).reason == "timeout"
        await assert_sound(r)


@pytest.mark.found(
    "seed 108654 of the simulator",
    "A Run was cancelled when the append of a tool's result had been asked for and not begun: its end looked for the "
    "result, did not find it and put it, too, so that it was created and counted twice. The end looks in the Lane's "
    "lock now: an append of its Run has arrived by then, or is refused.",
)
async def test_result_whose_append_starts_late_is_stored_once(tmp_path: Path) -> None:
    store, tool, late = LookedAt(), ActingTool(), asyncio.Event()

    async def beginning_late(work: Coroutine[Any, Any, Any]) -> Any:
        late.set()
        await store.looked.wait()
        return await work

    def new_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **given: Any) -> asyncio.Task[Any]:
        if getattr(work, "__qualname__", "") == "Door._write" and tool.begun and not late.is_set():
            work = beginning_late(work)
        return asyncio.Task(work, loop=loop, **given)

    async with rig(tmp_path, ScriptedModel([Call("bash", {"do": "x"})]), store, tools=(tool,)) as r:
        asyncio.get_running_loop().set_task_factory(new_task)  # type: ignore[arg-type]
        run = await r.submit()
        await late.wait()
        await r.engine.cancel(r.workspace, r.session)
        assert (await r.end(run)).outcome == "cancelled"
        await spin()
        assert [content for _, content in await r.results()] == ["did x"]
        await r.assert_sound()


async def test_uncertainly_accepted_run_starts_without_its_client(tmp_path: Path) -> None:
    store = Outages()
    async with rig(tmp_path, ScriptedModel("done"), store) as r:
        store.after = lambda write: bool(write.runs)
        submitting = asyncio.create_task(r.submit(run_id="a"))
        await until(lambda: store.after is None)
        store.out = True
        with pytest.raises(StoreUnavailable):
            await submitting
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        store.out = False
        assert (await r.end("a")).text == "done"
        await until(lambda: r.engine.workspaces.all() == [])


@pytest.mark.parametrize("what", ["session", "run"])
async def test_uncertain_cancel_reaches_its_run(tmp_path: Path, what: str) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("never")])) as r:
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        r.store.fail_after = 1
        with pytest.raises(StoreUnavailable):
            await (
                r.engine.cancel(r.workspace, r.session) if what == "session" else r.engine.cancel_run(r.workspace, "a")
            )
        await spin()
        assert r.model.streams_open == 0
        assert (await r.end("a")).outcome == "cancelled"
        await assert_sound(r)


async def test_rename_keeps_the_changes_of_an_uncertain_append(tmp_path: Path) -> None:
    store = Outages()
    async with rig(tmp_path, ScriptedModel([Hold("k")]), store) as r:
        await r.engine.queue(r.workspace, r.session)
        store.after = lambda write: bool(write.runs)
        with pytest.raises(StoreUnavailable):
            await r.submit("hello", run_id="a")
        await r.engine.change_session(r.workspace, r.session, "mine")
        await r.model.wait_requests(1)
        r.model.release("k")
        await r.end("a")
        assert (await r.engine.session(r.workspace, r.session)).title == "mine"
        await assert_sound(r)


async def test_failed_session_creation_leaves_no_lane(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("x")) as r:
        before = set(r.workspace.lanes)
        r.store.fail_before = 1
        with pytest.raises(StoreUnavailable):
            await r.engine.create_session(r.workspace, "")
        await spin()  # it may be there all the same: the store is asked
        assert set(r.workspace.lanes) == before


class Watched(FaultyStore):
    """Remembers what was told and could be lost, and may be damaged where a Lane is read."""

    damaged = 0

    def __init__(self) -> None:
        super().__init__()
        self.not_durable: list[Write] = []

    async def append(self, write: Write) -> int:
        if write.events and not write.durable:
            self.not_durable.append(write)
        return await super().append(write)

    async def lane(self, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        if self.damaged:
            self.damaged -= 1
            raise StoreDamaged("a page does not fit its checksum")
        return await super().lane(session_id)


@pytest.mark.found(
    "a review of the simulator: a loss of power that it did not play",
    "the beginning of a Step was told to clients before it was on disk; after a loss of power its Position was given "
    "to other events, which a client that resumed there never saw, the end of its Run among them; everything that has "
    "a Position is durable now before it is told",
)
async def test_events_with_a_position_are_durable(tmp_path: Path) -> None:
    store = Watched()
    async with rig(tmp_path, ScriptedModel(do("a"), "over"), store, tools=(ActingTool(),)) as r:
        await r.end(await r.submit())
        assert "StepStarted" in await r.log_kinds()
    assert store.not_durable == []


@pytest.mark.found(
    "a review of the engine: damage that is met once",
    "an append whose end was unknown was not looked for any more when the first look met damage: a Run that had been "
    "accepted stayed active for ever, and nobody worked on it; the look is repeated, whatever it meets",
)
async def test_stale_lane_reload_is_retried_after_damage(tmp_path: Path) -> None:
    store = Watched()
    async with no_complaints(), rig(tmp_path, ScriptedModel("done"), store) as r:
        store.fail_after, store.damaged = 1, 1
        with pytest.raises(StoreUnavailable):
            await r.submit(run_id="x")
        async with asyncio.timeout(5):  # the second look comes after a tenth of a second
            await until(lambda: not r.workspace.lanes[r.session].stale)
        assert (await r.end("x")).outcome == "completed"
