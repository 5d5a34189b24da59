"""The engine through its own door: what HTTP cannot show or cannot provoke."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from kedge.agent.assembly import make_engine
from kedge.config.schema import Config
from kedge.core.events import MessageChanged, RunEnded, RunReported, RunStarted
from kedge.errors import (
    SessionNotFound,
    ShuttingDown,
    StoreUnavailable,
    WorkspaceClosing,
    WorkspaceNotFound,
    WrongType,
)
from kedge.store.base import Write
from kedge.testing.manual_system import CountingIds, ManualClock
from kedge.testing.scripted import Call, Fail, Hold, Linger, Say, ScriptedModel
from kedge.wire import frames
from tests.engine.rig import CLIENT, TIMEOUT_S, FaultyStore, OneModel, Rig, rig, spin, until


class Kept(FaultyStore):
    """Keeps every Write it is given: the log does not tell which entries came together."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Write] = []

    async def append(self, write: Write) -> int:
        self.writes.append(write)
        return await super().append(write)


def ends(write: Write, run_id: str) -> bool:
    return any(isinstance(event, RunEnded) and event.run_id == run_id for _, event in write.events)


async def test_the_append_of_an_end_holds_the_last_message_and_the_next_start(tmp_path: Path) -> None:
    store = Kept()
    async with rig(tmp_path, ScriptedModel([Say("one"), Hold("k")], "two"), store) as r:
        first = await r.submit(run_id="a")
        second = await r.submit(run_id="b")
        await r.model.wait_requests(1)
        r.model.release("k")
        await r.end(first)
        (end,) = [write for write in store.writes if ends(write, "a")]
        assert [type(event).__name__ for _, event in end.events] == [
            "MessageChanged",
            "RunEnded",
            "RunReported",
            "RunStarted",
            "MessageChanged",
            "SessionChanged",
        ]
        runs = [event.run_id for _, event in end.events if isinstance(event, RunEnded | RunStarted)]
        changed = [event.message_id for _, event in end.events if isinstance(event, MessageChanged)]
        assert runs == ["a", "b"]
        # The last message of the one Run, whole and with its end, and the first of the other.
        assert [message.id for message in end.messages] == changed
        assert [message.text for message in end.messages] == ["one", "hello"]
        assert end.messages[0].finish is not None
        assert (await r.end(second)).text == "two"


async def test_a_caller_that_goes_away_does_not_undo_what_was_accepted(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("fine")) as r:
        submitting = asyncio.create_task(r.submit(run_id="a"))
        await asyncio.sleep(0)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        await spin()
        # Either it came too early to be accepted, or it is a Run like any other; the Lane in memory agrees.
        run = await r.end("a")
        assert run.outcome == "completed"
        assert (await r.end(await r.submit(run_id="b"))).outcome in ("completed", "failed")


async def test_an_accept_that_the_store_refuses_leaves_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("fine")) as r:
        r.store.fail_before = 1
        with pytest.raises(StoreUnavailable):
            await r.submit(run_id="a")
        assert not r.model.requests
        assert "RunAccepted" not in await r.log_kinds()
        assert (await r.end(await r.submit(run_id="a"))).text == "fine"


async def test_an_accept_whose_answer_was_lost_is_found_again_by_its_run_id(tmp_path: Path) -> None:
    """The append happened, the caller was told it did not: it tries again, and there is one Run, at work."""
    async with rig(tmp_path, ScriptedModel("fine")) as r:
        r.store.fail_after = 1
        with pytest.raises(StoreUnavailable):
            await r.submit(run_id="a")
        again = await r.submit(run_id="a")
        assert again.seq == 1
        assert (await r.log_kinds()).count("RunAccepted") == 1
        assert (await r.end("a")).text == "fine"


async def test_the_end_of_a_run_is_written_again_until_the_store_takes_it(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("all of it"), Hold("k")])) as r:
        run = await r.submit()
        await r.model.wait_requests(1)
        r.store.fail_before = 2
        r.model.release("k")
        ended = await r.end(run)
        assert (ended.outcome, ended.text) == ("completed", "all of it")
        assert (await r.log_kinds()).count("RunEnded") == 1


async def test_an_end_that_was_written_though_the_store_said_no_is_not_written_twice(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("once"), Hold("k")], "next")) as r:
        run = await r.submit(run_id="a")
        behind = await r.submit(run_id="b")
        await r.model.wait_requests(1)
        r.store.fail_after = 1
        r.model.release("k")
        assert (await r.end(run)).text == "once"
        assert (await r.end(behind)).text == "next"
        ended = [entry.event.run_id for entry in await r.log() if isinstance(entry.event, RunEnded)]
        reported = [entry.event.run_id for entry in await r.log() if isinstance(entry.event, RunReported)]
        assert ended == reported == ["a", "b"]


