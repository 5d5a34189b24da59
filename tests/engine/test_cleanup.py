"""What a Run has started is over when it ends; where that cannot be done, the Run says so."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from kedge.testing.scripted import Hold, ScriptedModel
from kedge.tools.background import RunningCommand
from kedge.tools.base import ToolContext
from tests.engine.rig import TIMEOUT_S, ActingTool, no_complaints, rig, spin, until
from tests.engine.test_calls import do
from tests.engine.test_shell import WAITS, PlainMachine, begun, is_alive
from tests.tools.contexts import PlainProcess


class BrokenProcess(PlainProcess):
    """The warden behind it is gone: it cannot be ended any more, only killed by the test."""

    async def end(self, grace_s: float) -> tuple[int, ...]:
        raise ConnectionError("the warden is gone")


async def in_background(context: ToolContext, *, broken: bool = False) -> PlainProcess:
    process = await context.processes.start(("/bin/sh", "-c", WAITS), context.root)
    assert isinstance(process, PlainProcess)
    kept = BrokenProcess(process._process) if broken else process
    context.background.add(RunningCommand(kept, WAITS))
    await begun(context.root / "mark")
    return process


async def test_a_background_command_that_cannot_be_ended_makes_the_cleanup_fail(tmp_path: Path) -> None:
    started: list[PlainProcess] = []

    async def leaves(context: ToolContext) -> str:
        started.append(await in_background(context, broken=True))
        return "left it running"

    tool, machine = ActingTool(leaves=leaves), PlainMachine()
    async with (
        no_complaints(),
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
async def test_a_background_command_ends_though_a_tool_beside_it_never_lets_go(tmp_path: Path, how: str) -> None:
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
        no_complaints(),
        rig(tmp_path, ScriptedModel(do("stuck")), machine=machine, tools=(tool,), runs=runs) as r,
    ):
        run = await r.submit(timeout_s=2 * TIMEOUT_S if how == "timeout" else None)  # it starts a process
        await begun(tmp_path / "mark")
        if how == "cancel":
            await r.engine.cancel(r.workspace, r.session)
        assert (await r.end(run)).cleanup == "failed"
        assert not is_alive(tmp_path / "mark"), "a command goes on behind the end of its Run"
        gate.set()
        await spin()


async def test_a_tool_that_cancels_itself_ends_its_call_and_not_the_run(tmp_path: Path) -> None:
    """Such as one that waits for a task of its own which somebody else ends."""

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


async def test_an_error_that_a_stopped_run_raises_on_its_way_out_is_nobodys_complaint(tmp_path: Path) -> None:
    async def breaks(context: ToolContext) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    tool = ActingTool(breaks=breaks)
    async with no_complaints(), rig(tmp_path, ScriptedModel(do("breaks")), tools=(tool,)) as r:
        run = await r.submit()
        await r.until_begun(tool, "breaks")
        await r.engine.cancel(r.workspace, r.session)
        ended = await r.end(run)
        assert (ended.outcome, ended.cleanup) == ("cancelled", "clean")
        await r.assert_sound()


async def test_a_model_that_breaks_while_it_is_stopped_is_nobodys_complaint(tmp_path: Path) -> None:
    async with no_complaints(), rig(tmp_path, ScriptedModel([Hold("never")])) as r:
        run = await r.submit()
        await r.model.wait_requests(1)
        await until(lambda: r.model.streams_open == 1)
        await r.engine.cancel(r.workspace, r.session)
        assert (await r.end(run)).outcome == "cancelled"


@pytest.mark.found(
    "attack 3",
    "a cancelled Run ended as clean while its threads went on for minutes; a Run waits for its threads now, and a "
    "thread that is still busy makes the clean-up a failed one",
)
async def test_a_busy_thread_makes_the_cleanup_fail(tmp_path: Path) -> None:
    gate, is_begun = threading.Event(), threading.Event()

    def work() -> None:
        is_begun.set()
        gate.wait()

    async def blocks(context: ToolContext) -> str:
        await context.threads.run(work)
        return "late"

    tool = ActingTool(blocks=blocks)
    async with (
        no_complaints(),
        rig(tmp_path, ScriptedModel(do("blocks"), "next"), tools=(tool,), runs={"cleanup_s": 0.2}) as r,
    ):
        try:
            run = await r.submit()
            await until(is_begun.is_set)
            await r.engine.cancel(r.workspace, r.session)
            ended = await r.end(run)
            assert (ended.outcome, ended.cleanup) == ("cancelled", "failed")
            assert ended.error == "The run could not be stopped within 0.2 s; 1 of its threads is still busy."
            assert (await r.end(await r.submit())).text == "next"
        finally:
            gate.set()
            await spin()
