"""Requests to OpenAI-compatible endpoints, read back from a real request."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kedge.core.transcript import (
    Binary,
    FinishPart,
    ImageUrl,
    Message,
    Reasoning,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
)
from kedge.errors import ModelFailed
from kedge.llm.base import ToolSpec
from kedge.testing import ScriptedEndpoint
from tests.llm.support import Bench, asking, message, parts_of


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


PDF = Binary("a.pdf", "application/pdf", encoded(b"%PDF\xff\xfe"))


@pytest.fixture
def sent(bench: Bench, endpoint: ScriptedEndpoint) -> Any:
    async def send(*messages: Message | str, **more: Any) -> dict[str, Any]:
        await parts_of(bench.model(endpoint.url), asking(*messages, **more))
        return endpoint.requests[-1].body

    return send


async def test_request_has_stream_with_usage(sent: Any) -> None:
    assert await sent("hello") == {
        "model": "fake-large",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_effort_is_sent_if_set(sent: Any) -> None:
    assert (await sent("hello", effort="high"))["reasoning_effort"] == "high"


async def test_conversation_keeps_its_order(sent: Any) -> None:
    body = await sent(
        message("user", "look"),
        message(
            "assistant", Reasoning("hm"), "let me see", ToolCall("c1", "view", '{"p": 1}'), ToolCall("c2", "ls", "")
        ),
        message("tool", ToolResult("c1", "view", "text of p"), ToolResult("c2", "ls", "failed", is_error=True)),
        message("assistant", "it says so", FinishPart("end_turn", 1)),
        message("system", "be brief"),
        message("user", "thanks"),
        system="You are kind.",
    )
    assert body["messages"] == [
        {"role": "system", "content": "You are kind."},
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "view", "arguments": '{"p": 1}'}},
                {"id": "c2", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "text of p"},
        {"role": "tool", "tool_call_id": "c2", "content": "failed"},
        {"role": "assistant", "content": "it says so"},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "thanks"},
    ]


async def test_calls_without_text_have_no_content(sent: Any) -> None:
    body = await sent(
        "go", message("assistant", ToolCall("c", "ls", "{}")), message("tool", ToolResult("c", "ls", "x"))
    )
    assert body["messages"][1]["content"] is None


@pytest.mark.parametrize("wrong", ['{"path": "x', "[1]", "plain", "[" * 50_000])
async def test_malformed_input_is_sent_back_as_an_object(sent: Any, wrong: str) -> None:
    body = await sent(
        "go", message("assistant", ToolCall("c", "ls", wrong)), message("tool", ToolResult("c", "ls", "x"))
    )
    arguments = body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert arguments.startswith('{"malformed":')


async def test_reasoning_is_sent_back_with_its_tool_calls(sent: Any) -> None:
    """It is sent only to its own provider, under its original field name: others refuse it."""
    call = ToolCall("c1", "ls", "{}")
    result = message("tool", ToolResult("c1", "ls", "a"))
    for provider, signature, expected in (
        ("local", "reasoning_content", "hm"),
        ("local", "", None),
        ("other", "reasoning_content", None),
    ):
        thought = Reasoning("hm", signature)
        body = await sent("go", message("assistant", thought, call, provider=provider), result)
        assert body["messages"][1].get("reasoning_content") == expected
    body = await sent("go", message("assistant", Reasoning("hm", "reasoning_content"), "yes", provider="local"), "on")
    assert "reasoning_content" not in body["messages"][1], "it is not needed without calls"


async def test_tools_are_described_with_their_schema(sent: Any) -> None:
    body = await sent("go", tools=(ToolSpec("ls", "Lists files.", '{"type": "object", "properties": {}}'),))
    function = {"name": "ls", "description": "Lists files.", "parameters": {"type": "object", "properties": {}}}
    assert body["tools"] == [{"type": "function", "function": function}]


async def test_images_are_sent_as_data_and_text_files_as_text(sent: Any) -> None:
    image = Binary("a.png", "image/png", encoded(b"\x89PNG"))
    file = Binary("src/a.py", "text/x-python", encoded("print('é')".encode()))
    body = await sent(message("user", "what is this?", image, file, ImageUrl("https://x/y.png", "low")))
    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        {"type": "text", "text": "File src/a.py:\n\nprint('é')"},
        {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
    ]


async def test_unsupported_image_is_text_or_refused(sent: Any) -> None:
    drawing = Binary("a.svg", "image/svg+xml", encoded(b"<svg/>"))
    body = await sent(message("user", "what is this?", drawing))
    assert body["messages"][0]["content"] == "what is this?\n\nFile a.svg:\n\n<svg/>"
    picture = Binary("a.bmp", "image/bmp", encoded(b"BM\xff\xfe"))
    with pytest.raises(ModelFailed, match=r"a\.bmp \(image/bmp\)"):
        await sent(message("user", "what is this?", picture))
    body = await sent(message("user", "what is this?", picture), message("user", "never mind"))
    assert "image_url" not in str(body)


async def test_text_alone_is_sent_as_plain_text(sent: Any) -> None:
    body = await sent(message("user", "see", Binary("a.txt", "", encoded(b"abc")), ShellCommand("ls", "a.txt", 0)))
    expected = "see\n\nFile a.txt:\n\nabc\n\nI ran this command:\n$ ls\na.txt\n(exit code 0)"
    assert body["messages"][0]["content"] == expected


async def test_unsupported_file_is_refused_in_the_newest_prompt(bench: Bench, endpoint: ScriptedEndpoint) -> None:
    with pytest.raises(ModelFailed, match=r"a.pdf \(application/pdf\) is neither text nor an image.*remove it"):
        await parts_of(bench.model(endpoint.url), asking(message("user", "sum up", PDF)))
    assert endpoint.requests_count == 0


async def test_unsupported_file_in_an_older_prompt_is_noted(sent: Any) -> None:
    body = await sent(message("user", "sum up", PDF), "go on without it")
    assert "[a.pdf (application/pdf) is neither text nor an image" in body["messages"][0]["content"]


async def test_invalid_base64_is_refused(bench: Bench, endpoint: ScriptedEndpoint) -> None:
    with pytest.raises(ModelFailed, match="neither text nor an image"):
        await parts_of(bench.model(endpoint.url), asking(message("user", Binary("a", "text/plain", "%%%"))))


async def test_lone_surrogates_do_not_stop_a_request(sent: Any) -> None:
    body = await sent(
        message("user", Text("a\ud800b")),
        message("assistant", "c\udfffd", ToolCall("c", "ls", '{"x": "\ud800"}')),
        message("tool", ToolResult("c", "ls", "\ud800")),
        system="\ud800",
    )
    assert [found["content"] for found in body["messages"]] == ["?", "a?b", "c?d", "?"]


async def test_tool_images_follow_all_results_of_the_step(sent: Any) -> None:
    png = "data:image/png;base64,iVBORw=="
    body = await sent(
        "go",
        message("assistant", ToolCall("c", "view", "{}"), ToolCall("d", "ls", "{}"), ToolCall("e", "view", "{}")),
        message(
            "tool",
            ToolResult("c", "view", "a.png", images=(png,)),
            ToolResult("d", "ls", "x"),
            ToolResult("e", "view", "b.png", images=(png, png)),
        ),
    )
    assert [found["role"] for found in body["messages"]] == ["user", "assistant", "tool", "tool", "tool", "user"]
    image = {"type": "image_url", "image_url": {"url": png}}
    assert body["messages"][-1]["content"] == [
        {"type": "text", "text": "Image from tool call c:"},
        image,
        {"type": "text", "text": "Image from tool call e:"},
        image,
        image,
    ]


async def test_invalid_tool_name_is_replaced(sent: Any) -> None:
    body = await sent(
        "go", message("assistant", ToolCall("c", "do it!", "{}")), message("tool", ToolResult("c", "", ""))
    )
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == "do_it_"


async def test_token_limit_is_sent_only_if_set(sent: Any) -> None:
    assert "max_tokens" not in await sent("hello")
    assert (await sent("hello", output_tokens_max=500))["max_tokens"] == 500