async def test_a_failed_checkpoint_costs_nothing_when_the_message_ends(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("kept"), Hold("k"), Say("whole")])) as r:
        run = await r.submit()
        await r.model.wait_requests(1)
        await spin()
        r.store.fail_before = 1  # the next append is the checkpoint, 0.2 s after the first Delta
        before = r.store.appends
        await until(lambda: r.store.appends > before)
        r.model.release("k")
        assert (await r.end(run)).text == "keptwhole"


async def test_a_run_that_cannot_be_stopped_ends_with_a_failed_cleanup_and_writes_no_more(tmp_path: Path) -> None:
    """B16 and B15: the terminal event comes in bounded time; what the abandoned task does later reaches nobody."""
    model = ScriptedModel([Linger("gone"), Say("shown"), Hold("never"), Say("late")], "next")
    async with rig(tmp_path, model, runs={"cleanup_s": 0.05}) as r:
        run = await r.submit(run_id="a")
        behind = await r.submit(run_id="b")
        await r.model.wait_requests(1)
        await spin()
        await r.engine.cancel_run(r.workspace, run.run_id)
        ended = await r.end(run)
        assert (ended.outcome, ended.cleanup, ended.text) == ("cancelled", "failed", "shown")
        assert "could not be stopped" in ended.error
        assert (await r.end(behind)).text == "next"
        entries = len(await r.log())
        model.release("gone")
        model.release("never")
        await spin()
        assert len(await r.log()) == entries
        assert (await r.transcript())[1] == ("assistant", "shown", "canceled")


async def test_an_unforeseen_error_in_a_run_ends_it_and_nothing_else(tmp_path: Path) -> None:
    def broken(request: object) -> str:
        raise ZeroDivisionError

    async with rig(tmp_path, ScriptedModel(broken)) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.reason) == ("failed", "internal")
        assert "ZeroDivisionError" in ended.error
        assert (await r.transcript())[1][2] == "error"


async def test_a_run_that_keeps_calling_tools_uses_up_its_steps(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: [Say("again"), Call("nothing")])
    async with rig(tmp_path, model) as r:
        ended = await r.end(await r.submit(max_steps=3))
        assert (ended.outcome, ended.reason, ended.steps) == ("failed", "max_steps", 3)
        assert len(model.requests) == 3


async def test_a_run_that_takes_too_long_fails_with_what_it_had(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("so far"), Hold("never")])) as r:
        ended = await r.end(await r.submit(timeout_s=TIMEOUT_S))
        assert (ended.outcome, ended.reason, ended.text) == ("failed", "timeout", "so far")
        assert r.model.streams_open == 0


async def test_the_same_session_never_has_two_streams_open(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: "x y z")
    async with rig(tmp_path, model) as r:
        runs = await asyncio.gather(*(r.submit(run_id=f"r{number}") for number in range(30)))
        for run in runs:
            await r.end(run)
        assert model.streams_open_max == 1
        assert [run.seq for run in sorted(runs, key=lambda run: run.seq)] == list(range(1, 31))


async def test_a_deleted_session_ends_its_runs_first_and_takes_no_more(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("never")])) as r:
        await r.submit(run_id="a")
        await r.submit(run_id="b")
        await r.model.wait_requests(1)
        deleting = asyncio.create_task(r.engine.delete_session(r.workspace, r.session))
        await asyncio.sleep(0)
        with pytest.raises(SessionNotFound):
            await r.submit(run_id="c")
        await deleting
        ends = {entry.event.run_id: entry.event.outcome for entry in await r.log() if isinstance(entry.event, RunEnded)}
        assert ends == {"a": "cancelled", "b": "cancelled"}
        with pytest.raises(SessionNotFound):
            await r.engine.session(r.workspace, r.session)


async def test_shutting_down_interrupts_what_runs_and_leaves_the_queue_to_the_next_process(tmp_path: Path) -> None:
    store = FaultyStore()
    async with rig(tmp_path, ScriptedModel([Say("half"), Hold("never")]), store) as r:
        await r.submit(run_id="a")
        await r.submit(run_id="b")
        await r.submit(run_id="c")
        await r.model.wait_requests(1)
        await spin()
        await r.engine.close()
        with pytest.raises(ShuttingDown):
            await r.submit(run_id="d")
    again = FaultyStore(store.data)
    async with rig(tmp_path, ScriptedModel("second", "third"), again) as r:
        ends = [(await r.end(run_id)).outcome for run_id in ("a", "b", "c")]
        assert ends == ["interrupted", "completed", "completed"]
        assert (await r.transcript())[1] == ("assistant", "half", "error")


