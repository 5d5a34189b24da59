"""A Run ends after everything it started; otherwise it reports a failed cleanup (SCENARIOS B2, B4, B6, B15, B16).

Over HTTP a model request can always be closed. So some of these tests use a model in the process that ignores
cancellation until the test releases it, as a library or a tool may do.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kedge.core.events import CancelMarked
from kedge.errors import RunNotActive
from kedge.testing.scripted import Hold, Linger, Say, ScriptedModel
from kedge.tools.background import RunningCommand
from kedge.tools.base import ToolContext
from tests.engine.rig import (
    TIMEOUT_S,
    WAITS,
    ActingTool,
    PlainMachine,
    Rig,
    do,
    is_alive,
    no_asyncio_errors,
    rig,
    spin,
    until,
    until_marked,
)
from tests.tools.contexts import PlainProcess

#: Longer than the test needs; only a failing test waits that long. Seconds.
LONG_S = 15.0

SHORT_S = 0.05

#: Too short for a Run that never stops, long enough for one with nothing to clean up on a busy machine. Seconds.
ENOUGH_S = 1.0


@asynccontextmanager
async def stubborn(directory: Path, cleanup_s: float) -> AsyncIterator[Rig]:
    """An engine whose active Run "a" has streamed "shown" and cannot be stopped before "gone" is released.

    It is always released at the end; otherwise the event loop could not be closed.
    """
    model = ScriptedModel([Linger("gone"), Say("shown"), Hold("never"), Say("late")], "next", "after that")
    async with rig(directory, model, runs={"cleanup_s": cleanup_s}) as r:
        try:
            await r.submit(run_id="a")
            await r.model.wait_requests(1)
            await spin()
            yield r
        finally:
            r.model.release("gone")


async def run_completes(r: Rig) -> list[dict[str, Any]]:
    """Return the `run_complete` frames that a client receives when it replays the log."""
    reader = await r.engine.workspaces.read_events(r.workspace, 0, None, deltas=False)
    data = b""
    while frames := await reader.read(0):
        data += frames
    reader.close()
    envelopes = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: ")]
    return [envelope["payload"]["payload"] for envelope in envelopes if envelope["type"] == "run_complete"]


@pytest.mark.parametrize("whole_session", [True, False])
async def test_b16_cleanup_timeout_ends_the_run_with_failed_cleanup(tmp_path: Path, whole_session: bool) -> None:
    async with stubborn(tmp_path, SHORT_S) as r:
        if whole_session:
            await r.engine.cancel(r.workspace, r.session)
        else:
            await r.engine.cancel_run(r.workspace, "a")
        ended = await r.end("a")
        assert (ended.outcome, ended.cleanup, ended.text) == ("cancelled", "failed", "shown")
        assert "left behind" in ended.error, "the error names what is left"
        assert r.model.streams_open == 1
        (reported,) = await run_completes(r)
        assert (reported["run_id"], reported["outcome"], reported["cleanup"]) == ("a", "cancelled", "failed")
        assert (await r.transcript())[1] == ("assistant", "shown", "canceled")


async def test_b16_queue_continues_after_an_abandoned_run(tmp_path: Path) -> None:
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
        assert len(await r.log()) == entries, "the abandoned Run writes nothing more"
        assert [reported["run_id"] for reported in await run_completes(r)] == ["a", "b"]


async def test_b16_slow_cleanup_within_the_limit_is_clean(tmp_path: Path) -> None:
    async with stubborn(tmp_path, LONG_S) as r:
        await r.engine.cancel(r.workspace, r.session)
        await spin()
        run = await r.engine.run(r.workspace, "a")
        assert (run.state, run.stopping) == ("active", True), "it ends only after its cleanup"
        r.model.release("gone")
        ended = await r.end("a")
        assert (ended.outcome, ended.cleanup, ended.error) == ("cancelled", "clean", "")


async def test_b16_delete_and_shutdown_do_not_hang(tmp_path: Path) -> None:
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


async def test_b6_second_cancel_while_the_first_is_pending_is_a_no_op(tmp_path: Path) -> None:
    async with stubborn(tmp_path, LONG_S) as r:
        first = await r.engine.cancel(r.workspace, r.session)
        entries = len(await r.log())
        again = await asyncio.gather(*(r.engine.cancel(r.workspace, r.session) for _ in range(5)))
        assert again == [first] * 5
        assert (await r.engine.cancel_run(r.workspace, "a")).covered == first.covered
        assert len(await r.log()) == entries, "nothing was recorded"
        r.model.release("gone")
        assert (await r.end("a")).outcome == "cancelled"


async def test_b6_later_cancel_covers_prompts_accepted_since(tmp_path: Path) -> None:
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


async def test_b4_prompt_accepted_while_a_cancel_is_pending_completes(tmp_path: Path) -> None:
    """Queued and folding prompts sent while the covered Run is stopping wait for its end and then run."""
    async with stubborn(tmp_path, LONG_S) as r:
        await r.engine.cancel(r.workspace, r.session)
        await r.submit(run_id="b", when_busy="queue")
        await r.submit(run_id="c", when_busy="fold")
        r.model.release("gone")
        assert (await r.end("a")).outcome == "cancelled"
        ends = [await r.end(run_id) for run_id in "bc"]
        assert [end.outcome for end in ends] == ["completed", "completed"]
        assert all(run.folded_into != "a" for run in ends), "a Run that is stopping takes in no prompt"


async def test_b2_run_cancelled_before_its_first_step_calls_no_model(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel("never")) as r:
        await asyncio.gather(r.submit("do it", run_id="a"), r.engine.cancel(r.workspace, r.session))
        ended = await r.end("a")
        assert (ended.outcome, ended.steps) == ("cancelled", 0)
        assert r.model.requests == []
        assert await r.transcript() == [("user", "do it", None), ("assistant", "", "canceled")]


class BrokenProcess(PlainProcess):
    """A process whose warden is gone. The engine cannot end it; only the test can kill it."""

    async def end(self, grace_s: float) -> tuple[int, ...]:
        raise ConnectionError("the warden is gone")


async def in_background(context: ToolContext, *, broken: bool = False) -> PlainProcess:
    process = await context.processes.start(("/bin/sh", "-c", WAITS), context.root)
    assert isinstance(process, PlainProcess)
    command = RunningCommand(BrokenProcess(process._process) if broken else process, WAITS)
    context.background.add(command)
    await until_marked(context.root / "mark")
    return process


async def test_unkillable_background_command_fails_the_cleanup(tmp_path: Path) -> None:
    started: list[PlainProcess] = []

    async def leaves(context: ToolContext) -> str:
        started.append(await in_background(context, broken=True))
        return "left it running"

    tool, machine = ActingTool(leaves=leaves), PlainMachine()
    async with (
        no_asyncio_errors(),
        rig(tmp_path, ScriptedModel(do("leaves"), "ok", "next"), machine=machine, tools=(tool,)) as r,
    ):
        try:
            ended = await r.end(await r.submit())
            assert (ended.outcome, ended.cleanup) == ("completed", "failed")
            assert ended.error
            assert (await r.end(await r.submit())).text == "next"
        finally:
            await started[0].end(0)
            await spin()


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_background_command_ends_while_a_tool_is_stuck(tmp_path: Path, how: str) -> None:
    gate = asyncio.Event()

    async def stuck(context: ToolContext) -> str:
        await in_background(context)
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    tool, machine = ActingTool(stuck=stuck), PlainMachine()
    runs = {"cleanup_s": 2.0}
    async with (
        no_asyncio_errors(),
        rig(tmp_path, ScriptedModel(do("stuck")), machine=machine, tools=(tool,), runs=runs) as r,
    ):
        run = await r.submit(timeout_s=2 * TIMEOUT_S if how == "timeout" else None)  # starting a process takes longer
        await until_marked(tmp_path / "mark")
        if how == "cancel":
            await r.engine.cancel(r.workspace, r.session)
        assert (await r.end(run)).cleanup == "failed"
        assert not is_alive(tmp_path / "mark"), "a command outlives its Run"
        gate.set()
        await spin()


async def test_tool_that_cancels_itself_ends_only_its_call(tmp_path: Path) -> None:
    """For example a tool that awaits its own task, which another task cancels."""

    async def cancelled(context: ToolContext) -> str:
        inner = asyncio.create_task(asyncio.sleep(0))
        inner.cancel()
        await inner
        return "never"

    tool = ActingTool(cancelled=cancelled)
    async with rig(tmp_path, ScriptedModel(do("cancelled", "a"), "well"), tools=(tool,)) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.text) == ("completed", "well")
        await r.assert_sound()


async def test_error_raised_by_a_cancelled_tool_is_retrieved(tmp_path: Path) -> None:
    async def breaks(context: ToolContext) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    tool = ActingTool(breaks=breaks)
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel(do("breaks")), tools=(tool,)) as r:
        run = await r.submit()
        await r.until_started(tool, "breaks")
        await r.engine.cancel(r.workspace, r.session)
        ended = await r.end(run)
        assert (ended.outcome, ended.cleanup) == ("cancelled", "clean")
        await r.assert_sound()


async def test_error_raised_by_a_cancelled_model_is_retrieved(tmp_path: Path) -> None:
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel([Hold("never")])) as r:
        run = await r.submit()
        await r.model.wait_requests(1)
        await until(lambda: r.model.streams_open == 1)
        await r.engine.cancel(r.workspace, r.session)
        assert (await r.end(run)).outcome == "cancelled"


@pytest.mark.found(
    "attack 3",
    "a cancelled Run reported a clean cleanup while its threads continued for minutes; a Run now waits for its "
    "threads, and a thread that is still busy fails the cleanup",
)
async def test_busy_thread_fails_the_cleanup(tmp_path: Path) -> None:
    gate, is_started = threading.Event(), threading.Event()

    def work() -> None:
        is_started.set()
        gate.wait()

    async def blocks(context: ToolContext) -> str:
        await context.threads.run(work)
        return "late"

    tool = ActingTool(blocks=blocks)
    async with (
        no_asyncio_errors(),
        rig(tmp_path, ScriptedModel(do("blocks"), "next"), tools=(tool,), runs={"cleanup_s": 0.2}) as r,
    ):
        try:
            run = await r.submit()
            await until(is_started.is_set)
            await r.engine.cancel(r.workspace, r.session)
            ended = await r.end(run)
            assert (ended.outcome, ended.cleanup) == ("cancelled", "failed")
            assert ended.error == "The run could not be stopped within 0.2 s; 1 of its threads is still busy."
            assert (await r.end(await r.submit())).text == "next"
        finally:
            gate.set()
            await spin()


async def test_abandoned_run_has_failed_cleanup_and_writes_no_more(tmp_path: Path) -> None:
    """B16 and B15: the Run ends in bounded time. Later output of the abandoned task is dropped."""
    model = ScriptedModel([Linger("gone"), Say("shown"), Hold("never"), Say("late")], "next")
    async with rig(tmp_path, model, runs={"cleanup_s": 0.05}) as r:
        run = await r.submit(run_id="a")
        queued = await r.submit(run_id="b")
        await r.model.wait_requests(1)
        await spin()
        await r.engine.cancel_run(r.workspace, run.run_id)
        ended = await r.end(run)
        assert (ended.outcome, ended.cleanup, ended.text) == ("cancelled", "failed", "shown")
        assert "could not be stopped" in ended.error
        assert (await r.end(queued)).text == "next"
        entries = len(await r.log())
        model.release("gone")
        model.release("never")
        await spin()
        assert len(await r.log()) == entries
        assert (await r.transcript())[1] == ("assistant", "shown", "canceled")


async def test_b15_abandoned_tool_changes_no_file_after_the_run_end(tmp_path: Path) -> None:
    """The tool is refused before it writes, because the version for an undo can no longer be stored."""
    ended, attempts = asyncio.Event(), list[str]()

    async def stubborn(context: ToolContext) -> str:
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue
        try:
            await context.host.keep_version(tmp_path / "a", b"old", "digest")
            attempts.append("stored")
        except RunNotActive:
            attempts.append("refused")
        return "late"

    tool = ActingTool(stubborn=stubborn)
    async with rig(tmp_path, ScriptedModel(do("stubborn")), tools=(tool,), runs={"cleanup_s": 0.05}) as r:
        await r.submit(run_id="x")
        await r.until_started(tool, "stubborn")
        await r.engine.cancel(r.workspace, r.session)
        assert (await r.end("x")).cleanup == "failed"
        ended.set()
        await until(lambda: bool(attempts))
        assert attempts == ["refused"]
        assert "FileChanged" not in await r.log_kinds()
