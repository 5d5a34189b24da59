"""The endpoint in Anthropic's format, what it refuses, how it fails and then does not, and its asides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from kedge.testing import HostedEndpoint, ScriptedEndpoint
from kedge.testing.provider_rules import signature_of

Json = dict[str, Any]
HEADERS = {"anthropic-version": "2023-06-01"}


@pytest.fixture
async def endpoint() -> AsyncIterator[ScriptedEndpoint]:
    async with ScriptedEndpoint() as endpoint:
        yield endpoint


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
        yield client


class Asker:
    """Posts in one of the two formats, and reads the text of the answer."""

    def __init__(self, client: httpx2.AsyncClient, endpoint: ScriptedEndpoint, format_name: str) -> None:
        self._client = client
        self._endpoint = endpoint
        self.is_anthropic = format_name == "anthropic"

    async def __call__(self, *messages: Json | str, system: str = "", **more: Any) -> httpx2.Response:
        asked = [{"role": "user", "content": given} if isinstance(given, str) else given for given in messages]
        if self.is_anthropic:
            body = {"model": "m", "max_tokens": 10, "stream": True, "messages": asked, "system": system, **more}
            return await self._client.post(f"{self._endpoint.url}/messages", json=body, headers=HEADERS)
        told = [{"role": "system", "content": system}] if system else []
        body = {"model": "m", "stream": True, "messages": told + asked, **more}
        return await self._client.post(f"{self._endpoint.url}/chat/completions", json=body)

    def text(self, response: httpx2.Response) -> str:
        found = events_of(response)
        if self.is_anthropic:
            return "".join(event["delta"].get("text", "") for event in found if event["type"] == "content_block_delta")
        choices = [choice for frame in found for choice in frame["choices"]]
        return "".join(choice["delta"].get("content", "") for choice in choices)


@pytest.fixture(params=["openai", "anthropic"])
def ask(request: pytest.FixtureRequest, client: httpx2.AsyncClient, endpoint: ScriptedEndpoint) -> Asker:
    return Asker(client, endpoint, request.param)


@pytest.fixture
def claude(client: httpx2.AsyncClient, endpoint: ScriptedEndpoint) -> Asker:
    return Asker(client, endpoint, "anthropic")


def events_of(response: httpx2.Response) -> list[Json]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [msgspec.json.decode(line) for line in lines if line != "[DONE]"]


async def test_anthropics_events_come_in_their_order(claude: Asker) -> None:
    response = await claude('script: think hm | say a b | tool ls {"x": 1} | say never | usage 9 9')
    assert response.headers["content-type"] == "text/event-stream"
    named = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]
    found = events_of(response)
    assert named == [event["type"] for event in found]
    assert [event["type"].removeprefix("content_block_") for event in found] == [
        "message_start",
        "ping",
        "start",
        "delta",
        "delta",
        "stop",
        "start",
        "delta",
        "delta",
        "stop",
        "start",
        "delta",
        "delta",
        "delta",
        "stop",
        "message_delta",
        "message_stop",
    ]
    assert [event["index"] for event in found if "index" in event] == [0] * 4 + [1] * 4 + [2] * 5
    assert found[4]["delta"] == {"type": "signature_delta", "signature": signature_of("hm")}
    assert found[10]["content_block"] == {"type": "tool_use", "id": "toolu_1_0", "name": "ls", "input": {}}
    assert found[-2]["delta"]["stop_reason"] == "tool_use"


async def test_anthropics_usage_tells_the_cached_apart(claude: Asker) -> None:
    found = events_of(await claude("script: say a | usage 100 5 60 30"))
    assert found[0]["message"]["usage"] == {
        "input_tokens": 10,
        "cache_creation_input_tokens": 30,
        "cache_read_input_tokens": 60,
        "output_tokens": 1,
    }
    assert found[-2]["usage"] == {"output_tokens": 5}


async def test_anthropics_errors_have_their_shape(claude: Asker) -> None:
    response = await claude("script: fail 529 Overloaded")
    assert response.status_code == 529
    assert response.json()["type"] == "error"
    assert response.json()["error"] == {"type": "overloaded_error", "message": "Overloaded"}
    broken = events_of(await claude("script: say a | fail 529"))[-1]
    assert broken == {"type": "error", "error": {"type": "overloaded_error", "message": "scripted failure"}}


async def test_prompts_joined_in_one_message_are_told_apart(claude: Asker, endpoint: ScriptedEndpoint) -> None:
    texts = [{"type": "text", "text": "script: say never"}, {"type": "text", "text": "hello"}]
    response = await claude({"role": "user", "content": texts})
    assert claude.text(response) == "You said: hello"
    assert endpoint.requests[0].text == "hello"


async def test_a_script_goes_on_behind_its_tools_step_by_step(ask: Asker, endpoint: ScriptedEndpoint) -> None:
    script = 'script: tool a {} | step | tool b {"x | tool c {} | say done'
    messages: list[Json | str] = [script]
    called = []
    for names in (["a"], ["b", "c"]):
        found = events_of(await ask(*messages))
        if ask.is_anthropic:
            calls = [event["content_block"] for event in found if event["type"] == "content_block_start"]
            called += [call["name"] for call in calls]
            results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "x"} for call in calls]
            messages += [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
        else:
            pieces = [call for frame in found for call in frame["choices"][0]["delta"].get("tool_calls", [])]
            calls = [
                {**piece, "function": {**piece["function"], "arguments": "{}"}} for piece in pieces if "id" in piece
            ]
            called += [call["function"]["name"] for call in calls]
            messages += [{"role": "assistant", "content": None, "tool_calls": calls}]
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": "x"} for call in calls]
        assert called[-len(names) :] == names
    assert ask.text(await ask(*messages)) == "done"
    assert not endpoint.refusals


async def test_a_failure_comes_so_often_and_then_no_more(ask: Asker) -> None:
    script = "script: fail 429 retry-after=3 times=2 slow down | say there"
    responses = [await ask(script) for _ in range(3)]
    assert [response.status_code for response in responses] == [429, 429, 200]
    assert responses[0].headers["retry-after"] == "3"
    assert responses[0].json()["error"]["message"] == "slow down"
    assert ask.text(responses[2]) == "there"


async def test_a_cut_comes_so_often_and_then_no_more(ask: Asker) -> None:
    script = "script: say a | cut times=1 | say b"
    with pytest.raises(httpx2.RemoteProtocolError):
        await ask(script)
    assert ask.text(await ask(script)) == "a b"


async def test_garbage_is_no_event(ask: Asker) -> None:
    response = await ask("script: say a | garbage times=1 | say b")
    with pytest.raises(msgspec.DecodeError):
        events_of(response)


async def test_the_head_may_come_long_before_the_first_word(
    client: httpx2.AsyncClient, endpoint: ScriptedEndpoint
) -> None:
    body = {"stream": True, "messages": [{"role": "user", "content": "script: head | hold k | say a"}]}
    async with client.stream("POST", f"{endpoint.url}/chat/completions", json=body) as response:
        assert response.status_code == 200
        endpoint.release("k")
        assert '"a"' in (await response.aread()).decode()


async def test_what_a_provider_would_refuse_is_refused_in_its_shape(ask: Asker, endpoint: ScriptedEndpoint) -> None:
    response = await ask({"role": "assistant", "content": ""})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert len(endpoint.refusals) == 1
    assert endpoint.requests_count == 0


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b'{"messages": 5}', b'{"messages": [5]}', b'{"messages": [{"role": 1}]}']
)
@pytest.mark.parametrize("path", ["chat/completions", "messages"])
async def test_what_is_no_request_is_refused(
    client: httpx2.AsyncClient, endpoint: ScriptedEndpoint, path: str, body: bytes
) -> None:
    assert (await client.post(f"{endpoint.url}/{path}", content=body, headers=HEADERS)).status_code == 400


class TestAsides:
    TITLE = "Write a title for this session, in a few words."

    async def test_titles_and_summaries_have_answers_of_their_own(self, ask: Asker, endpoint: ScriptedEndpoint) -> None:
        title = await ask("script: fail 500", system=self.TITLE)
        summary = await ask("script: fail 500", {"role": "assistant", "content": "so"}, "Summarize what was said.")
        assert [ask.text(title), ask.text(summary)] == ["A scripted title", "A scripted summary."]
        assert [request.aside for request in endpoint.asides] == ["title", "summary"]

    async def test_they_do_not_count_as_requests(self, ask: Asker, endpoint: ScriptedEndpoint) -> None:
        asked = asyncio.create_task(ask("script: tag a | title hold k", system=self.TITLE))
        await endpoint.wait_asides(1)
        assert (endpoint.requests_count, endpoint.open_streams, endpoint.stats()["open_by_tag"]) == (0, 0, {})
        assert not endpoint.asides[0].closed.is_set()
        endpoint.release("k")
        assert ask.text(await asked) == "A scripted title"
        await endpoint.asides[0].closed.wait()
        assert endpoint.open_streams == 0

    async def test_a_script_may_say_what_they_are_answered(self, ask: Asker) -> None:
        script = "script: say hello | title say My own | title fail 503 times=1 no | summary say In short"
        assert ask.text(await ask(script)) == "hello"
        assert ask.text(await ask(f"Summarize:\n> {script}")) == "In short"
        script = "script: title fail 503 times=1 no | title say My own"
        responses = [await ask(script, system=self.TITLE) for _ in range(2)]
        assert [response.status_code for response in responses] == [503, 200]
        assert ask.text(responses[1]) == "My own"

    async def test_a_quoted_half_of_a_script_has_nothing_to_say(self, ask: Asker) -> None:
        assert ask.text(await ask("The prompt: script: say a | tit", system=self.TITLE)) == "A scripted title"


def test_asides_and_refusals_are_seen_without_a_loop() -> None:
    with HostedEndpoint() as endpoint, httpx2.Client(trust_env=False) as client:
        body = {"stream": True, "messages": [{"role": "user", "content": "Summarize."}]}
        client.post(f"{endpoint.url}/chat/completions", json=body)
        client.post(f"{endpoint.url}/chat/completions", json={"messages": []})
        endpoint.wait_asides(1)
        assert [request.aside for request in endpoint.asides] == ["summary"]
        assert endpoint.refusals == ["messages: must not be empty"]