@pytest.mark.parametrize(("on_crash", "outcome"), [("resume", "completed"), ("end", "interrupted")])
async def test_a_lost_process_leaves_no_run_running(tmp_path: Path, on_crash: str, outcome: str) -> None:
    store = FaultyStore()
    dead = rig(tmp_path, ScriptedModel([Say("lost "), Hold("never")]), store)
    r = await dead.__aenter__()
    await r.submit(run_id="a")
    await r.submit(run_id="b")
    await r.model.wait_requests(1)
    await spin()
    # The process is gone: its store is taken from it, nothing is told to stop.
    living = FaultyStore(store.data)
    async with rig(tmp_path, ScriptedModel(lambda request: "done"), living, runs={"on_crash": on_crash}) as new:
        first, second = await new.end("a"), await new.end("b")
        assert (first.outcome, second.outcome) == (outcome, "completed")
        assert (await new.log_kinds()).count("RunEnded") == 2
        for asked in new.model.requests:  # no partial attempt, no empty message is sent to the model
            roles = [message.role for message in asked.request.messages]
            assert roles[-1] == "user"
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_a_failing_model_says_so_in_the_transcript_and_the_record(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("well "), Fail("The provider is on fire.")])) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.reason, ended.error) == ("failed", "model_failed", "The provider is on fire.")
        assert ended.text == "well "
        assert "ErrorReported" in await r.log_kinds()


async def test_a_workspace_nobody_holds_is_let_go_and_refuses_late_commands(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("x")) as r:
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        with pytest.raises(WorkspaceNotFound):
            r.engine.workspaces.get(r.workspace.id)
        with pytest.raises(WorkspaceClosing):
            await r.submit()
        assert "RunAccepted" not in await r.log_kinds()


async def test_a_command_under_way_holds_its_workspace(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("x")) as r:
        submitting = asyncio.create_task(r.submit(run_id="a"))
        await asyncio.sleep(0)
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        assert r.engine.workspaces.get(r.workspace.id) is r.workspace
        await submitting
        await r.end("a")
        await spin()
        with pytest.raises(WorkspaceNotFound):
            r.engine.workspaces.get(r.workspace.id)


async def test_a_refusal_that_nobody_waits_for_any_more_is_not_an_error_in_the_log(tmp_path: Path) -> None:
    """Such as the refusal of a Step whose Run was cancelled while it waited for its turn."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["message"]))

    async def ask_and_leave(r: Rig, run_id: str) -> None:
        async with r.workspace.lanes[r.session].lock:
            asking = asyncio.create_task(r.engine.edit_run(r.workspace, run_id, "too late"))
            await spin()
            asking.cancel()
            await spin()

    async with rig(tmp_path, ScriptedModel([Hold("k")])) as r:
        run = await r.submit()
        await r.model.wait_requests(1)
        await ask_and_leave(r, run.run_id)
        await spin()
    gc.collect()
    assert complaints == []


async def test_whoever_waits_for_a_run_that_goes_on_elsewhere_is_let_go_at_a_shutdown(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("never")])) as r:
        await r.submit(run_id="a")
        await r.submit(run_id="b")
        await r.submit(run_id="c")
        waiting = asyncio.create_task(r.engine.wait_run(r.workspace, "c", 3600))
        await r.model.wait_requests(1)
        await r.engine.close()
        assert (await waiting).state == "queued"


async def test_half_a_character_from_a_model_does_not_break_anything(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("a \ud800 b"), Say(" \U0001f600")])) as r:
        assert (await r.end(await r.submit())).text == "a ? b \U0001f600"


async def test_a_run_whose_answer_the_store_refuses_still_ends(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("unspeakable"), Hold("k")], "next")) as r:
        run = await r.submit(run_id="a")
        behind = await r.submit(run_id="b")
        await r.model.wait_requests(1)
        await spin()
        r.store.refuse = WrongType("this cannot be stored")
        r.model.release("k")
        ended = await r.end(run)
        assert (ended.outcome, ended.reason, ended.text) == ("failed", "internal", "")
        assert (await r.transcript())[1] == ("assistant", "", "error")
        assert (await r.end(behind)).text == "next"


async def test_a_broken_file_in_a_repository_does_not_keep_the_server_from_going_on(tmp_path: Path) -> None:
    store = FaultyStore()
    async with rig(tmp_path, ScriptedModel([Hold("never")]), store) as r:
        await r.submit(run_id="a")
        await r.submit(run_id="b")
        await r.model.wait_requests(1)
    (tmp_path / "kedge.toml").write_text("model = ")
    ids, models = CountingIds(after=1000), OneModel(ScriptedModel("done"))
    engine = make_engine(FaultyStore(store.data), ManualClock(), ids, frames, models, Config())
    await engine.open()
    (workspace,) = engine.workspaces.all()
    assert (await engine.wait_run(workspace, "b", 20)).text == "done"
    await engine.close()


async def test_a_server_that_leaves_unused_lets_nobody_in_between(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("x")) as r:
        assert not r.engine.refuse_new_if_unused()
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        opening = asyncio.create_task(r.engine.workspaces.open(str(tmp_path), CLIENT))
        await asyncio.sleep(0)
        assert not r.engine.refuse_new_if_unused()
        r.engine.workspaces.release((await opening).id, CLIENT)
        assert r.engine.refuse_new_if_unused()
        assert r.engine.is_closing
