"""Each rule that the scripted endpoint holds: a valid request with one thing wrong is refused for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kedge.testing.provider_rules import anthropic_refusal, openai_refusal, signature_of

Json = dict[str, Any]
VERSION = {"anthropic-version": "2023-06-01"}


def openai() -> Json:
    def call(call_id: str) -> Json:
        return {"id": call_id, "type": "function", "function": {"name": "ls", "arguments": "{}"}}

    return {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "b", "content": "x"},
            {"role": "tool", "tool_call_id": "a", "content": "y"},
            {"role": "assistant", "content": None, "tool_calls": [call("a")]},
            {"role": "tool", "tool_call_id": "a", "content": ""},
            {"role": "user", "content": "thanks"},
            {"role": "user", "content": [{"type": "text", "text": "more"}]},
        ],
        "tools": [{"type": "function", "function": {"name": "ls"}}],
    }


def anthropic() -> Json:
    def used(call_id: str) -> Json:
        return {"type": "tool_use", "id": call_id, "name": "ls", "input": {}}

    def result(call_id: str) -> Json:
        return {"type": "tool_result", "tool_use_id": call_id, "content": "x"}

    thought = {"type": "thinking", "thinking": "hm", "signature": signature_of("hm")}
    return {
        "model": "m",
        "max_tokens": 4000,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "system": [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [used("a"), used("b")]},
            {"role": "user", "content": [result("b"), result("a"), {"type": "text", "text": "hurry"}]},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "so"}, used("c")]},
            {"role": "user", "content": [result("c")]},
        ],
        "tools": [{"name": "ls", "input_schema": {}}],
    }


def test_what_is_valid_is_not_refused() -> None:
    assert openai_refusal(openai()) is None
    assert anthropic_refusal(anthropic(), VERSION) is None


OPENAI: list[tuple[str, Callable[[Json], object]]] = [
    ("must not be empty", lambda body: body["messages"].clear()),
    ("'b' has no call", lambda body: body["messages"].pop(2)),
    ("have no result: a", lambda body: body["messages"].pop(4)),
    ("have no result: a", lambda body: body["messages"].__delitem__(slice(6, None))),
    ("have no result: a, b", lambda body: body["messages"].insert(3, {"role": "user", "content": "wait"})),
    ("'a' has no call", lambda body: body["messages"].insert(5, body["messages"][4])),
    ("same id", lambda body: body["messages"][2]["tool_calls"][1].update(id="a")),
    ("needs an id", lambda body: body["messages"][2]["tool_calls"][1].update(id="")),
    ("content or tool calls", lambda body: body["messages"].insert(1, {"role": "assistant", "content": None})),
    ("unknown role 'robot'", lambda body: body["messages"][0].update(role="robot")),
    ("content is needed", lambda body: body["messages"][1].update(content=[])),
    ("content of a tool message", lambda body: body["messages"][3].update(content=[{"type": "image_url"}])),
    ("not a valid tool name", lambda body: body["messages"][2]["tool_calls"][0]["function"].update(name="a b")),
    ("are not valid JSON", lambda body: body["messages"][2]["tool_calls"][0]["function"].update(arguments="{")),
    ("must be an object", lambda body: body["messages"][2]["tool_calls"][0]["function"].update(arguments="[]")),
    ("names must be unique", lambda body: body["tools"].append(body["tools"][0])),
    ("not a valid tool name", lambda body: body["tools"][0]["function"].update(name="")),
]


@pytest.mark.parametrize(("says", "spoil"), OPENAI)
def test_openai_refuses(says: str, spoil: Callable[[Json], object]) -> None:
    body = openai()
    spoil(body)
    assert says in (openai_refusal(body) or "")


def image(kind: str, data: str) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def add(index: int, block: Json) -> Callable[[Json], object]:
    return lambda body: body["messages"][index]["content"].append(block)


def change(index: int, at: int, **fields: Any) -> Callable[[Json], object]:
    return lambda body: body["messages"][index]["content"][at].update(fields)


def mark_tools(body: Json) -> None:
    body["tools"] = [{"name": f"t{count}", "cache_control": {}} for count in range(4)]


ANTHROPIC: list[tuple[str, Callable[[Json], object]]] = [
    ("max_tokens: a number", lambda body: body.pop("max_tokens")),
    ("greater than thinking", lambda body: body.update(max_tokens=1024)),
    ("at least 1024", lambda body: body["thinking"].update(budget_tokens=1000)),
    ("at most 4 blocks", mark_tools),
    ("system: text content blocks must be non-empty", lambda body: body["system"][0].update(text=" ")),
    ("first must have the role user", lambda body: body["messages"].clear()),
    ("first must have the role user", lambda body: body["messages"].pop(0)),
    ("second 'user' in a row", lambda body: body["messages"].insert(0, {"role": "user", "content": "x"})),
    ("user or assistant", lambda body: body["messages"].append({"role": "system", "content": "x"})),
    ("content must not be empty", lambda body: body["messages"][0].update(content=[])),
    ("must be non-empty", lambda body: body["messages"][0].update(content="")),
    ("right after them: b", lambda body: body["messages"][2]["content"].pop(0)),
    ("without tool_result after them: c", lambda body: body["messages"].pop()),
    ("without tool_use in the message before: b", lambda body: body["messages"][1]["content"].pop()),
    ("must have one tool_result", add(4, {"type": "tool_result", "tool_use_id": "c", "content": "x"})),
    ("must come first", lambda body: body["messages"][2]["content"].reverse()),
    ("ids must be unique", change(1, 1, id="a")),
    ("ids must be unique", change(3, 2, id="a")),
    ("tool_use.id", change(1, 0, id="a.b")),
    ("tool_use.name", change(1, 0, name="a b")),
    ("tool_use.input", change(1, 0, input="{}")),
    ("is_error must not be empty", change(2, 0, content="", is_error=True)),
    ("must be non-empty", change(2, 0, content=[{"type": "text", "text": ""}])),
    ("invalid signature", change(3, 0, thinking="hm!")),
    ("needs its data", add(3, {"type": "redacted_thinking", "data": ""})),
    ("must begin with a thinking block", lambda body: body["messages"][3]["content"].pop(0)),
    ("not an accepted image type", add(2, image("image/bmp", ""))),
    ("is not valid base64", add(2, image("image/png", "%"))),
    ("unknown block type 'song'", add(2, {"type": "song"})),
    ("names must be unique", lambda body: body["tools"].append(body["tools"][0])),
    (
        "must not end with white space",
        lambda body: body["messages"].append({"role": "assistant", "content": "so "}),
    ),
]


@pytest.mark.parametrize(("says", "spoil"), ANTHROPIC)
def test_anthropic_refuses(says: str, spoil: Callable[[Json], object]) -> None:
    body = anthropic()
    spoil(body)
    assert says in (anthropic_refusal(body, VERSION) or "")


def test_anthropic_refuses_a_request_without_version() -> None:
    assert "anthropic-version" in (anthropic_refusal(anthropic(), {}) or "")


def test_without_thinking_the_thoughts_may_be_missing() -> None:
    body = anthropic()
    del body["thinking"]
    body["messages"][3]["content"].pop(0)
    assert anthropic_refusal(body, VERSION) is None


def test_the_examples_here_are_what_is_sent_over_the_wire() -> None:
    for body in (openai(), anthropic()):
        assert msgspec.json.decode(msgspec.json.encode(body)) == body
