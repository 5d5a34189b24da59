"""Compaction: contents of a summary, prompts that arrive during it, and failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.agent import model_call as model_call
from kedge.agent.model_choice import RunModel
from kedge.config.schema import Config
from kedge.core.records import Attachment, AttachmentContent, Prompt, RunOptions, Usage, attachment_digest
from kedge.core.transcript import SUMMARY, chars_of
from kedge.errors import ContextFull, ModelFailed
from kedge.store.base import Write
from kedge.testing.scripted import Call, EndReply, Hold, Say, ScriptedModel
from kedge.tools.todos import TodosTool
from kedge.wire.codec import message_body
from tests.engine.rig import (
    ActingTool,
    Fault,
    FaultyModel,
    OneModel,
    OutageStore,
    Rig,
    do,
    no_asyncio_errors,
    rig,
    spin,
)

FULL = Fault(ContextFull("maximum context length"))

#: A Step whose request was near the limit of a window of 1,000 tokens.
NEARLY_FULL = EndReply(usage=Usage(900, 10))


def small_window(model: ScriptedModel) -> OneModel:
    return OneModel(model, context_window=1000)


async def summary_of(r: Rig) -> str:
    session = await r.engine.session(r.workspace, r.session)
    messages = await r.engine.messages(r.workspace, r.session, None, 1000)
    return next((message.text for message in messages if message.id == session.summary_message_id), "")


async def test_summary_replaces_history_and_keeps_todos_and_prompt(tmp_path: Path) -> None:
    todos = Call("todos", {"todos": [{"content": "leap", "status": "in_progress"}]})
    model = ScriptedModel([todos, NEARLY_FULL], "in short", "done")
    async with rig(tmp_path, model, models=small_window(model), tools=(TodosTool(),)) as r:
        ended = await r.end(await r.submit("please do it"))
        assert (ended.text, ended.steps) == ("done", 3)
        summary = await summary_of(r)
        assert summary.startswith("in short")
        assert "[in_progress] leap" in summary
        assert "please do it" in summary
        (last,) = model.requests[-1].request.messages
        assert (last.role, last.text) == ("user", SUMMARY + summary)
        assert (await r.engine.session(r.workspace, r.session)).todos[0].content == "leap"
        await r.assert_sound()


async def test_summary_of_a_summary_includes_the_first_one(tmp_path: Path) -> None:
    tool = ActingTool()
    model = ScriptedModel([*do("a"), NEARLY_FULL], "first", [*do("b"), NEARLY_FULL], "second", "done")
    async with rig(tmp_path, model, models=small_window(model), tools=(tool,)) as r:
        assert (await r.end(await r.submit("please"))).text == "done"
        asked_for_second = model.requests[3].request.messages
        assert SUMMARY + "first" in asked_for_second[0].text
        assert (await summary_of(r)).startswith("second")
        assert (await summary_of(r)).count("please") == 1
        assert tool.started == ["a", "b"]
        await r.assert_sound()


async def test_request_refused_as_too_long_is_retried_with_a_summary(tmp_path: Path) -> None:
    model = FaultyModel("a story", "in short", "fits", faults=[None, FULL])
    async with rig(tmp_path, model) as r:
        await r.end(await r.submit("tell"))
        assert (await r.end(await r.submit("go on"))).text == "fits"
        assert "in short" in model.requests[-1].request.messages[0].text
        await r.assert_sound()


async def test_prompt_too_long_even_after_a_summary_ends_the_run(tmp_path: Path) -> None:
    model = FaultyModel("in short", "next", faults=[FULL, None, FULL])
    async with rig(tmp_path, model) as r:
        ended = await r.end(await r.submit("much too long"))
        assert (ended.outcome, ended.reason) == ("failed", "context_full")
        assert (await r.end(await r.submit("short"))).text == "next"
        await r.assert_sound()


async def test_history_too_long_to_summarise_is_cut_from_the_start(tmp_path: Path) -> None:
    tool = ActingTool()
    replies = [reply for number in range(4) for reply in (do(f"a{number}"), f"story {number}")]
    model = FaultyModel(*replies, "in short", "fits", faults=[None] * 8 + [FULL, FULL, FULL])
    async with rig(tmp_path, model, tools=(tool,)) as r:
        for number in range(4):
            await r.end(await r.submit(f"tell {number}"))
        assert (await r.end(await r.submit("go on"))).text == "fits"
        lengths = [len(request.messages) for request in model.refused[1:]] + [len(model.requests[8].request.messages)]
        assert lengths == sorted(lengths, reverse=True)
        assert lengths[-1] < lengths[0] / 2
        await r.assert_sound()


async def test_history_that_never_fits_ends_the_run_with_a_reason(tmp_path: Path) -> None:
    model = FaultyModel("a story", faults=[None] + [FULL] * 4)
    async with rig(tmp_path, model) as r:
        await r.end(await r.submit("tell"))
        ended = await r.end(await r.submit("go on"))
        assert (ended.outcome, ended.reason) == ("failed", "context_full")
        assert "new session" in ended.error
        assert await summary_of(r) == ""
        await r.assert_sound()


@pytest.mark.parametrize("reply", ["", "   "])
async def test_empty_summary_replaces_nothing(tmp_path: Path, reply: str) -> None:
    model = ScriptedModel("a story", [Say(reply)] if reply else [], "after all")
    async with rig(tmp_path, model) as r:
        await r.end(await r.submit("tell"))
        ended = await r.end(await r.engine.summarize(r.workspace, r.session))
        assert (ended.outcome, ended.reason) == ("failed", "model_failed")
        assert await summary_of(r) == ""
        assert (await r.end(await r.submit("go on"))).text == "after all"
        assert any(message.text == "a story" for message in model.requests[-1].request.messages)


@pytest.mark.found(
    "issue 20",
    "half a summary was shown as the one that the model sees, and the request for it was sent to the model; a summary "
    "that failed has no text, is not marked as a summary, and its request is not sent",
)
async def test_failed_summary_changes_nothing_and_claims_nothing(tmp_path: Path) -> None:
    broken = Fault(ModelFailed("on fire"), "half a summ")
    model = FaultyModel("a story", [Say("half a summ"), Hold("never")], "after all", faults=[None, broken])
    async with no_asyncio_errors(), rig(tmp_path, model) as r:
        await r.end(await r.submit("tell"))
        failed = await r.end(await r.engine.summarize(r.workspace, r.session))
        assert (failed.outcome, failed.text) == ("failed", "")
        cancelled = await r.engine.summarize(r.workspace, r.session)
        await model.wait_requests(2)
        await spin()
        await r.engine.cancel(r.workspace, r.session)
        assert (await r.end(cancelled)).text == ""
        session = await r.engine.session(r.workspace, r.session)
        assert session.summary_message_id == ""
        messages = await r.engine.messages(r.workspace, r.session, None, 100)
        assert not any("summ" in message.text for message in messages if message.role == "assistant")
        assert not any(message_body(message).is_summary for message in messages)
        await r.end(await r.submit("go on"))
        assert [message.text for message in model.requests[-1].request.messages] == ["tell", "a story", "go on"]
        await r.assert_sound()


async def test_summary_stopped_by_a_content_filter_replaces_nothing(tmp_path: Path) -> None:
    model = ScriptedModel("a story", [Say("half a summ"), EndReply(reason="content_filter")])
    async with rig(tmp_path, model) as r:
        await r.end(await r.submit("tell"))
        ended = await r.end(await r.engine.summarize(r.workspace, r.session))
        assert (ended.outcome, await summary_of(r)) == ("failed", "")


async def test_model_failure_in_a_summary_replaces_nothing(tmp_path: Path) -> None:
    tool = ActingTool()
    broken = Fault(ModelFailed("on fire"), "half a summ")
    model = FaultyModel([*do("a"), NEARLY_FULL], "next", faults=[None, broken])
    async with rig(tmp_path, model, models=small_window(model), tools=(tool,)) as r:
        ended = await r.end(await r.submit())
        assert (ended.outcome, ended.error) == ("failed", "on fire")
        assert await summary_of(r) == ""
        await r.assert_sound()


async def test_cancel_in_a_summary_replaces_nothing(tmp_path: Path) -> None:
    tool = ActingTool()
    # The context is still full, so the next Run summarises first.
    model = ScriptedModel([*do("a"), NEARLY_FULL], [Say("half a summ"), Hold("never")], "in short", "next")
    async with no_asyncio_errors(), rig(tmp_path, model, models=small_window(model), tools=(tool,)) as r:
        run = await r.submit()
        await model.wait_requests(2)
        await spin()
        await r.engine.cancel(r.workspace, r.session)
        assert (await r.end(run)).outcome == "cancelled"
        assert await summary_of(r) == ""
        await r.assert_sound()
        assert (await r.end(await r.submit("and now"))).text == "next"
        await r.assert_sound()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.usefixtures("one_attempt")
async def test_uncertain_summary_is_stored_completely_or_not_at_all(tmp_path: Path, when: str) -> None:
    def stores_summary(write: Write) -> bool:
        return any(session.summary_message_id for session in write.sessions)

    store, tool = OutageStore(), ActingTool()
    model = ScriptedModel([*do("a"), NEARLY_FULL], "in short", "in short again", "next")
    async with no_asyncio_errors(), rig(tmp_path, model, store, models=small_window(model), tools=(tool,)) as r:
        setattr(store, when, stores_summary)
        assert (await r.end(await r.submit())).reason == "store_unavailable"
        await r.assert_sound()
        assert (await summary_of(r)).startswith("in short"), "a stored summary is in use"
        assert (await r.end(await r.submit("and now"))).text == "next"
        await r.assert_sound()


async def test_prompt_folded_during_a_summary_follows_it(tmp_path: Path) -> None:
    tool = ActingTool()
    model = ScriptedModel([Hold("k"), *do("a"), NEARLY_FULL], [Hold("s"), Say("in short")], "done with both")
    async with rig(tmp_path, model, models=small_window(model), tools=(tool,)) as r:
        await r.submit("first thing", run_id="x")
        await model.wait_requests(1)
        await r.submit("second thing", run_id="y", when_busy="fold")
        model.release("k")
        await model.wait_requests(2)
        await r.submit("third thing", run_id="z", when_busy="fold")
        model.release("s")
        ends = [await r.end(run_id) for run_id in "xyz"]
        assert [end.text for end in ends] == ["done with both"] * 3
        text = " ".join(message.text for message in model.requests[-1].request.messages)
        assert all(f"{which} thing" in text for which in ("first", "second", "third"))
        await r.assert_sound()


async def test_requested_summary_takes_in_no_folding_prompt(tmp_path: Path) -> None:
    """A summary answers no prompt, so a folding prompt waits for a Run of its own."""
    model = ScriptedModel("a story", "in short", "an answer of its own")
    async with rig(tmp_path, model) as r:
        await r.end(await r.submit("tell"))
        summary = await r.engine.summarize(r.workspace, r.session)
        steering = await r.submit("and what about this?", when_busy="fold")
        assert (await r.end(summary)).outcome == "completed"
        ended = await r.end(steering)
        assert (ended.folded_into, ended.text) == (None, "an answer of its own")
        assert "and what about this?" in model.requests[-1].request.messages[-1].text
        await r.assert_sound()


async def test_summary_request_respects_the_limits_of_the_model(tmp_path: Path) -> None:
    """For a model without images and with an output limit. A refused request would be repeated."""

    class LimitedModel(OneModel):
        async def choose(self, config: Config, name: str) -> RunModel:
            return RunModel(self.model, 1000, output_tokens_max=77, takes_images=False)

    model = ScriptedModel([*do("a"), NEARLY_FULL], "in short", "done")
    async with rig(tmp_path, model, models=LimitedModel(model), tools=(ActingTool(),)) as r:
        assert (await r.end(await r.submit())).text == "done"
        asked = model.requests[1].request
        assert (asked.output_tokens_max, asked.accepts_images) == (77, False)


async def test_cancelled_partial_summary_is_not_sent_to_the_model(tmp_path: Path) -> None:
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


@pytest.mark.found(
    "attack round 2: the event loop",
    "a model that answered with megabytes of calls made each request larger than the last, without a limit; a request "
    "beyond the limit is summarised as if the provider had refused it",
)
async def test_request_beyond_the_size_limit_is_summarised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel("x" * 600, "in short", "done")
    monkeypatch.setattr(model_call, "REQUEST_CHARS_MAX", 1000)
    async with rig(tmp_path, model) as r:
        await r.end(await r.submit("first"))
        assert sum(map(chars_of, model.requests[0].request.messages)) == len("first")
        ended = await r.end(await r.submit("second " + "y" * 400))
        assert ended.outcome == "completed", ended.error
        assert (await summary_of(r)).startswith("in short")


@pytest.mark.found(
    "a review of the engine: a request with too many bytes of images",
    "the provider's HTTP 413 ended each later Run of the session and its summary; it now leads to a summary, which "
    "leaves out images that are too large",
)
async def test_summary_request_too_large_is_retried_without_images(tmp_path: Path) -> None:
    full = Fault(ContextFull("too large"))
    model = FaultyModel("first", "in short", "done", faults=[None, full, full])
    picture = Attachment("/shots/a.png", "a.png", "image/png", 5, attachment_digest(b"hello"))
    async with rig(tmp_path, model, models=small_window(model)) as r:
        await r.end(await r.submit())
        prompt, contents = Prompt("what is this?", (picture,)), (AttachmentContent(picture.digest, b"hello"),)
        seen = await r.engine.submit(r.workspace, r.session, prompt, RunOptions(), "x", contents=contents)
        assert (await r.end(seen)).text == "done"
        text = await summary_of(r)
        assert text.endswith("what is this?\n\nFiles that came with it, and are not repeated here: /shots/a.png")
        assert "hello" in [message.text for message in model.requests[1].request.messages]
        assert [asked.request.accepts_images for asked in model.requests] == [True, False, True]


@pytest.mark.found(
    "a review of the engine: a provider that breaks off during a summary, and a retry",
    "the summary was taken from the failed attempt, so that the model lost most of the history permanently; it is now "
    "taken from the last attempt",
)
async def test_summary_is_taken_from_the_successful_attempt(tmp_path: Path) -> None:
    broken = Fault(ModelFailed("busy", retryable=True, wait_s=0), "half a summ")
    model = FaultyModel([*do("a"), NEARLY_FULL], "in short", "done", faults=[None, broken])
    async with rig(tmp_path, model, models=small_window(model), tools=(ActingTool(),)) as r:
        assert (await r.end(await r.submit("please"))).text == "done"
        assert (await summary_of(r)).startswith("in short")
        await r.assert_sound()
