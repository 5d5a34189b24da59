"""Other providers, through pydantic-ai, against local servers with their formats.

All but the first test need the extra, which `scripts/long` installs.
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import socket
from collections.abc import AsyncIterator

import httpx2
import msgspec
import pytest

from kedge.core.records import Usage
from kedge.core.transcript import Binary, ImageUrl, Reasoning, ToolCall, ToolResult
from kedge.errors import ContextFull, ModelFailed
from kedge.llm.base import ModelPart, ModelRequest, ReasoningDelta, TextDelta, ToolSpec
from kedge.llm.provider_types import PROVIDERS
from kedge.llm.pydantic_ai import PydanticAIModel
from kedge.llm.streaming import TOOL_INPUT_CHARS_MAX, TOOL_INPUTS_CHARS_MAX
from kedge.llm.transport import new_client
from tests.llm.provider_formats import (
    CREATED,
    DONE,
    GOOGLE_USAGE,
    USAGE,
    Server,
    answer,
    call_items,
    candidate,
    events,
    google_events,
    reasoning_items,
    response,
    text_items,
)
from tests.llm.support import KEY, asking, end_of, message, parts_of, text_of

HAS_EXTRA = importlib.util.find_spec("pydantic_ai") is not None
needs_extra = pytest.mark.skipif(not HAS_EXTRA, reason="needs the extra: requirements-providers.lock")
# Python emits this warning when it compiles some of the providers' libraries.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")
PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 16).decode()
READ = ToolSpec("read", "Reads a file.", '{"type": "object", "properties": {"path": {"type": "string"}}}')


@pytest.mark.skipif(HAS_EXTRA, reason="the extra is installed")
@pytest.mark.parametrize("kind", [kind for kind, spec in PROVIDERS.items() if spec.module == "pydantic_ai"])
async def test_missing_extra_names_the_install_command(client: httpx2.AsyncClient, kind: str) -> None:
    with pytest.raises(ModelFailed) as failed:
        await parts_of(PydanticAIModel("work", "large", "", KEY, client, kind), asking("hello"))
    assert failed.value.message == (
        f"Provider work of type {kind} needs the extra: pip install 'kedge[providers]' "
        "(in a clone: .venv/bin/python -m pip install -r requirements-providers.lock)."
    )
    assert not failed.value.retryable


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with new_client() as client:
        yield client


def responses_model(
    server: Server, client: httpx2.AsyncClient, key: str | None = KEY, name: str = "large"
) -> PydanticAIModel:
    return PydanticAIModel("work", name, f"{server.url}/v1", key, client, "openai-responses")


async def failure_of(model: PydanticAIModel, request: ModelRequest | None = None) -> ModelFailed:
    with pytest.raises(ModelFailed) as failed:
        await parts_of(model, request or asking("x"))
    sentence = failed.value.message
    assert KEY not in sentence
    assert KEY not in repr(model)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return failed.value


@needs_extra
class TestResponses:
    async def test_text_is_streamed_and_usage_is_reported(self, server: Server, client: httpx2.AsyncClient) -> None:
        server.replies = [answer(events(CREATED, *text_items("Hel", "lo"), DONE))]
        parts = await parts_of(responses_model(server, client), asking("hi", system="Be brief."))
        assert parts[:-1] == [TextDelta("Hel"), TextDelta("lo")]
        assert end_of(parts).reason == "end_turn"
        assert end_of(parts).usage == Usage(30, 7, cache_read_tokens=20)
        assert server.paths == ["/v1/responses"]
        assert f"authorization: bearer {KEY}" in server.headers[0].lower()
        assert server.bodies[0]["model"] == "large"
        assert "Be brief." in str(server.bodies[0])
        assert "hi" in str(server.bodies[0]["input"])

    async def test_tool_calls_come_at_the_end(self, server: Server, client: httpx2.AsyncClient) -> None:
        server.replies = [answer(events(CREATED, *text_items("Look"), *call_items('{"path":', '"a"}'), DONE))]
        parts = await parts_of(responses_model(server, client), asking("x", tools=(READ,)))
        assert text_of(parts) == "Look"
        assert end_of(parts).reason == "tool_use"
        assert end_of(parts).tool_calls == (ToolCall("call_7", "read", '{"path":"a"}'),)
        [tool] = server.bodies[0]["tools"]
        assert (tool["name"], tool["description"]) == ("read", "Reads a file.")
        assert "path" in tool["parameters"]["properties"]

    async def test_reasoning_is_sent_back_with_its_signature(self, server: Server, client: httpx2.AsyncClient) -> None:
        server.replies = [answer(events(CREATED, *reasoning_items("Hm", "m"), *call_items("{}"), DONE))]
        model = responses_model(server, client, name="gpt-5")
        parts = await parts_of(model, asking("x", tools=(READ,)))
        thoughts = [part for part in parts if isinstance(part, ReasoningDelta)]
        assert "".join(part.text for part in thoughts) == "Hmm"
        assert thoughts[-1].signature
        assert not any(part.signature for part in thoughts[:-1])
        reasoning = Reasoning("Hmm", thoughts[-1].signature)
        call = end_of(parts).tool_calls[0]
        told = message("tool", ToolResult(call.id, "read", "content"))
        await parts_of(model, asking("x", message("assistant", reasoning, call), told, tools=(READ,)))
        sent = {item["type"]: item for item in server.bodies[1]["input"] if "type" in item}
        assert sent["reasoning"]["id"] == "rs_1"
        assert sent["reasoning"]["encrypted_content"] == "sealed"
        assert sent["function_call"]["call_id"] == sent["function_call_output"]["call_id"] == "call_7"

    async def test_reasoning_of_another_provider_is_omitted(self, server: Server, client: httpx2.AsyncClient) -> None:
        server.replies = [answer(events(CREATED, *text_items("ok"), DONE))]
        thoughts = (Reasoning("secret", "EqQBCgIY"), Reasoning("secret", '{"provider":"google"}'), Reasoning("secret"))
        await parts_of(responses_model(server, client), asking("x", message("assistant", *thoughts, "said"), "y"))
        assert "secret" not in str(server.bodies[0])
        assert "said" in str(server.bodies[0])

    async def test_complete_transcript_is_sent(self, server: Server, client: httpx2.AsyncClient) -> None:
        server.replies = [answer(events(CREATED, *text_items("ok"), DONE))]
        request = asking(
            message("user", "look", Binary("a.png", "image/png", PICTURE)),
            message("user", ImageUrl("https://pictures.example/b.png")),
            message("user", Binary("a.txt", "text/plain", base64.b64encode(b"plain words").decode())),
            message("user", Binary("a.pdf", "application/pdf", base64.b64encode(b"%PDF-1").decode())),
            message("assistant", "I read", ToolCall("c1", "read", "{broken"), ToolCall("c2", "re ad", "{}")),
            message(
                "tool",
                ToolResult("c1", "read", "no such file", is_error=True),
                ToolResult("c2", "re ad", "", images=(f"data:image/png;base64,{PICTURE}",)),
            ),
            message("user", "lone \ud800 half"),
            output_tokens_max=99,
        )
        await parts_of(responses_model(server, client), request)
        body = server.bodies[0]
        sent = str(body["input"])
        assert sent.count(PICTURE) == 2
        for words in ("look", "https://pictures.example/b.png", "plain words", "input_file", "I read", "no such file"):
            assert words in sent
        assert "malformed" in sent
        assert "re_ad" in sent
        assert body["max_output_tokens"] == 99

    async def test_images_are_refused_if_the_model_accepts_none(
        self, server: Server, client: httpx2.AsyncClient
    ) -> None:
        server.replies = [answer(events(CREATED, *text_items("ok"), DONE))]
        model = responses_model(server, client)
        picture = message("user", Binary("a.png", "image/png", PICTURE))
        failed = await failure_of(model, asking(picture, accepts_images=False))
        assert "does not accept images; remove a.png" in failed.message
        await parts_of(model, asking(picture, "and now?", accepts_images=False))
        assert PICTURE not in str(server.bodies)

    async def test_reply_at_the_token_limit_makes_no_calls(self, server: Server, client: httpx2.AsyncClient) -> None:
        cut = response("incomplete", usage=USAGE, incomplete_details={"reason": "max_output_tokens"})
        end = {"type": "response.incomplete", "response": cut}
        server.replies = [answer(events(CREATED, *call_items('{"path": "a"}'), end))]
        whole = end_of(await parts_of(responses_model(server, client), asking("x", tools=(READ,))))
        assert whole.reason == "max_tokens"
        assert whole.tool_calls == ()

    async def test_endless_tool_input_is_refused(self, server: Server, client: httpx2.AsyncClient) -> None:
        pieces = ["x" * 100_000] * (TOOL_INPUT_CHARS_MAX // 100_000 + 1)
        server.replies = [answer(events(CREATED, *call_items(*pieces), DONE))]
        failure = await failure_of(responses_model(server, client))
        assert f"more than {TOOL_INPUT_CHARS_MAX} characters of tool input" in failure.message

    @pytest.mark.found(
        "fault 22",
        "76 tool calls of 0.9 MB made an event that kedge's own client cannot read; the inputs of a Step share one "
        "limit, with every provider",
    )
    async def test_total_tool_input_is_bounded(self, server: Server, client: httpx2.AsyncClient) -> None:
        piece = "x" * (TOOL_INPUT_CHARS_MAX * 9 // 10)
        calls = [call_items(piece, call_id=f"call_{index}", index=index) for index in range(2, 7)]
        server.replies = [answer(events(CREATED, *(item for items in calls for item in items), DONE))]
        failure = await failure_of(responses_model(server, client))
        assert f"more than {TOOL_INPUTS_CHARS_MAX} characters of tool input" in failure.message

    async def test_concurrent_and_sequential_requests(self, server: Server, client: httpx2.AsyncClient) -> None:
        server.replies = [answer(events(CREATED, *text_items("ok"), DONE))]
        model = responses_model(server, client)
        both = await asyncio.gather(*(parts_of(model, asking("x")) for _ in range(5)))
        assert {text_of(parts) for parts in [*both, await parts_of(model, asking("x"))]} == {"ok"}


@needs_extra
class TestFaults:
    @pytest.mark.parametrize(
        ("status", "says", "retryable"),
        [
            (400, "refused the request (HTTP 400: because ***)", False),
            (401, "rejected the API key (HTTP 401: because ***); check api_key under [providers.work]", False),
            (403, "check the permissions of its API key", False),
            (404, "has no model large at http://127.0.0.1:", False),
            (429, "limits the request rate (HTTP 429: because ***); try again in 3 s", True),
            (500, "returned a server error (HTTP 500: because ***)", True),
            (503, "returned a server error (HTTP 503: because ***)", True),
        ],
    )
    async def test_each_http_error_names_the_remedy_after_one_request(
        self, server: Server, client: httpx2.AsyncClient, status: int, says: str, retryable: bool
    ) -> None:
        body = msgspec.json.encode({"error": {"message": f"because {KEY}", "type": "x"}})
        server.replies = [answer(body, f"{status} Oops", "application/json", "Retry-After: 3\r\n")]
        failed = await failure_of(responses_model(server, client))
        assert says in failed.message
        assert failed.retryable is retryable
        assert failed.wait_s == (3 if retryable else None)
        assert len(server.bodies) == 1

    async def test_context_overflow_is_distinguished(self, server: Server, client: httpx2.AsyncClient) -> None:
        body = {"error": {"message": "Your input exceeds the context window.", "code": "context_length_exceeded"}}
        server.replies = [answer(msgspec.json.encode(body), "400 Bad", "application/json")]
        assert isinstance(await failure_of(responses_model(server, client)), ContextFull)

    async def test_error_in_the_stream_fails_after_the_text_before_it(
        self, server: Server, client: httpx2.AsyncClient
    ) -> None:
        error = {"type": "error", "code": "server_error", "message": f"overheated {KEY}", "param": None}
        server.replies = [answer(events(CREATED, *text_items("Hel"), error))]
        received, failed = await parts_before(responses_model(server, client))
        assert received == [TextDelta("Hel")]
        assert "overheated ***" in failed.message
        assert KEY not in failed.message
        assert failed.retryable

    async def test_incomplete_reply_is_a_failure(self, server: Server, client: httpx2.AsyncClient) -> None:
        server.replies = [answer(events(CREATED, *text_items("Hel")))]
        received, failed = await parts_before(responses_model(server, client))
        assert received == [TextDelta("Hel")]
        assert failed.retryable

    async def test_dropped_connection_is_a_failure(self, server: Server, client: httpx2.AsyncClient) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99999\r\n\r\n"
        server.replies = [head + events(CREATED, *text_items("Hel"))]
        received, failed = await parts_before(responses_model(server, client))
        assert received == [TextDelta("Hel")]
        assert "closed the connection" in failed.message
        assert failed.retryable

    @pytest.mark.parametrize("kind", ["openai-responses", "google", "mistral"])
    async def test_refused_connection_names_the_address(self, client: httpx2.AsyncClient, kind: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        failed = await failure_of(PydanticAIModel("work", "large", url, KEY, client, kind))
        assert f"at {url} refused the connection" in failed.message
        assert failed.retryable

    async def test_response_that_is_not_a_stream_is_a_failure(self, server: Server, client: httpx2.AsyncClient) -> None:
        server.replies = [answer(b"<html>login", kind="text/html")]
        await failure_of(responses_model(server, client))

    @pytest.mark.parametrize("kind", ["google", "mistral", "cohere"])
    async def test_missing_key_is_reported(
        self, client: httpx2.AsyncClient, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "MISTRAL_API_KEY", "CO_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        failed = await failure_of(PydanticAIModel("work", "large", "", None, client, kind))
        assert f"Provider work of type {kind} has an invalid configuration" in failed.message

    async def test_invalid_key_is_not_shown(self, server: Server, client: httpx2.AsyncClient) -> None:
        failed = await failure_of(responses_model(server, client, "sk-one\nsk-two"))
        assert "contains a line break" in failed.message
        assert "sk-one" not in failed.message

    async def test_unsupported_base_url_is_reported(self, client: httpx2.AsyncClient) -> None:
        failed = await failure_of(PydanticAIModel("work", "command", "http://127.0.0.1:1", KEY, client, "cohere"))
        assert failed.message == "Provider work of type cohere does not support base_url; remove it."


async def parts_before(model: PydanticAIModel) -> tuple[list[ModelPart], ModelFailed]:
    """The parts before the failure, and the failure."""
    received: list[ModelPart] = []
    try:
        async with model.stream(asking("x")) as parts:
            async for part in parts:
                received.append(part)
    except ModelFailed as failed:
        return received, failed
    raise AssertionError("it did not fail")


def google_model(server: Server, client: httpx2.AsyncClient) -> PydanticAIModel:
    return PydanticAIModel("work", "gemini-2.5-flash", server.url, KEY, client, "google")


@needs_extra
class TestGoogle:
    async def test_text_is_streamed_and_usage_is_reported(self, server: Server, client: httpx2.AsyncClient) -> None:
        end = candidate({"text": "lo"}, finish="STOP", usageMetadata=GOOGLE_USAGE)
        server.replies = [answer(google_events(candidate({"text": "Hel"}), end))]
        parts = await parts_of(google_model(server, client), asking("hi", system="Be brief."))
        assert text_of(parts) == "Hello"
        assert end_of(parts).reason == "end_turn"
        assert end_of(parts).usage == Usage(30, 7, cache_read_tokens=20)
        assert server.paths[0].endswith("/models/gemini-2.5-flash:streamGenerateContent?alt=sse")
        assert KEY not in server.paths[0]
        assert "Be brief." in str(server.bodies[0]["systemInstruction"])

    async def test_tool_call_and_its_result_round_trip(self, server: Server, client: httpx2.AsyncClient) -> None:
        call = {"functionCall": {"name": "read", "args": {"path": "a"}}}
        server.replies = [
            answer(google_events(candidate({"text": "Hm", "thought": True}), candidate(call, finish="STOP")))
        ]
        model = google_model(server, client)
        parts = await parts_of(model, asking("x", tools=(READ,)))
        assert next(part for part in parts if isinstance(part, ReasoningDelta)).text == "Hm"
        [made] = end_of(parts).tool_calls
        assert (made.name, msgspec.json.decode(made.input)) == ("read", {"path": "a"})
        assert end_of(parts).reason == "tool_use"
        told = message("tool", ToolResult(made.id, "read", "content of a"))
        await parts_of(model, asking("x", message("assistant", made), told, tools=(READ,)))
        assert "content of a" in str(server.bodies[1]["contents"])
        assert server.bodies[1]["tools"][0]["functionDeclarations"][0]["name"] == "read"

    @pytest.mark.parametrize(("status", "retryable"), [(400, False), (429, True), (503, True)])
    async def test_http_error_names_the_remedy_after_one_request(
        self, server: Server, client: httpx2.AsyncClient, status: int, retryable: bool
    ) -> None:
        body = {"error": {"code": status, "message": f"because {KEY}", "status": "UNAVAILABLE"}}
        server.replies = [answer(msgspec.json.encode(body), f"{status} Oops", "application/json")]
        failed = await failure_of(google_model(server, client))
        assert f"(HTTP {status}: because ***)" in failed.message
        assert failed.retryable is retryable
        assert len(server.bodies) == 1

    async def test_thinking_budget_is_sent(self, server: Server, client: httpx2.AsyncClient) -> None:
        server.replies = [answer(google_events(candidate({"text": "ok"}, finish="STOP")))]
        await parts_of(google_model(server, client), asking("x", thinking_tokens=2000, output_tokens_max=4000))
        assert server.bodies[0]["generationConfig"]["maxOutputTokens"] == 4000
        assert "thinkingConfig" in server.bodies[0]["generationConfig"]

    async def test_effort_overrides_the_thinking_budget(self, server: Server, client: httpx2.AsyncClient) -> None:
        sent = []
        for more in ({"effort": "high"}, {"effort": "high", "thinking_tokens": 1000}, {"thinking_tokens": 1000}):
            server.replies = [answer(google_events(candidate({"text": "ok"}, finish="STOP")))]
            await parts_of(google_model(server, client), asking("x", **more))
            sent.append(server.bodies[-1]["generationConfig"]["thinkingConfig"])
        assert sent[0] == sent[1] != sent[2]


STREAMS = {
    "openai-responses": events(CREATED, *text_items("Hel")),
    "google": google_events(candidate({"text": "Hel"})),
}


@needs_extra
class TestClosing:
    """Leaving the stream closes the connection at once."""

    def model(self, kind: str, server: Server, client: httpx2.AsyncClient) -> PydanticAIModel:
        server.replies, server.hangs = [answer(STREAMS[kind])], True
        return responses_model(server, client) if kind == "openai-responses" else google_model(server, client)

    @pytest.mark.parametrize("kind", STREAMS)
    async def test_leaving_a_reply_closes_the_connection(
        self, server: Server, client: httpx2.AsyncClient, kind: str
    ) -> None:
        async with self.model(kind, server, client).stream(asking("x")) as parts:
            async for part in parts:
                assert part == TextDelta("Hel")
                break
        await server.disconnected.wait()

    @pytest.mark.parametrize("cancels", [1, 2, 3])
    @pytest.mark.parametrize("kind", STREAMS)
    async def test_repeated_cancel_closes_the_connection(
        self, server: Server, client: httpx2.AsyncClient, kind: str, cancels: int
    ) -> None:
        model = self.model(kind, server, client)
        received = asyncio.Event()

        async def receive() -> None:
            async with model.stream(asking("x")) as parts:
                async for _ in parts:
                    received.set()

        task = asyncio.create_task(receive())
        task.add_done_callback(lambda _: received.set())
        await received.wait()
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.disconnected.wait()

    @pytest.mark.parametrize("kind", STREAMS)
    async def test_error_of_the_caller_is_not_blamed_on_the_provider(
        self, server: Server, client: httpx2.AsyncClient, kind: str
    ) -> None:
        model = self.model(kind, server, client)

        async def fail() -> None:
            async with model.stream(asking("x")) as parts:
                async for _ in parts:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        await server.disconnected.wait()


@needs_extra
async def test_bedrock_request_is_sent_once(
    server: Server, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "eu-central-1")
    server.replies = [answer(b'{"message": "because"}', "503 Oops", "application/json")]
    failed = await failure_of(PydanticAIModel("work", "amazon.nova-lite-v1:0", server.url, None, client, "bedrock"))
    assert "HTTP 503" in failed.message
    assert failed.retryable
    assert len(server.bodies) == 1
