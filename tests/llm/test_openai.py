"""The OpenAI adapter against conforming servers, and against servers that deviate from the format."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from kedge.core.records import Usage
from kedge.core.transcript import ToolCall
from kedge.errors import ModelFailed
from kedge.llm.base import ModelEnd, ReasoningDelta, TextDelta
from kedge.llm.streaming import TOOL_CALLS_MAX, TOOL_INPUT_CHARS_MAX
from kedge.testing import ScriptedEndpoint
from tests.llm.support import DONE, KEY, Bench, asking, chunked, end_of, frame, http, parts_of, text_of


class TestReplies:
    async def test_text_streams_word_by_word_and_the_end_is_last(
        self, bench: Bench, endpoint: ScriptedEndpoint
    ) -> None:
        parts = await parts_of(bench.model(endpoint.url), asking("script: say one two | usage 3 4"))
        assert parts == [TextDelta("one"), TextDelta(" two"), ModelEnd("end_turn", (), Usage(3, 4))]

    async def test_reasoning_is_streamed_as_reasoning(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        parts = await parts_of(bench.model(endpoint.url), asking("script: think hm hm | say yes"))
        signature = ReasoningDelta("", "reasoning_content")
        assert parts[:4] == [ReasoningDelta("hm"), ReasoningDelta(" hm"), signature, TextDelta("yes")]

    async def test_reasoning_field_has_an_alternative_name(self, bench: Bench) -> None:
        model = await bench.raw(chunked([frame(reasoning="hm"), frame("stop", content="yes"), DONE]))
        assert (await parts_of(model, asking("x")))[:2] == [ReasoningDelta("hm"), TextDelta("yes")]

    async def test_tool_calls_are_assembled_from_pieces(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        script = 'script: say let me look | tool view {"path": "a b"} | tool ls | say never'
        parts = await parts_of(bench.model(endpoint.url), asking(script))
        calls = (ToolCall("call_1_0", "view", '{"path": "a b"}'), ToolCall("call_1_1", "ls", "{}"))
        assert end_of(parts).tool_calls == calls
        assert end_of(parts).reason == "tool_use"
        assert text_of(parts) == "let me look"

    @pytest.mark.parametrize(
        ("finish", "reason"),
        [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "content_filter"), ("eos", "unknown")],
    )
    async def test_finish_reasons_are_mapped(
        self, bench: Bench, endpoint: ScriptedEndpoint, finish: str, reason: str
    ) -> None:
        parts = await parts_of(bench.model(endpoint.url), asking(f"script: say x | finish {finish}"))
        assert end_of(parts).reason == reason

    async def test_five_thousand_words_arrive_complete(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        parts = await parts_of(bench.model(endpoint.url), asking("script: words 5000"))
        assert text_of(parts) == " ".join(f"w{count}" for count in range(1, 5001))

    async def test_split_characters_arrive_complete(self, bench: Bench) -> None:
        stream = frame(content="grüße 👋 日本") + frame("stop") + DONE
        model = await bench.raw(chunked(bytes([byte]) for byte in stream))
        assert text_of(await parts_of(model, asking("x"))) == "grüße 👋 日本"

    async def test_unrequested_compression_is_decoded(self, bench: Bench) -> None:
        body = gzip.compress(frame("stop", content="small") + DONE)
        model = await bench.raw(http(body, more="Content-Encoding: gzip\r\n"))
        assert text_of(await parts_of(model, asking("x"))) == "small"


class TestDeviations:
    """Deviations from the format that are tolerated."""

    @pytest.mark.parametrize(
        "tail", [frame("stop") + DONE, frame("stop"), frame("stop")[:-2], frame("stop") + b"data:"]
    )
    async def test_finish_reason_ends_a_reply(self, bench: Bench, tail: bytes) -> None:
        model = await bench.raw(http(frame(content="hi") + tail))
        assert await parts_of(model, asking("x")) == [TextDelta("hi"), ModelEnd("end_turn")]

    async def test_done_ends_a_reply_without_finish_reason(self, bench: Bench) -> None:
        model = await bench.raw(http(frame(content="hi") + DONE[:-2]))
        assert await parts_of(model, asking("x")) == [TextDelta("hi"), ModelEnd("unknown")]

    async def test_unterminated_body_does_not_delay_the_end(self, bench: Bench) -> None:
        model = await bench.raw(chunked([frame(content="hi"), frame("stop"), DONE], end=False), then="hang")
        assert end_of(await parts_of(model, asking("x"))) == ModelEnd("end_turn")

    async def test_close_after_the_finish_reason_loses_nothing(self, bench: Bench) -> None:
        # A single event, so that the close cannot overtake it in the client's buffers.
        model = await bench.raw(chunked([frame("stop", content="hi")], end=False))
        assert await parts_of(model, asking("x")) == [TextDelta("hi"), ModelEnd("end_turn")]

    async def test_usage_is_accepted_in_any_event(self, bench: Bench) -> None:
        usage = b'data: {"usage":{"prompt_tokens":7,"completion_tokens":null}}\n\n'
        model = await bench.raw(chunked([frame("stop", content="hi"), usage, DONE]))
        assert end_of(await parts_of(model, asking("x"))).usage == Usage(7, 0)

    async def test_nulls_and_unknown_fields_are_ignored(self, bench: Bench) -> None:
        empty = b'data: {"choices":null,"usage":null,"error":null,"new":[1]}\n\n'
        nulls = frame(content=None, tool_calls=None, reasoning_content=None, role="assistant", refusal=None)
        model = await bench.raw(chunked([empty, nulls, frame("stop", content="hi"), DONE]))
        assert await parts_of(model, asking("x")) == [TextDelta("hi"), ModelEnd("end_turn")]

    async def test_tool_calls_that_end_with_stop_are_tool_use(self, bench: Bench) -> None:
        call = {"index": 0, "id": "a", "function": {"name": "ls", "arguments": "{}"}}
        model = await bench.raw(chunked([frame("stop", tool_calls=[call]), DONE]))
        assert end_of(await parts_of(model, asking("x"))) == ModelEnd("tool_use", (ToolCall("a", "ls", "{}"),))

    async def test_tool_use_without_a_call_is_not_tool_use(self, bench: Bench) -> None:
        model = await bench.raw(chunked([frame("tool_calls"), DONE]))
        assert end_of(await parts_of(model, asking("x"))) == ModelEnd("unknown")

    async def test_truncated_call_is_dropped(self, bench: Bench) -> None:
        call = {"index": 0, "id": "a", "function": {"name": "rm", "arguments": '{"path": "/ho'}}
        model = await bench.raw(chunked([frame("length", tool_calls=[call]), DONE]))
        assert end_of(await parts_of(model, asking("x"))) == ModelEnd("max_tokens")

    @pytest.mark.parametrize("index", [{}, {"index": None}, {"index": 0}])
    async def test_calls_without_index_are_distinguished_by_id(
        self, bench: Bench, index: dict[str, int | None]
    ) -> None:
        frames = [
            frame(tool_calls=[{**index, "id": "a", "function": {"name": "ls", "arguments": '{"x"'}}]),
            frame(tool_calls=[{**index, "function": {"arguments": ":1}"}}]),
            frame(tool_calls=[{**index, "id": "b", "function": {"name": "ls", "arguments": "{}"}}]),
        ]
        model = await bench.raw(chunked([*frames, frame("tool_calls"), DONE]))
        calls = end_of(await parts_of(model, asking("x"))).tool_calls
        assert calls == (ToolCall("a", "ls", '{"x":1}'), ToolCall("b", "ls", "{}"))

    async def test_call_without_id_gets_a_unique_one(self, bench: Bench) -> None:
        call = {"index": 0, "function": {"name": "ls", "arguments": "{}"}}
        model = await bench.raw(chunked([frame("tool_calls", tool_calls=[call]), DONE]))
        first, second = [end_of(await parts_of(model, asking("x"))).tool_calls[0].id for _ in range(2)]
        assert first != second


class TestLimits:
    async def test_endless_tool_input_is_refused(self, bench: Bench) -> None:
        piece = frame(tool_calls=[{"index": 0, "id": "a", "function": {"name": "write", "arguments": "x" * 100_000}}])
        model = await bench.raw(chunked([piece] * (TOOL_INPUT_CHARS_MAX // 100_000 + 1)))
        with pytest.raises(ModelFailed, match="characters of input for write"):
            await parts_of(model, asking("x"))

    async def test_endless_tool_calls_are_refused(self, bench: Bench) -> None:
        frames = [frame(tool_calls=[{"index": index, "id": f"c{index}"}]) for index in range(TOOL_CALLS_MAX + 1)]
        model = await bench.raw(chunked(frames))
        with pytest.raises(ModelFailed, match=f"more than {TOOL_CALLS_MAX} tools"):
            await parts_of(model, asking("x"))


class TestClosing:
    """Leaving the stream closes the connection at once, also with a pooled client."""

    async def test_completed_reply_keeps_the_connection_for_the_next(
        self, bench: Bench, endpoint: ScriptedEndpoint
    ) -> None:
        for _ in range(3):
            await parts_of(bench.model(endpoint.url), asking("hello"))
        assert endpoint.connections_count == 1
        assert endpoint.closed_early == 0

    async def test_leaving_a_reply_closes_the_connection(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        async with bench.model(endpoint.url).stream(asking("script: say one two | hang")) as parts:
            async for part in parts:
                assert part == TextDelta("one")
                break
        assert [part async for part in parts] == []
        await endpoint.requests[0].closed.wait()
        assert endpoint.requests[0].closed_early

    async def test_unread_reply_closes_the_connection(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        async with bench.model(endpoint.url).stream(asking("script: say one | hang")):
            pass
        await endpoint.requests[0].closed.wait()
        assert endpoint.requests[0].closed_early

    @pytest.mark.parametrize("script", ["script: hang", "script: say one two three | hang"])
    @pytest.mark.parametrize("cancels", [1, 2, 3])
    async def test_repeated_cancel_closes_the_connection(
        self, bench: Bench, endpoint: ScriptedEndpoint, script: str, cancels: int
    ) -> None:
        task = asyncio.create_task(parts_of(bench.model(endpoint.url), asking(script)))
        await endpoint.wait_open(1)
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        await endpoint.requests[0].closed.wait()
        assert endpoint.requests[0].closed_early

    async def test_error_of_the_caller_is_not_blamed_on_the_provider(
        self, bench: Bench, endpoint: ScriptedEndpoint
    ) -> None:
        with pytest.raises(ZeroDivisionError):
            async with bench.model(endpoint.url).stream(asking("script: say one | hang")):
                raise ZeroDivisionError
        await endpoint.requests[0].closed.wait()

    async def test_two_hundred_streams_run_concurrently(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        model = bench.model(endpoint.url)
        task = [asyncio.create_task(parts_of(model, asking("script: say x | hold all"))) for _ in range(200)]
        await endpoint.wait_open(200)
        endpoint.release("all")
        assert {text_of(parts) for parts in await asyncio.gather(*task)} == {"x"}


async def test_key_is_sent_as_a_bearer_token_if_set(bench: Bench, endpoint: ScriptedEndpoint) -> None:
    await parts_of(bench.model(endpoint.url), asking("x"))
    await parts_of(bench.model(endpoint.url, key=None), asking("x"))
    assert endpoint.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert "authorization" not in endpoint.requests[1].headers
