"""The engine through its Python API: behaviour that HTTP cannot show or provoke."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from kedge.config.schema import Config
from kedge.core.events import MessageChanged, RunEnded, RunReported, RunStarted
from kedge.core.records import Prompt, Usage
from kedge.errors import StoreUnavailable, WrongType
from kedge.llm.catalogue import Price
from kedge.store.base import Write
from kedge.testing.scripted import Call, EndReply, Fail, Hold, Say, ScriptedModel
from tests.engine.rig import TIMEOUT_S, FaultyStore, OneModel, Rig, no_asyncio_errors, rig, spin, until


class RecordingStore(FaultyStore):
    """Records every Write. The log does not show which entries were appended together."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Write] = []

    async def append(self, write: Write) -> int:
        self.writes.append(write)
        return await super().append(write)


def ends(write: Write, run_id: str) -> bool:
    return any(isinstance(event, RunEnded) and event.run_id == run_id for _, event in write.events)


async def test_end_append_holds_the_last_message_and_the_next_start(tmp_path: Path) -> None:
    store = RecordingStore()
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
        # The finished last message of one Run and the first message of the next.
        assert [message.id for message in end.messages] == changed
        assert [message.text for message in end.messages] == ["one", "hello"]
        assert end.messages[0].finish is not None
        assert (await r.end(second)).text == "two"


async def test_cancelled_caller_does_not_undo_an_accept(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("fine")) as r:
        submitting = asyncio.create_task(r.submit(run_id="a"))
        await asyncio.sleep(0)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        await spin()
        # The Run was accepted although its caller was cancelled, and the Lane in memory agrees.
        run = await r.end("a")
        assert run.outcome == "completed"
        assert (await r.end(await r.submit(run_id="b"))).outcome in ("completed", "failed")


async def test_failed_accept_leaves_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("fine")) as r:
        r.store.fail_before = 1
        with pytest.raises(StoreUnavailable):
            await r.submit(run_id="a")
        assert not r.model.requests
        assert "RunAccepted" not in await r.log_kinds()
        assert (await r.end(await r.submit(run_id="a"))).text == "fine"


async def test_retried_accept_finds_the_run_by_its_id(tmp_path: Path) -> None:
    """The append succeeded but the store reported an error: the caller retries, and there is one active Run."""
    async with rig(tmp_path, ScriptedModel("fine")) as r:
        r.store.fail_after = 1
        with pytest.raises(StoreUnavailable):
            await r.submit(run_id="a")
        again = await r.submit(run_id="a")
        assert again.seq == 1
        assert (await r.log_kinds()).count("RunAccepted") == 1
        assert (await r.end("a")).text == "fine"


async def test_end_of_a_run_is_retried_until_it_is_stored(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("all of it"), Hold("k")])) as r:
        run = await r.submit()
        await r.model.wait_requests(1)
        r.store.fail_before = 2
        r.model.release("k")
        ended = await r.end(run)
        assert (ended.outcome, ended.text) == ("completed", "all of it")
        assert (await r.log_kinds()).count("RunEnded") == 1


async def test_end_stored_despite_an_error_is_not_stored_twice(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("once"), Hold("k")], "next")) as r:
        run = await r.submit(run_id="a")
        queued = await r.submit(run_id="b")
        await r.model.wait_requests(1)
        r.store.fail_after = 1
        r.model.release("k")
        assert (await r.end(run)).text == "once"
        assert (await r.end(queued)).text == "next"
        ended = [entry.event.run_id for entry in await r.log() if isinstance(entry.event, RunEnded)]
        reported = [entry.event.run_id for entry in await r.log() if isinstance(entry.event, RunReported)]
        assert ended == reported == ["a", "b"]


async def test_failed_checkpoint_loses_no_text(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("kept"), Hold("k"), Say("whole")])) as r:
        run = await r.submit()
        await r.model.wait_requests(1)
        await spin()
        r.store.fail_before = 1  # the next append is the checkpoint, 0.2 s after the first Delta
        before = r.store.appends
        await until(lambda: r.store.appends > before)
        r.model.release("k")
        assert (await r.end(run)).text == "keptwhole"


async def test_unexpected_error_ends_only_its_run(tmp_path: Path) -> None:
    def broken(request: object) -> str:
        raise ZeroDivisionError

    async with rig(tmp_path, ScriptedModel(broken)) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.reason) == ("failed", "internal")
        assert "ZeroDivisionError" in ended.error
        assert (await r.transcript())[1][2] == "error"


async def test_run_ends_at_max_steps(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: [Say("again"), Call("nothing")])
    async with rig(tmp_path, model) as r:
        ended = await r.end(await r.submit(max_steps=3))
        assert (ended.outcome, ended.reason, ended.steps) == ("failed", "max_steps", 3)
        assert len(model.requests) == 3


