"""Tool calls of a Run, concurrent, uncertain, cancelled or stuck: each has one result, and each Run one end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.core.modes import Mode
from kedge.core.transcript import CUT_OFF
from kedge.store.base import Write
from kedge.testing.scripted import Call, Hold, ScriptedModel
from kedge.tools import background
from kedge.tools.background import FOREGROUND_MAX
from kedge.tools.base import ToolContext, ToolFailed, ToolOutput
from kedge.tools.shell import BashTool
from tests.engine.rig import (
    TIMEOUT_S,
    ActingTool,
    LookupStore,
    OutageStore,
    PlainMachine,
    do,
    has_results,
    never,
    no_asyncio_errors,
    rig,
    spin,
    until,
    until_watched,
)


def result_of(name: str) -> str:
    return f"did {name}"


def stores_result(content: str) -> object:
    def does(write: Write) -> bool:
        return has_results(write) and any(content in repr(message.parts) for message in write.messages)

    return does


async def test_calls_of_one_step_run_concurrently(tmp_path: Path) -> None:
    met = asyncio.Barrier(3)

    async def meet(context: ToolContext) -> str:
        await met.wait()
        return context.call_id

    tool = ActingTool(a=meet, b=meet, c=meet)
    async with rig(tmp_path, ScriptedModel(do("a", "b", "c"), "done"), tools=(tool,)) as r:
        assert (await r.end(await r.submit())).text == "done"
        assert sorted(await r.results()) == [(call_id, call_id) for call_id in ("call_1_0", "call_1_1", "call_1_2")]
        await r.assert_sound()


@pytest.mark.found(
    "attack round 2: tools",
    "128 commands of one Step that print without end stopped the event loop for 240 ms, and ending them took 18 s; at "
    "most 20 run at a time",
)
async def test_commands_of_one_step_are_limited(tmp_path: Path) -> None:
    commands = [Call("bash", {"command": "exec sleep 1000"})] * (FOREGROUND_MAX + 1)
    model, machine = ScriptedModel(commands), PlainMachine()
    async with rig(tmp_path, model, tools=(BashTool(),), machine=machine) as r:
        run = await r.submit(mode="yolo")
        await until_watched(FOREGROUND_MAX)
        await r.engine.cancel(r.workspace, r.session)
        await r.end(run)
        ends = list((await r.call_ends()).values())
        assert (ends.count("cut_off"), ends.count("not_run")) == (FOREGROUND_MAX, 1)
        assert len(machine.plain.started) == FOREGROUND_MAX


@pytest.mark.found("audit of issue 20", "a call that waited for its slot ran as in the mode before a switch")
@pytest.mark.parametrize(("mode", "is_asked"), [("ask", True), ("plan", False)])
async def test_call_that_waits_for_its_slot_obeys_a_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode, is_asked: bool
) -> None:
    monkeypatch.setattr(background, "FOREGROUND_MAX", 1)
    commands = ["touch began$$; until [ -e go ]; do sleep 0.01; done"] * 2
    model = ScriptedModel([Call("bash", {"command": command}) for command in commands], "done")
    async with rig(tmp_path, model, tools=(BashTool(),), machine=PlainMachine()) as r:
        run = await r.submit(mode="yolo")
        await until(lambda: any(tmp_path.glob("began*")))
        await r.engine.modes.switch(r.workspace, r.session, mode)
        (tmp_path / "go").touch()
        if is_asked:
            (ask,) = await r.until_asked()
            await r.engine.modes.switch(r.workspace, r.session, "plan")
            await r.engine.modes.switch(r.workspace, r.session, "ask")
            await r.engine.asks.answer(r.workspace, ask.id, "allow")
        await r.end(run)
        assert len(list(tmp_path.glob("began*"))) == 1 + is_asked
        assert sorted((await r.call_ends()).values(), reverse=True) == [
            "returned",
            "returned" if is_asked else "not_run",
        ]
        await r.assert_sound()


@pytest.mark.found("issue 20", "the output of a command that was cancelled was lost; the result of its call has it")
async def test_cancelled_command_keeps_its_output(tmp_path: Path) -> None:
    command = "trap 'echo last words; exit' TERM; echo first words; touch printed; sleep 1000 & wait"
    model = ScriptedModel([Call("bash", {"command": command})], "next")
    async with rig(tmp_path, model, tools=(BashTool(),), machine=PlainMachine()) as r:
        run = await r.submit(mode="yolo")
        await until((tmp_path / "printed").exists)
        await until_watched()
        await r.engine.cancel(r.workspace, r.session)
        assert (await r.end(run)).outcome == "cancelled"
        ((_, content),) = await r.results()
        assert content == f"first words\nlast words\n\n{CUT_OFF}"
        await r.end(await r.submit("and now?"))
        assert any("first words" in repr(message) for message in model.requests[-1].request.messages)
        await r.assert_sound()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("which", ["a", "b", "c"])
@pytest.mark.usefixtures("one_attempt")
async def test_any_uncertain_result_is_stored_once(tmp_path: Path, when: str, which: str) -> None:
    """a, b and c return at once. The append of one result fails, and the running fourth call is cut off."""
    store, tool = OutageStore(), ActingTool(slow=never)
    async with no_asyncio_errors(), rig(tmp_path, ScriptedModel(do("a", "b", "c", "slow")), store, tools=(tool,)) as r:
        setattr(store, when, stores_result(result_of(which)))
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.reason) == ("failed", "store_unavailable")
        results = dict(await r.results())
        assert len(results) == len(await r.results()) == 4
        assert results[f"call_1_{'abc'.index(which)}"] == result_of(which), "the result of the tool is not lost"
        assert "cut off" in results["call_1_3"]
        await r.assert_sound()


@pytest.mark.parametrize(
    ("kind", "failures"),
    [*(("fail_before", count) for count in range(1, 5)), *(("fail_after", count) for count in range(1, 3))],
)
@pytest.mark.usefixtures("one_attempt")
async def test_repeated_failures_of_result_and_end_appends(tmp_path: Path, kind: str, failures: int) -> None:
    tool = ActingTool()
    async with rig(tmp_path, ScriptedModel([Hold("k"), *do("a", "b", "c")], "next"), tools=(tool,)) as r:
        run = await r.submit(run_id="x")
        queued = await r.submit(run_id="y")
        await r.model.wait_requests(1)
        # The first failing append is the message with the calls, one of the results, or the end.
        setattr(r.store, kind, failures)
        r.model.release("k")
        assert (await r.end(run)).reason == "store_unavailable"
        assert (await r.end(queued)).text == "next"
        assert await r.ends() == ["x", "y"]
        await r.assert_sound()


async def test_cancel_during_result_appends_stores_each_once(tmp_path: Path) -> None:
    store, tool = OutageStore(), ActingTool(slow=never)
    async with rig(tmp_path, ScriptedModel(do("a", "b", "slow"), "next"), store, tools=(tool,)) as r:
        store.held = has_results
        run = await r.submit(run_id="x")
        await store.waiting.wait()
        await r.until_started(tool, "slow")
        cancelling = asyncio.create_task(r.engine.cancel_run(r.workspace, run.run_id))
        await spin()
        store.gate.set()
        await cancelling
        assert (await r.end(run)).outcome == "cancelled"
        results = dict(await r.results())
        assert (results["call_1_0"], results["call_1_1"]) == ("did a", "did b")
        assert "cut off" in results["call_1_2"]
        await r.assert_sound()
        assert (await r.end(await r.submit(run_id="y"))).text == "next"
        await r.assert_sound()


async def test_timeout_during_a_result_append_keeps_the_result(tmp_path: Path) -> None:
    store, tool = OutageStore(), ActingTool()
    async with rig(tmp_path, ScriptedModel(do("a")), store, tools=(tool,)) as r:
        store.held = has_results
        run = await r.submit(timeout_s=TIMEOUT_S)
        await store.waiting.wait()
        lane = r.workspace.lanes[r.session]
        await until(lambda: bool(lane.lock._waiters))  # the end waits for the lock
        store.gate.set()
        assert (await r.end(run)).reason == "timeout"
        assert await r.results() == [("call_1_0", "did a")]
        await r.assert_sound()


async def test_any_tool_failure_ends_only_its_call(tmp_path: Path) -> None:
    async def refuses(context: ToolContext) -> str:
        raise ToolFailed("not like this")

    async def breaks(context: ToolContext) -> str:
        raise ZeroDivisionError("by zero")

    async def odd(context: ToolContext) -> ToolOutput:
        return ToolOutput("half a pair: \ud800", {"path": "\udcff"})

    tool = ActingTool(refuses=refuses, breaks=breaks, odd=odd)
    async with rig(tmp_path, ScriptedModel(do("refuses", "breaks", "odd"), "well"), tools=(tool,)) as r:
        assert (await r.end(await r.submit())).text == "well"
        contents = [content for _, content in sorted(await r.results())]
        assert contents[0] == "not like this"
        assert "ZeroDivisionError" in contents[1]
        assert contents[2] == "half a pair: ?"
        await r.assert_sound()


async def test_tool_slow_to_cancel_ends_before_its_run(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def slow_to_go(context: ToolContext) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(100):
                await asyncio.sleep(0)
            gone.set()
        raise AssertionError

    tool = ActingTool(slow=slow_to_go)
    async with rig(tmp_path, ScriptedModel(do("slow")), tools=(tool,)) as r:
        run = await r.submit()
        await r.until_started(tool, "slow")
        await r.engine.cancel(r.workspace, r.session)
        ended = await r.end(run)
        assert (ended.outcome, ended.cleanup, gone.is_set()) == ("cancelled", "clean", True)
        await r.assert_sound()


async def test_tool_that_returns_despite_the_cancel_is_clean(tmp_path: Path) -> None:
    async def stubborn(context: ToolContext) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished anyway"
        raise AssertionError

    tool = ActingTool(stubborn=stubborn)
    async with rig(tmp_path, ScriptedModel(do("stubborn"), "next"), tools=(tool,)) as r:
        run = await r.submit()
        await r.until_started(tool, "stubborn")
        await r.engine.cancel(r.workspace, r.session)
        ended = await r.end(run)
        assert (ended.outcome, ended.cleanup) == ("cancelled", "clean")
        assert await r.results() == [("call_1_0", "finished anyway")]
        await r.assert_sound()
        assert (await r.end(await r.submit())).text == "next"


@pytest.mark.parametrize("how", ["cancel", "timeout", "close", "delete"])
async def test_tool_that_ignores_cancellation_is_abandoned(tmp_path: Path, how: str) -> None:
    gate, went = asyncio.Event(), asyncio.Event()

    async def stuck(context: ToolContext) -> str:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        went.set()
        return "much too late"

    tool = ActingTool(stuck=stuck)
    model = ScriptedModel(do("stuck"), "next")
    async with no_asyncio_errors(), rig(tmp_path, model, tools=(tool,), runs={"cleanup_s": 0.05}) as r:
        run = await r.submit(run_id="x", timeout_s=TIMEOUT_S if how == "timeout" else None)
        await r.until_started(tool, "stuck")
        match how:
            case "cancel":
                await r.engine.cancel(r.workspace, r.session)
            case "close":
                await r.engine.close()
                ended = r.store.data.runs[r.workspace.id, "x"]
                assert (ended.outcome, ended.cleanup) == ("interrupted", "failed")
            case "delete":
                await r.engine.delete_session(r.workspace, r.session)
            case _:
                pass
        if how in ("cancel", "timeout"):
            ended = await r.end(run)
            assert ended.outcome == ("cancelled" if how == "cancel" else "failed")
            assert ended.cleanup == "failed"
            assert (await r.end(await r.submit(run_id="y"))).text == "next"
            entries = len(await r.log())
            gate.set()
            await went.wait()
            await spin()
            assert len(await r.log()) == entries, "the abandoned call writes nothing more"
            assert "cut off" in (await r.results())[0][1]
            await r.assert_sound()
        gate.set()
        await went.wait()
        await spin()


async def test_abandoned_tool_returning_during_the_end_append(
    tmp_path: Path,
) -> None:
    gate = asyncio.Event()

    async def stuck(context: ToolContext) -> str:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    tool = ActingTool(stuck=stuck, other=stuck)
    async with rig(tmp_path, ScriptedModel(do("stuck", "other")), tools=(tool,), runs={"cleanup_s": 0.05}) as r:
        run = await r.submit()
        await until(lambda: len(tool.started) == 2)
        await r.engine.cancel(r.workspace, r.session)
        lane = r.workspace.lanes[r.session]
        async with lane.lock:  # the end waits for the lock, and the results queue after it
            await until(lambda: bool(lane.lock._waiters))
            gate.set()
            await spin()
        ended = await r.end(run)
        assert (ended.outcome, ended.cleanup) == ("cancelled", "failed")
        assert "internal" not in ended.error
        await r.assert_sound()


async def test_abandoned_tool_returning_during_the_end_lookup(
    tmp_path: Path,
) -> None:
    store = LookupStore()

    async def stuck(context: ToolContext) -> str:
        while not store.looked_up.is_set():
            try:
                await store.looked_up.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    tool, runs = ActingTool(stuck=stuck), {"cleanup_s": 0.05}
    async with rig(tmp_path, ScriptedModel(do("quick", "stuck")), store, tools=(tool,), runs=runs) as r:
        store.after = has_results
        run = await r.submit()
        await until(lambda: store.after is None)
        await r.engine.cancel(r.workspace, r.session)
        ended = await r.end(run)
        assert (ended.outcome, ended.cleanup) == ("cancelled", "failed")
        assert "could not be stopped" in ended.error
        await r.assert_sound()
