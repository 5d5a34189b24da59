"""Calls stay distinct if a provider reuses their ids, within a Step or across Steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kedge.core.step import REPEATS_MAX
from kedge.core.transcript import ToolCall
from kedge.llm.base import ModelEnd, ModelPart, ModelRequest
from kedge.testing.scripted import ScriptedModel
from kedge.tools.base import ToolContext
from tests.engine.rig import ActingTool, kill, rig, start


class RenumberingModel(ScriptedModel):
    """A provider whose call ids, chosen by the test, may repeat."""

    def __init__(self, *steps: tuple[ToolCall, ...]) -> None:
        super().__init__("done")
        self._steps = list(steps)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        if not self._steps:
            async with super().stream(request) as parts:
                yield parts
            return
        calls = self._steps.pop(0)

        async def reply() -> AsyncIterator[ModelPart]:
            yield ModelEnd("tool_use", calls)

        yield reply()


def call(call_id: str, do: str, ask: bool = False) -> ToolCall:
    return ToolCall(call_id, "bash", f'{{"do": "{do}", "ask": {str(ask).lower()}}}')


async def test_two_calls_of_one_step_with_the_same_id_both_run(tmp_path: Path) -> None:
    tool = ActingTool()
    model = RenumberingModel((call("call_0", "a"), call("call_0", "b")))
    async with rig(tmp_path, model, tools=(tool,)) as r:
        assert (await r.end(await r.submit())).text == "done"
        assert tool.started == ["a", "b"]
        assert sorted(content for _, content in await r.results()) == ["did a", "did b"]


async def test_pending_call_with_a_reused_id_is_resumed_after_a_crash(
    tmp_path: Path,
) -> None:
    tool = ActingTool()
    r = await start(tmp_path, RenumberingModel((call("call_0", "a"),), (call("call_0", "b", True),)), tools=(tool,))
    await r.submit(run_id="x")
    (asked,) = await r.until_asked()
    new = await start(tmp_path, ScriptedModel("over"), await kill(r), tools=(tool,))
    await new.engine.asks.answer(new.workspace, asked.id, "allow")
    assert (await new.end("x")).text == "over"
    assert tool.started == ["a", "b"]
    await new.engine.close()


async def test_polling_with_changing_results_is_not_a_loop(
    tmp_path: Path,
) -> None:
    """Also after a crash, when the earlier calls are restored from the transcript."""
    polls: list[int] = []

    async def poll(context: ToolContext) -> str:
        polls.append(1)
        return f"{len(polls)} of 10 are done"

    tool = ActingTool(poll=poll)
    steps = [(call("call_0", "poll"),)] * (REPEATS_MAX + 1)
    r = await start(tmp_path, RenumberingModel(*steps, (call("call_0", "a", True),)), tools=(tool,))
    await r.submit(run_id="x")
    (asked,) = await r.until_asked()
    new = await start(tmp_path, ScriptedModel("over"), await kill(r), tools=(tool,))
    await new.engine.asks.answer(new.workspace, asked.id, "allow")
    assert (await new.end("x")).text == "over"
    await new.assert_sound()
    await new.engine.close()
