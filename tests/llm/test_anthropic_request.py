"""Requests to Anthropic, read back from an endpoint that applies the provider's validation."""

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
    for_model,
)
from kedge.errors import ModelFailed
from kedge.llm.anthropic_request import GO_ON, LEFT_OUT, OUTPUT_TOKENS_DEFAULT, THINKING_TOKENS_MIN
from kedge.llm.base import REDACTED, ModelRequest, ReasoningDelta, ToolSpec
from kedge.llm.content import NO_IMAGES, NO_OUTPUT
from kedge.testing import ScriptedEndpoint
from kedge.testing.provider_rules import signature_of
from tests.llm.support import Bench, asking, end_of, failed, message, parts_of, text_of

PNG = "data:image/png;base64,iVBORw=="
LS = ToolSpec("ls", "Lists files.", '{"type": "object", "properties": {}}')


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def signed_reasoning(text: str) -> Reasoning:
    return Reasoning(text, signature_of(text))


@pytest.fixture
def sent(bench: Bench, endpoint: ScriptedEndpoint) -> Any:
    async def send(*messages: Message | str, model: str = "fake-large", **more: Any) -> dict[str, Any]:
        request = asking(*messages, **more)
        request = ModelRequest(model, request.messages, **more)
        await parts_of(bench.claude(endpoint.url), request)
        return endpoint.requests[-1].body

    return send


