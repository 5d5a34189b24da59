from __future__ import annotations

import asyncio

import pytest

from kedge.core.records import Usage
from kedge.core.transcript import Message, Text, ToolCall
from kedge.errors import ModelFailed
from kedge.llm.base import ModelEnd, ModelPart, ModelRequest, ReasoningDelta, TextDelta
from kedge.testing import Call, EndReply, Fail, Hold, Linger, Say, ScriptedModel, Think


def asking(text: str = "x") -> ModelRequest:
    return ModelRequest("scripted", (Message("m", "s", "user", (Text(text),), 0, 0),))


async def parts_of(model: ScriptedModel, text: str = "x") -> list[ModelPart]:
    async with model.stream(asking(text)) as parts:
        return [part async for part in parts]


async def test_each_request_takes_the_next_reply() -> None:
    model = ScriptedModel("one two", [Think("hm"), Say("three")])
    model.add("four")
    assert await parts_of(model) == [TextDelta("one"), TextDelta(" two"), ModelEnd("end_turn")]
    assert await parts_of(model) == [ReasoningDelta("hm"), TextDelta("three"), ModelEnd("end_turn")]
    assert await parts_of(model) == [TextDelta("four"), ModelEnd("end_turn")]


async def test_a_request_too_many_fails_and_says_so() -> None:
    model = ScriptedModel("one")
    await parts_of(model)
    with pytest.raises(ModelFailed, match="request 2 has no scripted reply; the script has 1"):
        await parts_of(model)


async def test_a_function_answers_any_number_of_requests() -> None:
    model = ScriptedModel(lambda request: request.messages[-1].text)
    for text in ("a", "b", "c"):
        assert await parts_of(model, text) == [TextDelta(text), ModelEnd("end_turn")]


async def test_words_keep_their_blanks() -> None:
    text = " one\n\n  two \n"
    parts = await parts_of(ScriptedModel(text))
    assert "".join(part.text for part in parts if isinstance(part, TextDelta)) == text


async def test_tools_are_called_with_any_input() -> None:
    model = ScriptedModel([Say("look"), Call("view", {"path": "x"}), Call("ls", "{broken")])
    calls = (ToolCall("call_1_0", "view", '{"path": "x"}'), ToolCall("call_1_1", "ls", "{broken"))
    assert (await parts_of(model))[-1] == ModelEnd("tool_use", calls)


async def test_the_end_can_be_chosen() -> None:
    model = ScriptedModel([Say("x"), EndReply("max_tokens", Usage(1, 2))])
    assert (await parts_of(model))[-1] == ModelEnd("max_tokens", (), Usage(1, 2))


async def test_a_failure_comes_after_what_was_said() -> None:
    model = ScriptedModel([Say("one"), Fail("no more")])
    async with model.stream(asking()) as parts:
        assert await anext(parts) == TextDelta("one")
        with pytest.raises(ModelFailed, match="no more"):
            await anext(parts)
    assert not model.requests[0].closed_early


async def test_a_hold_waits_for_its_release() -> None:
    model = ScriptedModel([Say("one"), Hold("go"), Say("two")], [Hold("go")])
    reading = asyncio.create_task(parts_of(model))
    await model.wait_requests(1)
    await model.wait_open(1)
    assert not reading.done()
    model.release("go")
    assert (await reading)[1] == TextDelta("two")
    assert await parts_of(model) == [ModelEnd("end_turn")]


async def test_open_streams_are_counted() -> None:
    model = ScriptedModel(lambda _: [Hold("go")])
    reading = [asyncio.create_task(parts_of(model)) for _ in range(3)]
    await model.wait_open(3)
    model.release("go")
    await asyncio.gather(*reading)
    assert (model.streams_open, model.streams_open_max) == (0, 3)
    assert [asked.number for asked in model.requests] == [1, 2, 3]
    assert not any(asked.closed_early for asked in model.requests)


async def test_a_cancel_closes_the_stream_early() -> None:
    model = ScriptedModel([Say("one"), Hold("never")])
    reading = asyncio.create_task(parts_of(model))
    await model.wait_open(1)
    reading.cancel()
    await model.requests[0].closed.wait()
    assert model.requests[0].closed_early
    assert model.streams_open == 0
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_leaving_in_the_middle_closes_the_stream_early() -> None:
    model = ScriptedModel("one two")
    async with model.stream(asking()) as parts:
        await anext(parts)
    assert model.requests[0].closed_early
    assert model.requests[0].closed.is_set()


async def test_lingering_reply_ignores_cancels_until_released() -> None:
    model = ScriptedModel([Linger("let go"), Say("one"), Hold("never")])
    reading = asyncio.create_task(parts_of(model))
    await model.wait_open(1)
    for _ in range(5):
        reading.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert not reading.done()
    assert model.streams_open == 1
    model.release("let go")
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert model.streams_open == 0


async def test_a_lingering_reply_that_is_read_to_its_end_just_ends() -> None:
    model = ScriptedModel([Linger("let go"), Say("one")])
    assert await parts_of(model) == [TextDelta("one"), ModelEnd("end_turn")]
