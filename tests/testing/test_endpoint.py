"""The scripted endpoint as its users see it: over HTTP."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from kedge.testing import HostedEndpoint, ScriptedEndpoint


@pytest.fixture
async def endpoint() -> AsyncIterator[ScriptedEndpoint]:
    async with ScriptedEndpoint() as endpoint:
        yield endpoint


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False, verify=False, limits=httpx2.Limits(max_connections=None)) as client:
        yield client


def asking(text: str) -> dict[str, Any]:
    return {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": text}],
    }


async def ask(client: httpx2.AsyncClient, endpoint: ScriptedEndpoint, text: str) -> httpx2.Response:
    return await client.post(f"{endpoint.url}/chat/completions", json=asking(text))


def frames_of(response: httpx2.Response) -> list[dict[str, Any]]:
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [msgspec.json.decode(event.removeprefix("data: ")) for event in events[:-2]]


def text_of(response: httpx2.Response) -> str:
    choices = [choice for frame in frames_of(response) for choice in frame["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


async def test_a_plain_message_is_echoed(endpoint: ScriptedEndpoint, client: httpx2.AsyncClient) -> None:
    response = await ask(client, endpoint, "hello  there\nyou")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    assert text_of(response) == "You said: hello  there\nyou"


async def test_words_stream_singly_and_the_end_has_reason_and_usage(
    endpoint: ScriptedEndpoint, client: httpx2.AsyncClient
) -> None:
    frames = frames_of(await ask(client, endpoint, "script: think so | say a b | words 2 | usage 5 6"))
    deltas = [frame["choices"][0]["delta"] for frame in frames[:-2]]
    words = [{"content": word} for word in ("a", " b", " w1", " w2")]
    assert deltas == [{"reasoning_content": "so"}, *words]
    assert frames[-2]["choices"][0]["finish_reason"] == "stop"
    assert frames[-1] == {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}}


async def test_tools_next_to_each_other_end_the_step_together(
    endpoint: ScriptedEndpoint, client: httpx2.AsyncClient
) -> None:
    frames = frames_of(await ask(client, endpoint, 'script: tool a {"x": 1} | tool b | say later'))
    calls = [call for frame in frames[:-2] for call in frame["choices"][0]["delta"]["tool_calls"]]
    assert [call["index"] for call in calls] == [0, 0, 1, 1]
    assert "".join(call["function"]["arguments"] for call in calls[:2]) == '{"x": 1}'
    assert [calls[0]["id"], calls[2]["id"]] == ["call_1_0", "call_1_1"]
    assert frames[-2]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_request_is_recorded(endpoint: ScriptedEndpoint, client: httpx2.AsyncClient) -> None:
    await ask(client, endpoint, "hello")
    request = endpoint.requests[0]
    assert (request.number, request.path, request.text) == (1, "/v1/chat/completions", "hello")
    assert request.body == asking("hello")
    assert request.headers["content-type"] == "application/json"
    assert request.closed.is_set()
    assert not request.closed_early


async def test_a_hold_shows_what_was_said_before_it_and_waits(
    endpoint: ScriptedEndpoint, client: httpx2.AsyncClient
) -> None:
    script = asking("script: say before | hold k | say after")
    async with client.stream("POST", f"{endpoint.url}/chat/completions", json=script) as response:
        reads = response.aiter_text()
        assert '"before"' in await anext(reads)
        assert endpoint.open_streams == 1
        assert (await client.post(f"{endpoint.origin}/release/k")).json() == {"released": "k"}
        assert '" after"' in "".join([read async for read in reads])
    assert text_of(await ask(client, endpoint, "script: hold k | say at once")) == "at once"


async def test_disconnected_client_is_noticed_during_any_wait(
    endpoint: ScriptedEndpoint, client: httpx2.AsyncClient
) -> None:
    scripts = ["hang", "say a | hang", "hold never", "pause 100000 | say a", "words 2000000 | hang"]
    for number, script in enumerate(scripts, 1):
        asked = asyncio.create_task(ask(client, endpoint, f"script: {script}"))
        await endpoint.wait_requests(number)
        asked.cancel()
        await endpoint.requests[-1].closed.wait()
        assert endpoint.requests[-1].closed_early
    assert endpoint.stats()["closed_early"] == len(scripts)
    await endpoint.wait_open(0)


async def test_a_failure_before_the_first_word_is_an_http_error(
    endpoint: ScriptedEndpoint, client: httpx2.AsyncClient
) -> None:
    response = await ask(client, endpoint, "script: fail 429 slow down")
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert response.json() == {"error": {"message": "slow down", "code": 429}}


async def test_a_failure_after_it_is_an_event(endpoint: ScriptedEndpoint, client: httpx2.AsyncClient) -> None:
    response = await ask(client, endpoint, "script: say a | fail 500")
    assert response.status_code == 200
    assert response.text.endswith('data: {"error":{"message":"scripted failure","code":500}}\n\n')


async def test_flaky_fails_so_often_and_then_goes_on(endpoint: ScriptedEndpoint, client: httpx2.AsyncClient) -> None:
    script = "script: flaky 2 503 busy | say there"
    responses = [await ask(client, endpoint, script) for _ in range(3)]
    assert [response.status_code for response in responses] == [503, 503, 200]
    assert text_of(responses[-1]) == "there"


@pytest.mark.parametrize("script", ["script: cut", "script: say a b | cut"])
async def test_cut_drops_the_connection(endpoint: ScriptedEndpoint, client: httpx2.AsyncClient, script: str) -> None:
    with pytest.raises(httpx2.RemoteProtocolError):
        await ask(client, endpoint, script)
    await endpoint.requests[0].closed.wait()
    assert not endpoint.requests[0].closed_early


async def test_streams_are_counted_by_tag(endpoint: ScriptedEndpoint, client: httpx2.AsyncClient) -> None:
    scripts = ["script: tag a | hold k"] * 2 + ["script: hold k | tag b"]
    asked = [asyncio.create_task(ask(client, endpoint, script)) for script in scripts]
    await endpoint.wait_open(3)
    assert endpoint.open_max_by_tag == {"a": 2, "b": 1}
    endpoint.release("k")
    await asyncio.gather(*asked)
    await ask(client, endpoint, "script: tag a | say x")
    assert (await client.get(f"{endpoint.origin}/stats")).json() == {
        "requests": 4,
        "open": 0,
        "open_max": 3,
        "closed_early": 0,
        "open_by_tag": {"a": 0, "b": 0},
        "open_max_by_tag": {"a": 2, "b": 1},
    }


async def test_two_hundred_streams_are_open_at_once(endpoint: ScriptedEndpoint, client: httpx2.AsyncClient) -> None:
    asked = [asyncio.create_task(ask(client, endpoint, "script: say a | hold k | words 50")) for _ in range(200)]
    await endpoint.wait_open(200)
    endpoint.release("k")
    assert len({text_of(response) for response in await asyncio.gather(*asked)}) == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "truncated"),
        (b"{}", "messages"),
        (msgspec.json.encode(asking("script: sing")), "unknown directive 'sing'"),
        (msgspec.json.encode({**asking("x"), "stream": False}), "stream=true is required"),
    ],
)
async def test_a_request_that_cannot_be_understood_is_refused(
    endpoint: ScriptedEndpoint, client: httpx2.AsyncClient, body: bytes, says: str
) -> None:
    response = await client.post(f"{endpoint.url}/chat/completions", content=body)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]
    assert endpoint.requests_count == 0


async def test_other_addresses_are_not_found(endpoint: ScriptedEndpoint, client: httpx2.AsyncClient) -> None:
    assert (await client.get(f"{endpoint.url}/models")).status_code == 404


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, b"431"),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"GET /stats HTTP/1.1\r\n\r\n" * 3 + b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"200"),
    ],
)
async def test_bad_http_is_refused(endpoint: ScriptedEndpoint, sent: bytes, status: bytes) -> None:
    host, port = endpoint.origin.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    assert (await reader.read()).startswith(b"HTTP/1.1 " + status)
    writer.close()
    await writer.wait_closed()


async def test_leaving_the_endpoint_ends_what_is_open(client: httpx2.AsyncClient) -> None:
    async with ScriptedEndpoint() as endpoint:
        asked = asyncio.create_task(ask(client, endpoint, "script: say a | hang"))
        await endpoint.wait_open(1)
    assert asyncio.all_tasks() == {asyncio.current_task(), asked}
    with pytest.raises(httpx2.HTTPError):
        await asked


def test_it_can_be_hosted_for_tests_without_a_loop() -> None:
    with HostedEndpoint() as endpoint, httpx2.Client(trust_env=False) as client:
        with client.stream("POST", f"{endpoint.url}/chat/completions", json=asking("script: say a | hold k")):
            endpoint.wait_requests(1)
            endpoint.wait_open(1)
        [request] = endpoint.requests
        endpoint.wait_closed(request)
        assert request.closed_early
        endpoint.release("k")
        response = client.post(f"{endpoint.url}/chat/completions", json=asking("script: hold k | say b"))
        assert text_of(response) == "b"
        assert endpoint.stats()["requests"] == 2


def test_a_port_that_is_taken_is_told() -> None:
    with HostedEndpoint() as endpoint:
        port = int(endpoint.origin.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            HostedEndpoint(port).__enter__()


def test_a_hosted_wait_that_takes_too_long_raises() -> None:
    with HostedEndpoint(wait_s=0.01) as endpoint, pytest.raises(TimeoutError):
        endpoint.wait_requests(1)


def test_it_can_be_a_command_of_its_own() -> None:
    command = [sys.executable, "-W", "error", "-m", "kedge.testing.endpoint", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said, url = process.stdout.readline().rsplit(" ", 1)
        assert said == "listening on"
        response = httpx2.post(f"{url.strip()}/chat/completions", json=asking("hello"), trust_env=False)
        assert text_of(response) == "You said: hello"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
