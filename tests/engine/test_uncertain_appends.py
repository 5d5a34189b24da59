"""Appends with an unknown result and stores that are unavailable for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kedge.core.events import StepStarted
from kedge.core.records import LaneRecord, RunRecord
from kedge.core.transcript import ToolCall, ToolResult
from kedge.engine.feed import Reader
from kedge.errors import StoreDamaged, StoreUnavailable
from kedge.store.base import Write
from kedge.testing.scripted import Call, Hold, Say, ScriptedModel
from tests.engine.rig import (
    CLIENT,
    TIMEOUT_S,
    ActingTool,
    FaultyStore,
    LookupStore,
    OutageStore,
    Rig,
    do,
    has_results,
    no_asyncio_errors,
    rig,
    spin,
    until,
)


def begins_step(write: Write) -> bool:
    return any(isinstance(event, StepStarted) for _, event in write.events)


def has_calls(write: Write) -> bool:
    return any(message.all(ToolCall) for message in write.messages)


async def assert_transcript_sound(r: Rig) -> None:
    """Assert that every answer is finished, every call has one result and the message count is correct."""
    messages = await r.engine.messages(r.workspace, r.session, None, 100)
    assert all(message.finish for message in messages if message.role == "assistant"), messages
    results = [result.tool_call_id for message in messages for result in message.all(ToolResult)]
    assert sorted(results) == sorted({call.id for message in messages for call in message.all(ToolCall)})
    assert (await r.engine.session(r.workspace, r.session)).message_count == len(messages)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("which", [begins_step, has_calls, has_results])
@pytest.mark.usefixtures("one_attempt")
async def test_uncertain_message_is_stored_once_and_complete(
    tmp_path: Path, when: str, which: Callable[[Write], bool]
) -> None:
    store = OutageStore()
    async with rig(tmp_path, ScriptedModel([Say("let me look"), Call("x")], "never"), store) as r:
        setattr(store, when, which)
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.reason) == ("failed", "store_unavailable")
        if which is not begins_step:
            assert ("assistant", "let me look", "tool_use") in await r.transcript()
        await assert_transcript_sound(r)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("which", [begins_step, has_calls, has_results])
@pytest.mark.found(
    "fault 9",
    "a store that was away for ten seconds failed every Run with tools; a Run now waits for it, shown on the stream, "
    "and writes everything once",
)
async def test_a_run_waits_for_a_store_that_is_away(tmp_path: Path, when: str, which: Callable[[Write], bool]) -> None:
    store = OutageStore()
    async with rig(tmp_path, ScriptedModel([Say("let me look"), Call("x")], "done"), store) as r:
        reader = await r.workspace.feed.reader(None, None, deltas=True)
        reading = asyncio.create_task(_read_to_the_end(reader))
        setattr(store, when, which)
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.text, ended.steps) == ("completed", "done", 2)
        assert [role for role, _, _ in await r.transcript()] == ["user", "assistant", "tool", "assistant"]
        await assert_transcript_sound(r)
        assert b'"type":"retry"' in await reading


async def _read_to_the_end(reader: Reader) -> bytes:
    shown = b""
    while b"run_complete" not in shown:
        shown += await reader.read(1.0) or b""
    return shown


async def test_timeout_during_a_step_append_leaves_no_open_message(tmp_path: Path) -> None:
    store = OutageStore()
    async with rig(tmp_path, ScriptedModel("x"), store) as r:
        store.held = begins_step
        run = await r.submit(timeout_s=TIMEOUT_S)
        await store.waiting.wait()
        lane = r.workspace.lanes[r.session]
        await until(lambda: bool(lane.lock._waiters))  # the end waits for the lock
        store.gate.set()
        assert (await r.end(run)).reason == "timeout"
        await assert_transcript_sound(r)


@pytest.mark.found(
    "seed 108654 of the simulator",
    "a Run was cancelled after the append of a tool result was requested and before it started; the end did not find "
    "the result and stored it, too, so that it was created and counted twice; the end now looks it up while it holds "
    "the Lane's lock, when an append of its Run is either stored or refused",
)
async def test_result_whose_append_starts_late_is_stored_once(tmp_path: Path) -> None:
    store, tool, late = LookupStore(), ActingTool(), asyncio.Event()

    async def starting_late(work: Coroutine[Any, Any, Any]) -> Any:
        late.set()
        await store.looked_up.wait()
        return await work

    def new_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        if getattr(work, "__qualname__", "") == "Door._write" and tool.started and not late.is_set():
            work = starting_late(work)
        return asyncio.Task(work, loop=loop, **options)

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
    store = OutageStore()
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
        cancelled = await (
            r.engine.cancel(r.workspace, r.session) if what == "session" else r.engine.cancel_run(r.workspace, "a")
        )
        assert (cancelled.is_recorded, [run.run_id for run in cancelled.covered]) == (False, ["a"])
        await spin()
        assert r.model.streams_open == 0
        assert (await r.end("a")).outcome == "cancelled"
        await assert_transcript_sound(r)


async def test_uncertain_interrupt_stops_the_active_run(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("never")], "next")) as r:
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        r.store.fail_after = 1
        with pytest.raises(StoreUnavailable):
            await r.submit(run_id="b", when_busy="interrupt")
        async with asyncio.timeout(10):
            assert (await r.end("a")).outcome == "cancelled"
        assert (await r.end("b")).text == "next"


async def test_rename_keeps_the_changes_of_an_uncertain_append(tmp_path: Path) -> None:
    store = OutageStore()
    async with rig(tmp_path, ScriptedModel([Hold("k")]), store) as r:
        await r.engine._door.refresh(r.workspace.lanes[r.session])
        store.after = lambda write: bool(write.runs)
        with pytest.raises(StoreUnavailable):
            await r.submit("hello", run_id="a")
        await r.engine.change_session(r.workspace, r.session, "mine")
        await r.model.wait_requests(1)
        r.model.release("k")
        await r.end("a")
        assert (await r.engine.session(r.workspace, r.session)).title == "mine"
        await assert_transcript_sound(r)


async def test_failed_session_creation_leaves_no_lane(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("x")) as r:
        before = set(r.workspace.lanes)
        r.store.fail_before = 1
        with pytest.raises(StoreUnavailable):
            await r.engine.create_session(r.workspace, "")
        await spin()  # it may exist anyway: the engine asks the store
        assert set(r.workspace.lanes) == before


class DurabilityStore(FaultyStore):
    """Records appends with events that are not durable, and reports damage when a Lane is read."""

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
    "a review of the simulator: a power loss that it did not simulate",
    "the start of a Step was published before it was on disk; after a power loss its Position was reused by other "
    "events, such as the end of its Run, which a client that resumed there never received; every event with a "
    "Position is now durable before it is published",
)
async def test_events_with_a_position_are_durable(tmp_path: Path) -> None:
    store = DurabilityStore()
    async with rig(tmp_path, ScriptedModel(do("a"), "over"), store, tools=(ActingTool(),)) as r:
        await r.end(await r.submit())
        assert "StepStarted" in await r.log_kinds()
    assert store.not_durable == []


@pytest.mark.found(
    "a review of the engine: damage that is reported once",
    "after an append with an unknown result, the Lane was not reloaded again if the first reload met damage; an "
    "accepted Run stayed active forever and never started; the reload is now retried after any error",
)
async def test_stale_lane_reload_is_retried_after_damage(tmp_path: Path) -> None:
    store = DurabilityStore()
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel("done"), store) as r:
        store.fail_after, store.damaged = 1, 1
        with pytest.raises(StoreUnavailable):
            await r.submit(run_id="x")
        async with asyncio.timeout(5):  # the reload is retried after 0.1 s
            await until(lambda: not r.workspace.lanes[r.session].stale)
        assert (await r.end("x")).outcome == "completed"