def bare(body: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The messages without cache breakpoints."""
    return [
        (sent["role"], [{key: block[key] for key in block if key != "cache_control"} for block in sent["content"]])
        for sent in body["messages"]
    ]


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


async def test_request_has_stream_and_token_limit(sent: Any) -> None:
    assert await sent("hello") == {
        "model": "fake-large",
        "max_tokens": OUTPUT_TOKENS_DEFAULT,
        "messages": [
            {"role": "user", "content": [{**text_part("hello"), "cache_control": {"type": "ephemeral"}}]},
        ],
        "stream": True,
    }


async def test_conversation_keeps_its_order(sent: Any) -> None:
    body = await sent(
        message("user", "look"),
        message(
            "assistant",
            signed_reasoning("hm"),
            Reasoning("", f"{REDACTED}xyz"),
            "let me see \n",
            ToolCall("c1", "view", '{"p": 1}'),
            ToolCall("c2", "ls", ""),
            provider="claude",
        ),
        message("tool", ToolResult("c1", "view", "text of p"), ToolResult("c2", "ls", "failed", is_error=True)),
        message("user", "and hurry"),
        message("assistant", "it says so", FinishPart("end_turn", 1)),
        message("system", "be brief"),
        message("user", "thanks"),
        system="You are kind.",
        tools=(LS,),
    )
    assert bare(body) == [
        ("user", [text_part("look")]),
        (
            "assistant",
            [
                {"type": "thinking", "thinking": "hm", "signature": signature_of("hm")},
                {"type": "redacted_thinking", "data": "xyz"},
                text_part("let me see"),
                {"type": "tool_use", "id": "c1", "name": "view", "input": {"p": 1}},
                {"type": "tool_use", "id": "c2", "name": "ls", "input": {}},
            ],
        ),
        (
            "user",
            [
                {"type": "tool_result", "tool_use_id": "c1", "content": "text of p"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "failed", "is_error": True},
                text_part("and hurry"),
            ],
        ),
        ("assistant", [text_part("it says so")]),
        ("user", [text_part("thanks")]),
    ]
    assert [block["text"] for block in body["system"]] == ["You are kind.", "be brief"]
    assert body["tools"][0]["input_schema"] == {"type": "object", "properties": {}}


async def test_cache_has_at_most_four_breakpoints(sent: Any) -> None:
    body = await sent(
        *(message(role, f"{role} {count}") for count in range(3) for role in ("user", "assistant")),
        "last",
        system="You are kind.",
        tools=(LS, ToolSpec("cat", "", "{}")),
    )
    assert ["cache_control" in tool for tool in body["tools"]] == [False, True]
    assert "cache_control" in body["system"][-1]
    users = [found["content"][-1] for found in body["messages"] if found["role"] == "user"]
    assert ["cache_control" in block for block in users] == [False, False, True, True]


class TestThinking:
    async def test_reasoning_is_sent_back_unchanged(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        """The endpoint refuses changed reasoning, and a tool result without the reasoning before its call."""
        model = bench.claude(endpoint.url)
        history = [message("user", "script: think hm hm | redact xyz | say so | tool ls {} | think ah | say done")]
        parts = await parts_of(model, asking(*history, thinking_tokens=2048))
        deltas = [part for part in parts if isinstance(part, ReasoningDelta)]
        text, signature, sealed = "".join(part.text for part in deltas), deltas[2].signature, deltas[3].signature
        calls = end_of(parts).tool_calls
        history += [
            message(
                "assistant",
                Reasoning(text, signature),
                Reasoning("", sealed),
                text_of(parts),
                *calls,
                provider="claude",
            ),
            message("tool", ToolResult(calls[0].id, "ls", "a file")),
        ]
        assert text_of(await parts_of(model, asking(*history, thinking_tokens=2048))) == "done"
        assert endpoint.requests[-1].body["thinking"] == {"type": "enabled", "budget_tokens": 2048}
        changed = [
            history[0],
            message("assistant", Reasoning("other", signature), *calls, provider="claude"),
            history[2],
        ]
        assert "invalid signature" in str(await failed(model, asking(*changed, thinking_tokens=2048)))

    @pytest.mark.parametrize("signed_by", ["openai", ""])
    async def test_reasoning_is_not_sent_to_other_providers(self, sent: Any, signed_by: str) -> None:
        body = await sent("go", message("assistant", signed_reasoning("hm"), "so", provider=signed_by), "on")
        assert bare(body)[1] == ("assistant", [text_part("so")])

    async def test_reasoning_without_signature_is_omitted(self, sent: Any) -> None:
        body = await sent("go", message("assistant", Reasoning("hm"), "so", provider="claude"), "on")
        assert bare(body)[1] == ("assistant", [text_part("so")])

    async def test_message_of_reasoning_only_is_omitted(self, sent: Any) -> None:
        body = await sent("go", message("assistant", signed_reasoning("hm"), provider="claude"), "on")
        assert bare(body) == [("user", [text_part("go"), text_part("on")])]

    async def test_thinking_is_off_after_tool_calls_without_reasoning(self, sent: Any) -> None:
        history = ("go", message("assistant", ToolCall("c", "ls", "{}")), message("tool", ToolResult("c", "ls", "x")))
        assert "thinking" not in await sent(*history, thinking_tokens=2048)
        assert "thinking" in await sent(*history, message("assistant", "done"), "next", thinking_tokens=2048)

    @pytest.mark.parametrize(
        ("thinking", "output", "budget", "limit"),
        [
            (2048, None, 2048, OUTPUT_TOKENS_DEFAULT + 2048),
            (2048, 8000, 2048, 8000),
            (32000, 8000, 6976, 8000),
            (2048, 2000, None, 2000),
            (500, None, None, OUTPUT_TOKENS_DEFAULT + 500),
        ],
    )
    async def test_thinking_budget_stays_below_the_limit(
        self, sent: Any, thinking: int, output: int | None, budget: int | None, limit: int
    ) -> None:
        body = await sent("go", thinking_tokens=thinking, output_tokens_max=output)
        assert body.get("thinking", {}).get("budget_tokens") == budget
        assert body["max_tokens"] == limit

    @pytest.mark.parametrize(
        ("model", "kind"),
        [
            ("claude-3-7-sonnet-20250219", "enabled"),
            ("claude-sonnet-4-20250514", "enabled"),
            ("claude-opus-4-1-20250805", "enabled"),
            ("claude-haiku-4-5", "enabled"),
            ("anthropic/claude-sonnet-4.5", "enabled"),
            ("kimi-k2", "enabled"),
            ("claude-opus-4-6", "adaptive"),
            ("claude-sonnet-4-6", "adaptive"),
            ("claude-opus-4-10", "adaptive"),
            ("claude-opus-5", "adaptive"),
            ("claude-fable-5", "adaptive"),
        ],
    )
    async def test_newer_models_choose_their_thinking_budget(self, sent: Any, model: str, kind: str) -> None:
        assert (await sent("go", model=model, thinking_tokens=2048))["thinking"]["type"] == kind

    @pytest.mark.parametrize(
        ("effort", "output", "budget", "limit"),
        [
            ("low", None, THINKING_TOKENS_MIN, OUTPUT_TOKENS_DEFAULT + THINKING_TOKENS_MIN),
            ("medium", 64_000, 16_000, 64_000),
            ("high", 64_000, 32_000, 64_000),
            ("high", 2048, THINKING_TOKENS_MIN, 2048),
            ("high", 2000, None, 2000),
        ],
    )
    async def test_effort_is_a_share_of_the_output_limit(
        self, sent: Any, effort: str, output: int | None, budget: int | None, limit: int
    ) -> None:
        body = await sent("go", effort=effort, thinking_tokens=3000, output_tokens_max=output)
        assert body.get("thinking", {}).get("budget_tokens") == budget
        assert body["max_tokens"] == limit

    async def test_newer_models_receive_the_effort_itself(self, sent: Any) -> None:
        body = await sent("go", model="claude-opus-4-6", effort="high")
        assert (body["thinking"]["type"], body["output_config"]) == ("adaptive", {"effort": "high"})
        assert "output_config" not in await sent("go", model="claude-opus-4-6", thinking_tokens=2048)


class TestForeignTranscripts:
    """Sessions started with another provider, or interrupted; the endpoint refuses invalid requests."""

    @pytest.mark.parametrize("call_id", ["functions.ls:0", "call|1", "", "a" * 65, "ü", "\ud800"])
    async def test_invalid_ids_are_replaced_deterministically(self, sent: Any, call_id: str) -> None:
        history = (
            "go",
            message("assistant", ToolCall(call_id, "ls", "{}"), ToolCall("good-1", "ls", "{}")),
            message("tool", ToolResult(call_id, "ls", "x"), ToolResult("good-1", "ls", "y")),
        )
        first, second = await sent(*history), await sent(*history)
        assert first == second
        results = bare(first)[2][1]
        assert [block["content"] for block in results] == ["x", "y"]
        assert results[1]["tool_use_id"] == "good-1"

    async def test_ids_reused_in_the_next_step_are_made_unique(self, sent: Any) -> None:
        step = (message("assistant", ToolCall("0", "ls", "{}")), message("tool", ToolResult("0", "ls", "x")))
        body = await sent("go", *step, *step, *step)
        ids = [block["id"] for _, blocks in bare(body) for block in blocks if block["type"] == "tool_use"]
        assert len(set(ids)) == 3
        assert ids[0] == "0"

    async def test_two_calls_with_one_id_are_answered_in_order(self, sent: Any) -> None:
        body = await sent(
            "go",
            message("assistant", ToolCall("0", "a", "{}"), ToolCall("0", "b", "{}")),
            message("tool", ToolResult("0", "a", "x"), ToolResult("0", "b", "y")),
        )
        calls, results = bare(body)[1][1], bare(body)[2][1]
        assert [call["id"] for call in calls] == [result["tool_use_id"] for result in results]

    @pytest.mark.parametrize(("name", "is_sent"), [("do it!", "do_it_"), ("", "unknown"), ("a" * 100, "a" * 64)])
    async def test_invalid_tool_names_are_replaced(self, sent: Any, name: str, is_sent: str) -> None:
        body = await sent(
            "go",
            message("assistant", ToolCall("c", name, "{}")),
            message("tool", ToolResult("c", name, "none")),
        )
        assert bare(body)[1][1][0]["name"] == is_sent

    @pytest.mark.parametrize("wrong", ['{"path": "x', "[1]", "plain", "[" * 50_000])
    async def test_malformed_input_is_sent_back_as_an_object(self, sent: Any, wrong: str) -> None:
        body = await sent(
            "go", message("assistant", ToolCall("c", "ls", wrong)), message("tool", ToolResult("c", "ls", "x"))
        )
        assert bare(body)[1][1][0]["input"] == {"malformed": wrong}

    async def test_unanswered_prompts_are_merged(self, sent: Any) -> None:
        assert bare(await sent("one", "two")) == [("user", [text_part("one"), text_part("two")])]

    async def test_transcript_that_starts_with_a_reply_gets_a_prompt(self, sent: Any) -> None:
        body = await sent(message("assistant", "so"), "go on")
        assert bare(body)[0] == ("user", [text_part(LEFT_OUT)])

    async def test_interrupted_reply_is_continued(self, sent: Any) -> None:
        body = await sent("go", message("assistant", "half "), message("assistant", "more "))
        assert bare(body) == [
            ("user", [text_part("go")]),
            ("assistant", [text_part("half")]),
            ("user", [text_part(GO_ON)]),
            ("assistant", [text_part("more")]),
            ("user", [text_part(GO_ON)]),
        ]

    @pytest.mark.parametrize("nothing", ["", " ", "\n\n"])
    async def test_empty_texts_are_omitted(self, sent: Any, nothing: str) -> None:
        body = await sent(
            message("user", nothing, "go"),
            message("assistant", nothing, ToolCall("c", "ls", "{}")),
            message("tool", ToolResult("c", "ls", nothing, is_error=True)),
            message("user", nothing),
            system=nothing,
        )
        assert bare(body)[2] == (
            "user",
            [{"type": "tool_result", "tool_use_id": "c", "content": NO_OUTPUT, "is_error": True}],
        )
        assert "system" not in body

    async def test_lone_surrogates_do_not_stop_a_request(self, sent: Any) -> None:
        body = await sent(
            message("user", Text("a\ud800b")),
            message("assistant", "c\udfffd", ToolCall("c", "ls", '{"x": "\ud800"}')),
            message("tool", ToolResult("c", "ls", "\ud800")),
            system="\ud800",
        )
        assert bare(body)[0][1] == [text_part("a?b")]
        assert bare(body)[1][1][1]["input"] == {"x": "?"}

    async def test_session_switches_providers_and_back(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        """The two providers reply to the Steps in turn; the endpoint refuses invalid requests."""
        models = [bench.model(endpoint.url), bench.claude(endpoint.url)]
        script = 'script: think a | tool ls {} | step | tool x {"bro | tool ls {} | step | think b | tool ls | say done'
        history = [message("user", script)]
        for step in range(4):
            model = models[step % 2]
            parts = await parts_of(model, asking(*for_model(history), thinking_tokens=2048))
            signature = "".join(part.signature for part in parts if isinstance(part, ReasoningDelta))
            thinking = "".join(part.text for part in parts if isinstance(part, ReasoningDelta))
            calls = end_of(parts).tool_calls
            thoughts = (Reasoning(thinking, signature),) if thinking else ()
            history.append(message("assistant", *thoughts, text_of(parts), *calls, provider=model.provider))
            history.append(message("tool", *(ToolResult(call.id, call.name, "x") for call in calls)))
        assert history[-2].text == "done"
        assert not endpoint.refusals
        assert len(endpoint.requests) == 4


class TestFiles:
    async def test_images_and_documents_come_before_the_text(self, sent: Any) -> None:
        body = await sent(
            message(
                "user",
                "what is this?",
                Binary("a.png", "image/png", "iVBORw=="),
                Binary("a.pdf", "application/pdf", encoded(b"%PDF\xff")),
                Binary("src/a.py", "text/x-python", encoded("print('é')".encode())),
                Binary("a.svg", "image/svg+xml", encoded(b"<svg/>")),
                ImageUrl("https://x/y.png"),
                ImageUrl(PNG),
                ShellCommand("ls", "a.txt", 0),
            )
        )
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}
        pdf = {"type": "base64", "media_type": "application/pdf", "data": encoded(b"%PDF\xff")}
        text = (
            "what is this?\n\nFile src/a.py:\n\nprint('é')\n\nFile a.svg:\n\n<svg/>\n\n"
            "I ran this command:\n$ ls\na.txt\n(exit code 0)"
        )
        assert bare(body)[0][1] == [
            image,
            {"type": "document", "source": pdf, "title": "a.pdf"},
            {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
            image,
            text_part(text),
        ]

    @pytest.mark.parametrize(
        "wrong",
        [
            Binary("a.bmp", "image/bmp", encoded(b"BM\xff")),
            Binary("a.zip", "", encoded(b"PK\xff")),
            ImageUrl("data:image/bmp;base64,Qk3/"),
        ],
    )
    async def test_other_files_are_refused_in_the_newest_prompt(
        self, sent: Any, bench: Bench, endpoint: ScriptedEndpoint, wrong: Binary | ImageUrl
    ) -> None:
        error = await failed(bench.claude(endpoint.url), asking(message("user", "look", wrong)))
        assert "is neither text nor a PDF nor a PNG, JPEG, GIF or WebP image" in str(error)
        assert "claude/fake-large accepts nothing else; remove it." in str(error)
        assert endpoint.requests_count == 0
        body = await sent(message("user", "look", wrong), "go on without it")
        assert "its content was not sent]" in bare(body)[0][1][0]["text"]

    async def test_tool_images_are_sent_with_their_results(self, sent: Any) -> None:
        results = (ToolResult("c", "view", "a.png", images=(PNG,)), ToolResult("d", "view", "", images=(PNG, PNG)))
        body = await sent(
            "go",
            message("assistant", ToolCall("c", "view", "{}"), ToolCall("d", "view", "{}")),
            message("tool", *results),
        )
        kinds = [[part["type"] for part in block["content"]] for block in bare(body)[2][1]]
        assert kinds == [["text", "image"], ["image", "image"]]

    async def test_unsupported_tool_image_is_noted(self, sent: Any) -> None:
        result = ToolResult("c", "view", "a.bmp", images=("data:image/bmp;base64,Qk3/",))
        body = await sent("go", message("assistant", ToolCall("c", "view", "{}")), message("tool", result))
        assert bare(body)[2][1][0]["content"] == f"a.bmp\n{NO_IMAGES}"


@pytest.fixture(params=["openai", "anthropic"])
def either(request: pytest.FixtureRequest, bench: Bench, endpoint: ScriptedEndpoint) -> Any:
    return bench.model(endpoint.url) if request.param == "openai" else bench.claude(endpoint.url)


class TestModelsWithoutImages:
    @pytest.mark.parametrize("image", [Binary("shot.png", "image/png", "iVBORw=="), ImageUrl("https://x/shot.png")])
    async def test_image_is_refused_in_the_newest_prompt_only(
        self, either: Any, endpoint: ScriptedEndpoint, image: Binary | ImageUrl
    ) -> None:
        with pytest.raises(ModelFailed, match=r"does not accept images; remove .*shot.png or choose another"):
            await parts_of(either, asking(message("user", "look", image), accepts_images=False))
        assert endpoint.requests_count == 0
        await parts_of(either, asking(message("user", "look", image), "go on", accepts_images=False))
        content = endpoint.requests[-1].messages[0]["content"]
        assert "shot.png was left out" in (content if isinstance(content, str) else content[0]["text"])

    async def test_tool_image_is_noted(self, either: Any, endpoint: ScriptedEndpoint) -> None:
        called = message("assistant", ToolCall("c", "view", "{}"))
        results = message("tool", ToolResult("c", "view", "a.png", images=(PNG,)))
        await parts_of(either, asking("go", called, results, accepts_images=False))
        last = endpoint.requests[-1].messages[-1]["content"]
        assert (last if isinstance(last, str) else last[0]["content"]) == f"a.png\n{NO_IMAGES}"
