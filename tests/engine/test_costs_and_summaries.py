"""Faults found by a review of the agent's loop: what a Step cost, and half a summary."""

from __future__ import annotations

from pathlib import Path

from kedge.core.records import Usage
from kedge.testing.scripted import EndReply, Hold, Say, ScriptedModel
from tests.engine.rig import ActingTool, begin, killed, rig, spin
from tests.engine.test_calls import do, never


async def test_what_a_step_cost_is_not_lost_when_its_tools_take_the_process_down(tmp_path: Path) -> None:
    """The usage of a Step is written with the next BeginStep or the end: a crash in its tool calls loses it."""
    tool = ActingTool(slow=never)
    r = await begin(tmp_path, ScriptedModel([*do("slow"), EndReply(usage=Usage(10, 1))]), tools=(tool,))
    await r.submit(run_id="x")
    await r.until_begun(tool, "slow")
    new = await begin(tmp_path, ScriptedModel("over"), await killed(r), tools=(tool,))
    assert (await new.end("x")).usage == Usage(10, 1)
    await new.engine.close()


async def test_half_a_summary_that_was_cancelled_is_not_sent_to_a_model_as_its_own_words(tmp_path: Path) -> None:
    """It stays in the transcript as an answer like any other, so the next request has it as the assistant's words."""
    model = ScriptedModel("a story", [Say("half a summ"), Hold("never")], "next")
    async with rig(tmp_path, model) as r:
        await r.end(await r.submit("tell"))
        summary = await r.engine.summarize(r.workspace, r.session)
        await model.wait_requests(2)
        await spin()
        await r.engine.cancel_run(r.workspace, summary.run_id)
        await r.end(summary)
        await r.end(await r.submit("go on"))
        assert "half a summ" not in [message.text for message in model.requests[-1].request.messages]