async def test_run_that_times_out_keeps_its_text(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("so far"), Hold("never")])) as r:
        ended = await r.end(await r.submit(timeout_s=TIMEOUT_S))
        assert (ended.outcome, ended.reason, ended.text) == ("failed", "timeout", "so far")
        assert r.model.streams_open == 0


async def test_session_never_has_two_open_streams(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: "x y z")
    async with rig(tmp_path, model) as r:
        runs = await asyncio.gather(*(r.submit(run_id=f"r{number}") for number in range(30)))
        for run in runs:
            await r.end(run)
        assert model.streams_open_max == 1
        assert [run.seq for run in sorted(runs, key=lambda run: run.seq)] == list(range(1, 31))


async def test_model_failure_is_in_the_transcript_and_the_record(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("well "), Fail("The provider is on fire.")])) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.reason, ended.error) == ("failed", "model_failed", "The provider is on fire.")
        assert ended.text == "well "
        assert "ErrorReported" in await r.log_kinds()


async def test_refusal_of_a_cancelled_command_is_retrieved(tmp_path: Path) -> None:
    """For example the refusal of a Step whose Run was cancelled while it waited for the lock."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["message"]))

    async def edit_and_cancel(r: Rig, run_id: str) -> None:
        async with r.workspace.lanes[r.session].lock:
            editing = asyncio.create_task(r.engine.edit_run(r.workspace, run_id, Prompt("too late")))
            await spin()
            editing.cancel()
            await spin()

    async with rig(tmp_path, ScriptedModel([Hold("k")])) as r:
        run = await r.submit()
        await r.model.wait_requests(1)
        await edit_and_cancel(r, run.run_id)
        await spin()
    gc.collect()
    assert errors == []


async def test_lone_surrogate_from_a_model_is_replaced(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("a \ud800 b"), Say(" \U0001f600")])) as r:
        assert (await r.end(await r.submit())).text == "a ? b \U0001f600"


async def test_run_with_an_unstorable_answer_still_ends(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Say("unspeakable"), Hold("k")], "next")) as r:
        run = await r.submit(run_id="a")
        queued = await r.submit(run_id="b")
        await r.model.wait_requests(1)
        await spin()
        r.store.refuse = WrongType("this cannot be stored")
        r.model.release("k")
        ended = await r.end(run)
        assert (ended.outcome, ended.reason, ended.text) == ("failed", "internal", "")
        assert (await r.transcript())[1] == ("assistant", "", "error")
        assert (await r.end(queued)).text == "next"


class BrokenSource:
    """A configuration source that raises an unexpected error."""

    problem = ""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.fails = False

    @property
    def config(self) -> Config:
        if self.fails:
            raise ZeroDivisionError("who would have thought")
        return self._config


async def test_accepted_run_starts_with_a_broken_configuration(tmp_path: Path) -> None:
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel("done")) as r:
        broken = r.workspace.source = BrokenSource(r.workspace.config)
        broken.fails = True
        assert (await r.end(await r.submit())).text == "done"


async def test_run_with_an_infinite_cost_still_ends(tmp_path: Path) -> None:
    """JSON cannot represent infinity."""
    model = ScriptedModel([Say("dear"), EndReply(usage=Usage(10**15, 1))], "next")
    async with no_asyncio_errors(), rig(tmp_path, model, models=OneModel(model, price=Price(1e300, 1.0))) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.reason) == ("failed", "internal")
        assert (await r.end(await r.submit())).text == "next"


@pytest.mark.found(
    "seed 4036 of the simulator",
    "a repeated submit of a Run that waits to fold got a receipt with seq 0; a submit without events changes no record",
)
async def test_a_repeated_submit_gets_the_same_receipt(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel([Hold("k")], "done")) as r:
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        first = await r.submit(run_id="b", when_busy="fold")
        assert await r.submit(run_id="b", when_busy="fold") == first
        r.model.release("k")


@pytest.mark.found(
    "fault 5",
    "a move encoded and compared the prompts of the whole queue, while every other write waited; it writes no prompt",
)
async def test_only_new_and_edited_prompts_are_written(tmp_path: Path) -> None:
    store = RecordingStore()
    async with rig(tmp_path, ScriptedModel([Hold("k")]), store=store) as r:
        await r.submit(run_id="a")
        await r.model.wait_requests(1)
        for run_id in "bcd":
            await r.submit(run_id=run_id)
            assert not store.writes[-1].unchanged_prompts
        await r.engine.move_run(r.workspace, "d", "b")
        moved = {run.run_id for run in store.writes[-1].runs}
        assert moved == store.writes[-1].unchanged_prompts == {"b", "c", "d"}
        await r.engine.edit_run(r.workspace, "c", Prompt("other"))
        assert not store.writes[-1].unchanged_prompts
        assert [run.prompt.text for run in await store.runs(r.session, 9) if run.run_id == "c"] == ["other"]
        await r.engine.cancel(r.workspace, r.session)
        await r.end("a")
