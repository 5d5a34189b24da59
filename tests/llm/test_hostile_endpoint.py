"""A model endpoint that wants the server's time: what one event, one call or one history may cost."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from kedge.errors import ModelFailed
from kedge.llm.content import tool_input, tool_name
from kedge.llm.openai import _CompletionsReply
from kedge.llm.sse import EVENT_BYTES_MAX, EventParser
from kedge.llm.streaming import CALL_NAME_CHARS_MAX, ENCODED_BYTES_MAX, TOOL_INPUT_CHARS_MAX, TOOL_INPUTS_CHARS_MAX
from kedge.llm.streaming import _encoded as encoded
from kedge.llm.transport import ERROR_BYTES_MAX, TIMEOUT, ProviderEndpoint, error_in
from tests.llm.support import frame


def reply() -> _CompletionsReply:
    return _CompletionsReply(ProviderEndpoint("local", "http://127.0.0.1:1/v1", None, TIMEOUT), "m")


def fed(*events: bytes) -> _CompletionsReply:
    made = reply()
    for event in events:
        assert list(made.feed(event)) == []
    return made


def call(index: int, **function: str) -> dict[str, object]:
    return {"index": index, "id": f"c{index}", "function": function}


@pytest.mark.found(
    "attack round 2: the event loop",
    "an event of 4 MB with a million empty pieces of a tool call took two seconds of the event loop; only as many are "
    "decoded as there may be calls, and more end the reply",
)
def test_pieces_of_calls_in_one_event_are_bounded() -> None:
    pieces = b",".join([b"{}"] * (EVENT_BYTES_MAX // 3 - 100))
    event = b'data: {"choices":[{"delta":{"tool_calls":[' + pieces + b"]}}]}\n\n"
    with pytest.raises(ModelFailed, match="more than 128 tools"):
        list(reply().feed(event))
    assert not fed(b'data: {"choices":[{},' + pieces + b"]}\n\n").finished


@pytest.mark.found(
    "attack round 2: the event loop",
    "an error of 4 MB inside a stream was decoded and walked through three times, more than a second on the event "
    "loop; of a long one only the beginning is read, as text",
)
def test_a_long_error_in_a_stream_is_not_decoded() -> None:
    long = msgspec.Raw(b'{"a":[' + b",".join([b"[]"] * 1_000_000) + b"]}")
    found = error_in(long)
    assert isinstance(found, str)
    assert len(found) == ERROR_BYTES_MAX
    assert error_in(msgspec.Raw(b'{"message": "no"}')) == {"message": "no"}
    assert error_in(msgspec.Raw()) is error_in(msgspec.Raw(b"null")) is None
    with pytest.raises(ModelFailed, match="sent an error in the reply"):
        list(reply().feed(b'data: {"error": ' + bytes(long) + b"}\n\n"))


@pytest.mark.found(
    "attack round 2: the event loop",
    "the name of a called tool had no limit: 4 MB of dots cost every later request of the session 0.7 s on the event "
    "loop; ids and names are cut",
)
def test_names_and_ids_of_calls_are_cut() -> None:
    piece = {"index": 0, "id": "i" * 1_000_000, "function": {"name": "." * 1_000_000, "arguments": "{}"}}
    (made,) = fed(frame("tool_calls", tool_calls=[piece])).model_end().tool_calls
    assert (made.id, made.name) == ("i" * CALL_NAME_CHARS_MAX, "." * CALL_NAME_CHARS_MAX)
    assert tool_name("a." + "b" * 1000) == "a_" + "b" * 62


@pytest.mark.found(
    "attack round 2: the event loop",
    "128 calls of a megabyte each were taken, and parsed again on the event loop for every later request; all inputs "
    "of a reply have one limit, and are checked without being built",
)
def test_inputs_of_all_calls_together_are_bounded() -> None:
    count = TOOL_INPUTS_CHARS_MAX // TOOL_INPUT_CHARS_MAX
    events = [frame(tool_calls=[call(index, name="a", arguments="x" * TOOL_INPUT_CHARS_MAX)]) for index in range(count)]
    made = fed(*events)
    with pytest.raises(ModelFailed, match="characters of tool input"):
        list(made.feed(frame(tool_calls=[call(count, name="a", arguments="x")])))
    assert tool_input('{"a": [1, {"b": nope}]}').startswith('{"malformed"')
    assert tool_input('{"a": [1, {"b": null}]}') == '{"a": [1, {"b": null}]}'
    assert tool_input('["a"]') == '{"malformed":"[\\"a\\"]"}'


@pytest.mark.found(
    "attack round 2: the event loop",
    "a line of thousands of byte order marks made the parser of replies call itself until Python gave up, and the Run "
    "ended as an internal error; one mark is skipped",
)
def test_many_byte_order_marks_are_no_recursion() -> None:
    parser = EventParser()
    assert parser.feed(b"\xef\xbb\xbf" * 20_000 + b"data: x\n\n") == []
    assert parser.feed(b"\xef\xbb\xbfdata: x\n\n") == [b"x"]


@pytest.mark.found(
    "attack round 2: the event loop",
    "a request was encoded in one go: with a history of many megabytes nothing else happened meanwhile; it is encoded "
    "message by message, with pauses",
)
async def test_others_have_their_turn_while_a_request_is_encoded() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * (ENCODED_BYTES_MAX + 1)}] * 20}
    assert await encoded(body) == msgspec.json.encode(body)
    counting.cancel()
    assert turns >= 20
