"""Limits on the CPU time that a hostile model endpoint can consume."""

from __future__ import annotations

import msgspec
import pytest

from kedge.errors import ModelFailed
from kedge.llm.content import tool_input, tool_name
from kedge.llm.openai import _CompletionsReply
from kedge.llm.sse import EVENT_BYTES_MAX, EventParser
from kedge.llm.streaming import CALL_NAME_CHARS_MAX, TOOL_INPUT_CHARS_MAX, TOOL_INPUTS_CHARS_MAX
from kedge.llm.streaming import _encoded as encoded
from kedge.llm.transport import ERROR_BYTES_MAX, TIMEOUT, ProviderEndpoint, error_in
from kedge.slices import SLICE_BYTES
from tests.llm.support import DONE, Bench, asking, chunked, frame, parts_of, text_of
from tests.pass_counter import PassCounter


def reply() -> _CompletionsReply:
    return _CompletionsReply(ProviderEndpoint("local", "http://127.0.0.1:1/v1", None, TIMEOUT), "m")


def reply_of(*events: bytes) -> _CompletionsReply:
    parsed = reply()
    for event in events:
        assert list(parsed.feed(event)) == []
    return parsed


def call(index: int, **function: str) -> dict[str, object]:
    return {"index": index, "id": f"c{index}", "function": function}


@pytest.mark.found(
    "attack round 2: the event loop",
    "an event of 4 MB with a million empty pieces of a tool call blocked the event loop for two seconds; decoding "
    "stops at the maximum number of calls, and more pieces end the reply",
)
def test_call_pieces_in_one_event_are_bounded() -> None:
    pieces = b",".join([b"{}"] * (EVENT_BYTES_MAX // 3 - 100))
    event = b'data: {"choices":[{"delta":{"tool_calls":[' + pieces + b"]}}]}\n\n"
    with pytest.raises(ModelFailed, match="more than 128 tools"):
        list(reply().feed(event))
    assert not reply_of(b'data: {"choices":[{},' + pieces + b"]}\n\n").finished


@pytest.mark.found(
    "attack round 2: the event loop",
    "an error of 4 MB inside a stream was decoded and traversed three times, more than a second on the event loop; "
    "only the start of a long error is read, as text",
)
def test_long_error_in_a_stream_is_not_decoded() -> None:
    long = msgspec.Raw(b'{"a":[' + b",".join([b"[]"] * 1_000_000) + b"]}")
    text = error_in(long)
    assert isinstance(text, str)
    assert len(text) == ERROR_BYTES_MAX
    assert error_in(msgspec.Raw(b'{"message": "no"}')) == {"message": "no"}
    assert error_in(msgspec.Raw()) is error_in(msgspec.Raw(b"null")) is None
    with pytest.raises(ModelFailed, match="sent an error in the reply"):
        list(reply().feed(b'data: {"error": ' + bytes(long) + b"}\n\n"))


@pytest.mark.found(
    "attack round 2: the event loop",
    "the name of a called tool had no limit: 4 MB of dots cost every later request of the session 0.7 s on the event "
    "loop; ids and names are truncated",
)
def test_names_and_ids_of_calls_are_truncated() -> None:
    piece = {"index": 0, "id": "i" * 1_000_000, "function": {"name": "." * 1_000_000, "arguments": "{}"}}
    (parsed,) = reply_of(frame("tool_calls", tool_calls=[piece])).model_end().tool_calls
    assert (parsed.id, parsed.name) == ("i" * CALL_NAME_CHARS_MAX, "." * CALL_NAME_CHARS_MAX)
    assert tool_name("a." + "b" * 1000) == "a_" + "b" * 62


@pytest.mark.found(
    "attack round 2: the event loop",
    "128 calls of a megabyte each were accepted, and parsed on the event loop for every later request; the inputs of a "
    "reply share one limit, and are validated without building objects",
)
def test_total_tool_input_is_bounded() -> None:
    count = TOOL_INPUTS_CHARS_MAX // TOOL_INPUT_CHARS_MAX
    events = [frame(tool_calls=[call(index, name="a", arguments="x" * TOOL_INPUT_CHARS_MAX)]) for index in range(count)]
    parsed = reply_of(*events)
    with pytest.raises(ModelFailed, match="characters of tool input"):
        list(parsed.feed(frame(tool_calls=[call(count, name="a", arguments="x")])))
    assert tool_input('{"a": [1, {"b": nope}]}').startswith('{"malformed"')
    assert tool_input('{"a": [1, {"b": null}]}') == '{"a": [1, {"b": null}]}'
    assert tool_input('["a"]') == '{"malformed":"[\\"a\\"]"}'


@pytest.mark.found(
    "attack round 2: the event loop",
    "a line of thousands of byte order marks exceeded the recursion limit in the reply parser, and the Run ended with "
    "an internal error; only one mark is skipped",
)
def test_many_byte_order_marks_do_not_recurse() -> None:
    parser = EventParser()
    assert parser.feed(b"\xef\xbb\xbf" * 20_000 + b"data: x\n\n") == []
    assert parser.feed(b"\xef\xbb\xbfdata: x\n\n") == [b"x"]


@pytest.mark.found(
    "attack round 2: the event loop",
    "a request with a history of many megabytes was encoded in one call, which blocked the event loop; it is now "
    "encoded message by message, and yields in between",
)
async def test_encoding_a_request_yields_to_the_event_loop() -> None:
    passes = PassCounter()
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * (SLICE_BYTES + 1)}] * 20}
    assert await encoded(body) == msgspec.json.encode(body)
    assert passes.stop() >= 20


@pytest.mark.found(
    "fault 21",
    "a model that sent its reply in chunks of one byte held the event loop: 2,000 deltas delayed others by 264 ms; "
    "other tasks get a turn about every hundred chunks",
)
async def test_one_byte_chunks_yield_to_the_event_loop(bench: Bench) -> None:
    body = b"".join(frame(content="x") for _ in range(300)) + frame("stop") + DONE
    model = await bench.raw(chunked(body[index : index + 1] for index in range(len(body))))
    passes = PassCounter()
    assert text_of(await parts_of(model, asking("hi"))) == "x" * 300
    assert passes.stop() > len(body) // 200
