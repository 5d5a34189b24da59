"""The Anthropic adapter against the scripted endpoint, and against servers that deviate from the format."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from kedge.core.records import Usage
from kedge.core.transcript import ToolCall
from kedge.errors import ModelFailed
from kedge.llm.anthropic import SIGNATURE_CHARS_MAX
from kedge.llm.base import REDACTED, ModelEnd, ReasoningDelta, TextDelta
from kedge.llm.sse import EVENT_BYTES_MAX
from kedge.llm.streaming import TOOL_CALLS_MAX, TOOL_INPUT_CHARS_MAX
from kedge.testing import ScriptedEndpoint
from kedge.testing.provider_rules import signature_of
from tests.llm.support import (
    KEY,
    START,
    Bench,
    asking,
    block,
    chunked,
    end_of,
    ending,
    event,
    failed,
    http,
    parts_of,
    text_block,
    text_of,
)


def call_block(index: int, *pieces: str, **start: Any) -> bytes:
    head = {"type": "tool_use", "id": f"toolu_{index}", "name": "ls", "input": {}, **start}
    return block(index, head, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


class TestReplies:
    async def test_text_streams_word_by_word_and_the_end_is_last(
        self, bench: Bench, endpoint: ScriptedEndpoint
    ) -> None:
        parts = await parts_of(bench.claude(endpoint.url), asking("script: say one two | usage 3 4"))
        assert parts == [TextDelta("one"), TextDelta(" two"), ModelEnd("end_turn", (), Usage(3, 4))]

    async def test_reasoning_ends_with_its_signature(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        parts = await parts_of(bench.claude(endpoint.url), asking("script: think hm hm | redact xyz | say yes"))
        assert parts[:5] == [
            ReasoningDelta("hm"),
            ReasoningDelta(" hm"),
            ReasoningDelta("", signature_of("hm hm")),
            ReasoningDelta("", REDACTED + "xyz"),
            TextDelta("yes"),
        ]

    async def test_signature_is_assembled_from_pieces(self, bench: Bench) -> None:
        pieces = [{"type": "signature_delta", "signature": piece} for piece in ("ab", "cd")]
        thought = block(0, {"type": "thinking", "thinking": "hm", "signature": ""}, *pieces)
        model = await bench.raw_claude(chunked([START, thought, ending()]))
        assert (await parts_of(model, asking("x")))[:2] == [ReasoningDelta("hm"), ReasoningDelta("", "abcd")]

    async def test_tool_calls_are_assembled_from_pieces(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        script = 'script: say let me look | tool view {"path": "a b"} | tool ls | say never'
        parts = await parts_of(bench.claude(endpoint.url), asking(script))
        calls = (ToolCall("toolu_1_0", "view", '{"path": "a b"}'), ToolCall("toolu_1_1", "ls", "{}"))
        assert end_of(parts).tool_calls == calls
        assert end_of(parts).reason == "tool_use"
        assert text_of(parts) == "let me look"

    async def test_invalid_json_input_is_passed_on_unchanged(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        parts = await parts_of(bench.claude(endpoint.url), asking('script: tool view {"path": | say never'))
        assert end_of(parts).tool_calls[0].input == '{"path":'

    @pytest.mark.parametrize(
        ("finish", "reason"),
        [
            ("end_turn", "end_turn"),
            ("stop_sequence", "end_turn"),
            ("max_tokens", "max_tokens"),
            ("model_context_window_exceeded", "max_tokens"),
            ("refusal", "content_filter"),
            ("pause_turn", "unknown"),
            ("something_new", "unknown"),
        ],
    )
    async def test_stop_reasons_are_mapped(
        self, bench: Bench, endpoint: ScriptedEndpoint, finish: str, reason: str
    ) -> None:
        parts = await parts_of(bench.claude(endpoint.url), asking(f"script: say x | finish {finish}"))
        assert end_of(parts).reason == reason

    async def test_cached_tokens_are_part_of_the_input(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        parts = await parts_of(bench.claude(endpoint.url), asking("script: say x | usage 100 5 60 30"))
        assert end_of(parts).usage == Usage(100, 5, cache_read_tokens=60, cache_write_tokens=30)
        assert endpoint.requests[0].number == 1

    async def test_openai_reports_cached_tokens_too(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        parts = await parts_of(bench.model(endpoint.url), asking("script: say x | usage 100 5 60"))
        assert end_of(parts).usage == Usage(100, 5, cache_read_tokens=60)

    async def test_five_thousand_words_arrive_complete(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        parts = await parts_of(bench.claude(endpoint.url), asking("script: words 5000"))
        assert text_of(parts) == " ".join(f"w{count}" for count in range(1, 5001))

    async def test_split_characters_arrive_complete(self, bench: Bench) -> None:
        stream = START + text_block(0, "grüße 👋 日本") + ending()
        model = await bench.raw_claude(chunked(bytes([byte]) for byte in stream))
        assert text_of(await parts_of(model, asking("x"))) == "grüße 👋 日本"


class TestDeviations:
    @pytest.mark.parametrize("tail", [b"", event("message_stop"), event("message_stop")[:-2], b": bye\n\n"])
    async def test_stop_reason_ends_a_reply(self, bench: Bench, tail: bytes) -> None:
        end = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3})
        model = await bench.raw_claude(http(START + text_block(0, "hi") + end + tail))
        assert await parts_of(model, asking("x")) == [TextDelta("hi"), ModelEnd("end_turn", (), Usage(7, 3))]

    async def test_message_stop_ends_a_reply_without_stop_reason(self, bench: Bench) -> None:
        model = await bench.raw_claude(http(START + text_block(0, "hi") + event("message_stop")))
        assert end_of(await parts_of(model, asking("x"))).reason == "unknown"

    async def test_unterminated_body_does_not_delay_the_end(self, bench: Bench) -> None:
        model = await bench.raw_claude(chunked([START, text_block(0, "hi"), ending()], end=False), then="hang")
        assert end_of(await parts_of(model, asking("x"))).reason == "end_turn"

    async def test_unknown_events_and_blocks_are_skipped(self, bench: Bench) -> None:
        server_tool = block(
            0,
            {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}},
            {"type": "input_json_delta", "partial_json": "{}"},
            {"type": "citations_delta", "citation": {}},
        )
        new = event("sparkle", sparkles=[1]) + event("ping")
        model = await bench.raw_claude(chunked([START, new, server_tool, text_block(1, "hi"), ending()]))
        assert await parts_of(model, asking("x")) == [TextDelta("hi"), ModelEnd("end_turn", (), Usage(7))]

    async def test_complete_input_in_the_start_event_is_used(self, bench: Bench) -> None:
        model = await bench.raw_claude(chunked([START, call_block(0, input={"a": 1}), ending("tool_use")]))
        assert end_of(await parts_of(model, asking("x"))).tool_calls == (ToolCall("toolu_0", "ls", '{"a":1}'),)

    async def test_interleaved_blocks_are_distinguished_by_index(self, bench: Bench) -> None:
        def piece(index: int, text: str) -> bytes:
            return event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": text})

        starts = [
            event(
                "content_block_start", index=index, content_block={"type": "tool_use", "id": f"t{index}", "name": "ls"}
            )
            for index in (1, 2)
        ]
        pieces = [piece(1, '{"a"'), piece(2, '{"b"'), piece(1, ":1}"), piece(2, ":2}")]
        model = await bench.raw_claude(chunked([START, *starts, *pieces, ending("tool_use")]))
        calls = end_of(await parts_of(model, asking("x"))).tool_calls
        assert [call.input for call in calls] == ['{"a":1}', '{"b":2}']

    async def test_truncated_call_is_dropped(self, bench: Bench) -> None:
        model = await bench.raw_claude(chunked([START, call_block(0, '{"path": "/ho'), ending("max_tokens")]))
        assert end_of(await parts_of(model, asking("x"))) == ModelEnd("max_tokens", (), Usage(7))

    async def test_call_without_id_gets_one(self, bench: Bench) -> None:
        model = await bench.raw_claude(chunked([START, call_block(0, "{}", id=None), ending("tool_use")]))
        assert end_of(await parts_of(model, asking("x"))).tool_calls[0].id


class TestLimits:
    async def test_endless_tool_input_is_refused(self, bench: Bench) -> None:
        pieces = ["x" * 100_000] * (TOOL_INPUT_CHARS_MAX // 100_000 + 1)
        assert "characters of input for ls" in str(
            await failed(await bench.raw_claude(chunked([START, call_block(0, *pieces)])), asking("x"))
        )

    async def test_endless_tool_calls_are_refused(self, bench: Bench) -> None:
        calls = [call_block(index) for index in range(TOOL_CALLS_MAX + 1)]
        assert f"more than {TOOL_CALLS_MAX} tools" in str(
            await failed(await bench.raw_claude(chunked([START, *calls])), asking("x"))
        )

    async def test_endless_signature_is_refused(self, bench: Bench) -> None:
        pieces = [{"type": "signature_delta", "signature": "x" * 100_000}] * (SIGNATURE_CHARS_MAX // 100_000 + 1)
        model = await bench.raw_claude(chunked([START, block(0, {"type": "thinking"}, *pieces)]))
        assert "sent a signature of more than" in str(await failed(model, asking("x")))

    async def test_endless_event_is_refused(self, bench: Bench) -> None:
        pieces = [b"data: ", *([b"x" * 65536] * (EVENT_BYTES_MAX // 65536 + 1))]
        model = await bench.raw_claude(chunked(pieces), then="hang")
        assert f"an event of more than {EVENT_BYTES_MAX} bytes" in str(await failed(model, asking("x")))


class TestFaults:
    @pytest.mark.parametrize("rest", [b"", event("message_stop")[:-20], event("ping")])
    async def test_incomplete_reply_is_a_retryable_failure(self, bench: Bench, rest: bytes) -> None:
        error = await failed(await bench.raw_claude(http(START + text_block(0, "hi") + rest)), asking("x"))
        assert str(error) == "Provider claude ended its reply before it was complete; try again."
        assert error.retryable

    @pytest.mark.parametrize("data", [b"{not json", b"[]", b"{}", b'{"choices": []}', b'{"type": 5}', b"[" * 50_000])
    async def test_invalid_event_is_a_failure(self, bench: Bench, data: bytes) -> None:
        error = await failed(await bench.raw_claude(chunked([START, b"data: " + data + b"\n\n"])), asking("x"))
        assert "sent an invalid event of a messages stream" in str(error)
        assert not error.retryable

    async def test_text_before_a_fault_is_passed_on(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        for script in ("cut", "fail 529 busy", "garbage"):
            received = []
            with suppress(ModelFailed):
                async with bench.claude(endpoint.url).stream(asking(f"script: say hi | {script}")) as parts:
                    async for part in parts:
                        received.append(part)
            assert received == [TextDelta("hi")]

    async def test_silence_times_out(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        model = bench.claude(endpoint.url, timeout=httpx2.Timeout(5, read=0.02))
        error = await failed(model, asking("script: head | hang"))
        assert "sent nothing for 0.02 s; try again" in str(error)
        assert error.retryable
        await endpoint.requests[0].closed.wait()


class TestClosing:
    async def test_completed_reply_keeps_the_connection_for_the_next(
        self, bench: Bench, endpoint: ScriptedEndpoint
    ) -> None:
        for _ in range(3):
            await parts_of(bench.claude(endpoint.url), asking("hello"))
        assert endpoint.connections_count == 1
        assert endpoint.closed_early == 0

    @pytest.mark.parametrize("script", ["script: hang", "script: think one two three | hang"])
    async def test_cancel_closes_the_connection(self, bench: Bench, endpoint: ScriptedEndpoint, script: str) -> None:
        task = asyncio.create_task(parts_of(bench.claude(endpoint.url), asking(script)))
        await endpoint.wait_open(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await endpoint.requests[0].closed.wait()
        assert endpoint.requests[0].closed_early


async def test_key_and_api_version_are_sent_as_headers(bench: Bench, endpoint: ScriptedEndpoint) -> None:
    await parts_of(bench.claude(endpoint.url), asking("x"))
    await parts_of(bench.claude(endpoint.url, key=None), asking("x"))
    first, second = endpoint.requests
    assert (first.headers["x-api-key"], first.headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert "authorization" not in first.headers
    assert "x-api-key" not in second.headers


@pytest.mark.parametrize("path", ["", "/some/where"])
@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
async def test_address_works_with_and_without_the_version(
    bench: Bench, endpoint: ScriptedEndpoint, path: str, ending: str
) -> None:
    await parts_of(bench.claude(f"{endpoint.origin}{path}{ending}"), asking("x"))
    assert endpoint.requests[0].path == f"{path}/v1/messages"
