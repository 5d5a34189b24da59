"""Appends whose end is unknown, stores that are away for a while: what is shown, and what goes on afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kedge.agent import history
from kedge.core.events import StepStarted
from kedge.core.records import LaneRecord, RunRecord
from kedge.core.transcript import Message, ToolCall, ToolResult
from kedge.errors import SessionNotFound, StoreUnavailable
from kedge.store.base import Write
from kedge.testing.scripted import Call, Hold, Say, ScriptedModel
from tests.engine.rig import CLIENT, TIMEOUT_S, ActingTool, FaultyStore, Rig, rig, spin, until


class Outages(FaultyStore):
    """Fails, once, the Write that a condition picks: before it happens or after; or holds it until the gate opens."""

    before: Callable[[Write], bool] | None = None
    after: Callable[[Write], bool] | None = None
    held: Callable[[Write], bool] | None = None
    out = False

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.waiting = asyncio.Event(), asyncio.Event()

    async def append(self, write: Write) -> int:
        if self.out or (self.before and self.before(write)):
            self.before = None
            raise StoreUnavailable("the disk is full; free some space")
        if self.held and self.held(write):
            self.waiting.set()
            await self.gate.wait()
        head = await super().append(write)
        if self.after and self.after(write):
            self.after = None
            raise StoreUnavailable("the connection broke off")
        return head

    async def lane(self, session_id: str) -> tuple[LaneRecord, list[RunRecord]]:
        if self.out:
            raise StoreUnavailable("the connection broke off")
        return await super().lane(session_id)


def begins_step(write: Write) -> bool:
    return any(isinstance(event, StepStarted) for _, event in write.events)


def has_calls(write: Write) -> bool:
    return any(message.all(ToolCall) for message in write.messages)


def has_results(write: Write) -> bool:
    return any(message.all(ToolResult) for message in write.messages)


async def assert_sound(r: Rig) -> None:
    """Every answer has an end, every call one result, and the session counts its messages right."""
    messages = await r.engine.messages(r.workspace, r.session, None, 100)
    assert all(message.finish for message in messages if message.role == "assistant"), messages
    results = [result.tool_call_id for message in messages for result in message.all(ToolResult)]
    assert sorted(results) == sorted({call.id for message in messages for call in message.all(ToolCall)})
    assert (await r.engine.session(r.workspace, r.session)).message_count == len(messages)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("which", [begins_step, has_calls, has_results])
async def test_a_message_in_doubt_is_in_the_transcript_once_and_whole(
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


async def test_a_run_that_times_out_while_its_step_is_being_written_leaves_no_open_message(tmp_path: Path) -> None:
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


class LookedAt(Outages):
    """What the test waits for happens when a message was looked for, before the answer arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = asyncio.Event()

    async def message(self, workspace_id: str, message_id: str) -> Message | None:
        found = await super().message(workspace_id, message_id)
        self.looked.set()
        await spin()
        return found


@pytest.mark.found(
    "seed 108654 of the simulator",
    "A Run was cancelled when the append of a tool's result had been asked for and not begun: its end looked for the "
    "result, did not find it and put it, too, so that it was created and counted twice. The end looks in the Lane's "
    "lock now: an append of its Run has arrived by then, or is refused.",
)
async def test_a_result_whose_append_begins_late_is_put_once(tmp_path: Path) -> None:
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


async def test_a_run_accepted_in_doubt_is_at_work_though_its_client_left(tmp_path: Path) -> None:
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


async def test_a_workspace_is_let_go_though_the_end_of_its_last_run_was_in_doubt(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("k")])) as r:
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        r.store.fail_after = 1
        r.model.release("k")
        await until(lambda: r.engine.workspaces.all() == [])
        assert [run.state for run in await r.store.runs(r.session, 10)] == ["ended"]


async def test_an_abandoned_run_is_cancelled_when_the_store_is_back_and_nobody_spins_until_then(tmp_path: Path) -> None:
    store = Outages()
    async with rig(tmp_path, ScriptedModel([Hold("never")]), store) as r:
        await r.submit(run_id="a", on_disconnect="cancel")
        await r.model.wait_requests(1)
        before = store.appends
        store.fail_before = 3
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        assert (await r.end("a")).outcome == "cancelled"
        assert store.appends - before < 20


@pytest.mark.parametrize("what", ["session", "run"])
async def test_a_cancel_in_doubt_reaches_its_run(tmp_path: Path, what: str) -> None:
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


async def test_a_rename_while_in_doubt_keeps_what_the_doubtful_append_wrote(tmp_path: Path) -> None:
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


async def test_a_session_with_folded_runs_can_be_deleted(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("k"), Call("x")], [Hold("never")])) as r:
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        await r.submit(run_id="b", when_busy="fold")
        r.model.release("k")
        await r.model.wait_requests(2)
        assert (await r.engine.run(r.workspace, "b")).folded_into == "a"
        await r.engine.delete_session(r.workspace, r.session)
        assert await r.engine.sessions(r.workspace) == []


async def test_nothing_brings_a_deleted_session_back_and_it_is_deleted_once(tmp_path: Path) -> None:
    store = Outages()
    async with rig(tmp_path, ScriptedModel("x"), store) as r:
        store.held = lambda write: bool(write.deleted_sessions)
        deleting = asyncio.create_task(r.engine.delete_session(r.workspace, r.session))
        await store.waiting.wait()
        others = [
            asyncio.create_task(r.engine.change_session(r.workspace, r.session, "back again")),
            asyncio.create_task(r.engine.delete_session(r.workspace, r.session)),
        ]
        await spin()
        store.gate.set()
        await deleting
        assert [type(error) for error in await asyncio.gather(*others, return_exceptions=True)] == [SessionNotFound] * 2
        assert await r.engine.sessions(r.workspace) == []
        assert (await r.log_kinds()).count("SessionChanged") == 2


async def test_a_delete_that_nobody_waits_for_any_more_leaves_the_session_usable(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("never")], "y")) as r:
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        deleting = asyncio.create_task(r.engine.delete_session(r.workspace, r.session))
        await asyncio.sleep(0)
        deleting.cancel()
        await asyncio.gather(deleting, return_exceptions=True)
        await spin()
        assert (await r.end(await r.submit(run_id="b"))).text == "y"


async def test_a_fork_in_mid_stream_has_an_end(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("one two"), Hold("k")])) as r:
        run = await r.submit()
        await r.model.wait_requests(1)
        await spin()
        streaming = (await r.engine.messages(r.workspace, r.session, None, 100))[-1]
        fork = await r.engine.fork_session(r.workspace, r.session, streaming.id)
        r.model.release("k")
        await r.end(run)
        copy = (await r.engine.messages(r.workspace, fork.id, None, 100))[-1]
        assert (copy.text, copy.finish and copy.finish.reason) == ("one two", "unknown")


async def test_sessions_that_could_not_be_made_leave_nothing_in_memory(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("x")) as r:
        before = set(r.workspace.lanes)
        r.store.fail_before = 1
        with pytest.raises(StoreUnavailable):
            await r.engine.create_session(r.workspace, "")
        await spin()  # it may be there all the same: the store is asked
        assert set(r.workspace.lanes) == before


async def test_a_model_sees_the_newest_messages_of_a_long_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "HISTORY_MESSAGES_MAX", 4)
    async with rig(tmp_path, ScriptedModel(lambda request: "ok")) as r:
        for number in range(4):
            await r.end(await r.submit(f"prompt {number}", run_id=f"r{number}"))
        assert r.model.requests[-1].request.messages[-1].text == "prompt 3"
