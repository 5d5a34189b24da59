"""Nothing grows with the number of Runs, and an idle engine has no tasks and no timers of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kedge.agent.runner import Runner
from kedge.llm.base import ModelRequest
from kedge.testing.scripted import Call, Reply, Say, ScriptedModel
from tests.engine.rig import CLIENT, ActingTool, OneModel, Rig, rig, spin

#: Enough to detect one object leaked by each Run. Runs.
MANY = 300


def sizes(r: Rig) -> dict[str, int]:
    lane = r.workspace.lanes[r.session]
    runner, door = r.engine._executor, r.engine._door
    assert isinstance(runner, Runner)
    return {
        "settled": len(lane.settled),
        "ended": len(lane.ended),
        "asks": len(lane.asks),
        "runs": len(lane.runs),
        "lanes": len(r.workspace.lanes),
        "seen": len(r.workspace._known_files),
        "running": len(runner._running),
        "runner tasks": len(runner._tasks),
        "door tasks": len(door._tasks),
        "cancels": len(r.engine.abandoned_runs.cancels),
        "tasks": len(asyncio.all_tasks()),
    }


async def test_hundreds_of_mixed_runs_leave_nothing(tmp_path: Path) -> None:
    def reply(request: ModelRequest) -> Reply:
        last = request.messages[-1]
        if last.role == "tool":
            return "done"
        return [
            Say("let me"),
            Call("bash", {"do": "a"}),
            Call("bash", {"do": "b", "ask": last.text == "ask"}),
        ]

    model, small, tool = ScriptedModel(reply), ScriptedModel(lambda request: "A Title"), ActingTool()
    async with rig(tmp_path, model, models=OneModel(model, small), tools=(tool,)) as r:

        async def work(number: int) -> None:
            match number % 3:
                case 0:
                    await r.end(await r.submit("plain"))
                case 1:
                    run = await r.submit("ask")
                    (ask,) = await r.until_asked()
                    await r.engine.asks.answer(r.workspace, ask.id, "allow")
                    await r.end(run)
                case _:
                    run = await r.submit("ask")
                    await spin(number % 60)
                    await r.engine.cancel(r.workspace, r.session)
                    await r.end(run)

        for number in range(6):
            await work(number)
        await spin()
        before = sizes(r)
        for number in range(MANY):
            await work(number)
            if number % 10 == 0:  # keeps the history short
                r.session = (await r.engine.create_session(r.workspace, "")).id
                await work(0)
                old = [session for session in r.workspace.lanes if session != r.session]
                for session in old:
                    await r.engine.delete_session(r.workspace, session)
        await spin()
        assert sizes(r) == before
        await r.assert_sound()


async def test_idle_engine_has_no_timer_but_the_claim_timer(tmp_path: Path) -> None:
    async with rig(tmp_path, ScriptedModel(lambda request: "x")) as r:
        loop = asyncio.get_running_loop()

        def timers() -> list[object]:
            return [handle for handle in loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]

        before = len(timers())
        for _ in range(20):
            await r.end(await r.submit(timeout_s=1000))
        await spin()
        assert len(timers()) <= before
        r.engine.workspaces.release(r.workspace.id, CLIENT)
        assert len(timers()) < before or before == 0
        assert len(asyncio.all_tasks()) == 1
