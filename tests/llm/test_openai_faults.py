"""Each fault becomes one sentence with the cause and the remedy, and never shows the key."""

from __future__ import annotations

import socket

import httpx2
import pytest

from kedge.errors import ModelFailed
from kedge.llm.base import ModelPart, TextDelta
from kedge.llm.openai import OpenAIModel
from kedge.llm.sse import EVENT_BYTES_MAX
from kedge.llm.transport import DETAIL_CHARS_MAX, ERROR_BYTES_MAX, error_body
from kedge.testing import ScriptedEndpoint
from tests.llm.support import KEY, Bench, asking, chunked, frame, http, parts_of


async def failure_of(model: OpenAIModel, prompt: str = "x") -> str:
    with pytest.raises(ModelFailed) as failed:
        await parts_of(model, asking(prompt))
    message = failed.value.message
    assert KEY not in message
    assert KEY not in repr(model)
    assert "\n" not in message
    assert message.endswith(".")
    return message


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "refused the request (HTTP 400: because)"),
        (401, "rejected the API key (HTTP 401: because); check api_key under [providers.local]"),
        (402, "check the account"),
        (403, "check the permissions of its API key"),
        (404, "has no model fake-large at http://127.0.0.1:"),
        (413, "exceeds the context of model"),
        (429, "limits the request rate (HTTP 429: because); try again in 1 s"),
        (500, "returned a server error (HTTP 500: because); try again later"),
        (503, "returned a server error (HTTP 503: because)"),
    ],
)
async def test_each_http_error_names_the_remedy(
    bench: Bench, endpoint: ScriptedEndpoint, status: int, text: str
) -> None:
    assert text in await failure_of(bench.model(endpoint.url), f"script: fail {status} because")


async def test_missing_key_is_distinguished_from_a_wrong_one(bench: Bench, endpoint: ScriptedEndpoint) -> None:
    text = await failure_of(bench.model(endpoint.url, key=None), "script: fail 401 no")
    assert "requires an API key (HTTP 401: no); set api_key under [providers.local]" in text


BODIES = {
    "an error object": (b'{"error": {"message": "so it is", "code": 1}}', "(HTTP 500: so it is)"),
    "an error string": (b'{"error": "so it is"}', "(HTTP 500: so it is)"),
    "a message": (b'{"message": "so it is"}', "(HTTP 500: so it is)"),
    "a detail": (b'{"detail": [{"loc": 1, "msg": "x"}]}', "(HTTP 500: [{'loc': 1, 'msg': 'x'}])"),
    "a list": (b'[{"error": {"message": "so it is"}}]', "(HTTP 500: so it is)"),
    "an unknown object": (b'{"sorry": 1}', '(HTTP 500: {"sorry":1})'),
    "plain text": (b"so it is\n", "(HTTP 500: so it is)"),
    "a web page": (b"<!doctype html><p>Bad gateway", "(HTTP 500);"),
    "nothing": (b"", "(HTTP 500);"),
    "null": (b"null", "(HTTP 500);"),
    "bytes": (b"\xff\xfe\x00", "(HTTP 500: \ufffd\ufffd)"),
    "escape codes": (b'{"error": "\\u001b[31mred\\r\\nlines"}', "(HTTP 500: [31mred lines)"),
    "the key": (f'{{"error": "bad {KEY} here"}}'.encode(), "(HTTP 500: bad *** here)"),
    "a tower of brackets": (b"[" * 50_000, "(HTTP 500: [["),
}


@pytest.mark.parametrize(("body", "text"), BODIES.values(), ids=BODIES)
async def test_error_text_of_the_provider_is_shown(bench: Bench, body: bytes, text: str) -> None:
    model = await bench.raw(http(body, "500 Oops", "application/json"))
    assert text in await failure_of(model)


@pytest.mark.parametrize("before", [0, 100, DETAIL_CHARS_MAX - 10, DETAIL_CHARS_MAX, 4 * DETAIL_CHARS_MAX - 10])
async def test_truncated_error_shows_no_part_of_the_key(bench: Bench, before: int) -> None:
    model = await bench.raw(http(b"a" * before + KEY.encode() + b"b" * 5000, "500 Oops", "text/plain"))
    assert KEY[:6] not in await failure_of(model)


async def test_endless_error_is_read_up_to_the_limit(bench: Bench) -> None:
    model = await bench.raw(http(b"x" * (ERROR_BYTES_MAX + 1), "500 Oops", "text/plain"), then="hang")
    assert len(await failure_of(model)) < DETAIL_CHARS_MAX + 200


async def test_truncated_error_is_still_reported(bench: Bench) -> None:
    model = await bench.raw(b"HTTP/1.1 503 Busy\r\nContent-Length: 1000\r\nRetry-After: 7\r\n\r\nso")
    assert "(HTTP 503: so); try again in 7 s" in await failure_of(model)


async def test_wait_for_an_error_body_is_short(bench: Bench) -> None:
    url = await bench.raw_url(b"HTTP/1.1 503 Busy\r\nContent-Length: 1000\r\n\r\n", then="hang")
    async with bench.client.stream("POST", url) as response:
        assert await error_body(response, wait_s=0.01) == b""


async def test_redirect_is_not_followed(bench: Bench) -> None:
    model = await bench.raw(http(b"", "307 Elsewhere", more="Location: http://127.0.0.1:1/\r\n"))
    assert "check base_url under [providers.local]" in await failure_of(model)


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("text/html; charset=utf-8", b"<html>login", "did not stream a reply (got a web page); check base_url"),
        ("application/json", b'{"error": {"message": "no such model"}}', "got no such model"),
    ],
)
async def test_response_that_is_not_a_stream_is_reported(bench: Bench, kind: str, body: bytes, text: str) -> None:
    assert text in await failure_of(await bench.raw(http(body, kind=kind)))


class TestInTheStream:
    async def parts_before(self, model: OpenAIModel, prompt: str = "x") -> tuple[list[ModelPart], str]:
        """The parts before the failure, and its message."""
        received: list[ModelPart] = []
        try:
            async with model.stream(asking(prompt)) as parts:
                async for part in parts:
                    received.append(part)
        except ModelFailed as failed:
            return received, failed.message
        raise AssertionError("it did not fail")

    async def test_error_object_fails_after_the_text_before_it(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        received, text = await self.parts_before(bench.model(endpoint.url), f"script: say hi | fail 500 no {KEY}")
        assert received == [TextDelta("hi")]
        assert text == "Provider local sent an error in the reply (no ***); try again."

    async def test_dropped_connection_fails_after_the_text_before_it(
        self, bench: Bench, endpoint: ScriptedEndpoint
    ) -> None:
        received, text = await self.parts_before(bench.model(endpoint.url), "script: say hi | cut")
        assert received == [TextDelta("hi")]
        assert "closed the connection; try again" in text

    async def test_reset_is_a_failure(self, bench: Bench) -> None:
        assert "closed the connection" in await failure_of(await bench.raw(chunked([], end=False), then="reset"))

    @pytest.mark.parametrize("rest", [b"", frame("stop")[:-20], b"data: [DON", b": bye\n\n"])
    async def test_incomplete_reply_is_a_failure(self, bench: Bench, rest: bytes) -> None:
        received, text = await self.parts_before(await bench.raw(http(frame(content="hi") + rest)))
        assert received == [TextDelta("hi")]
        assert text == "Provider local ended its reply before it was complete; try again."

    @pytest.mark.parametrize(
        "event",
        [
            b"{not json",
            b'{"choices": 5}',
            b'{"choices": [{"delta": {"content": 5}}]}',
            b"\xff\xfe",
            b"[" * 50_000,
            b"[]",
        ],
    )
    async def test_invalid_frame_is_a_failure(self, bench: Bench, event: bytes) -> None:
        received, text = await self.parts_before(
            await bench.raw(chunked([frame(content="hi"), b"data: " + event + b"\n\n"]))
        )
        assert received == [TextDelta("hi")]
        assert "sent an invalid event of a chat completions stream" in text

    async def test_endless_event_is_refused(self, bench: Bench) -> None:
        model = await bench.raw(chunked([b"data: ", *([b"x" * 65536] * (EVENT_BYTES_MAX // 65536 + 1))]), then="hang")
        assert f"an event of more than {EVENT_BYTES_MAX} bytes" in await failure_of(model)

    async def test_silence_times_out(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        model = bench.model(endpoint.url, timeout=httpx2.Timeout(5, read=0.02))
        received, text = await self.parts_before(model, "script: say hi | hang")
        assert received == [TextDelta("hi")]
        assert "sent nothing for 0.02 s; try again" in text
        await endpoint.requests[0].closed.wait()


class TestNoConnection:
    async def test_refused_connection_names_the_address(self, bench: Bench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        text = await failure_of(bench.model(f"http://127.0.0.1:{port}/v1"))
        expected = f"at http://127.0.0.1:{port}/v1 refused the connection; check that the server is running"
        assert expected in text

    async def test_failed_tls_handshake_is_reported(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        text = await failure_of(bench.model(endpoint.url.replace("http:", "https:")))
        assert "TLS handshake failed" in text

    async def test_response_that_is_not_http_is_reported(self, bench: Bench) -> None:
        assert "closed the connection" in await failure_of(await bench.raw(b"SSH-2.0-OpenSSH_9.2\r\n"))

    @pytest.mark.parametrize(
        "url", ["", "nonsense", "ftp://127.0.0.1", "http://127.0.0.1:99999", "http://[::1", "http://"]
    )
    async def test_invalid_address_is_reported(self, bench: Bench, url: str) -> None:
        text = await failure_of(bench.model(url))
        assert "is not a valid http or https address; check base_url under [providers.local]" in text

    async def test_secrets_in_the_address_are_masked(self, bench: Bench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        text = await failure_of(bench.model(f"http://me:hunter2@127.0.0.1:{port}/{KEY}/v1?sig=abc"))
        assert "hunter2" not in text
        assert "sig" not in text
        assert f"http://127.0.0.1:{port}/***/v1" in text

    @pytest.mark.parametrize("key", ["sk-one\nsk-two", "sk-ähem-0123456789"])
    async def test_invalid_key_is_not_shown(self, bench: Bench, endpoint: ScriptedEndpoint, key: str) -> None:
        text = await failure_of(bench.model(endpoint.url, key))
        assert "The api_key of provider local contains a line break" in text
        assert key not in text
        assert endpoint.requests_count == 0


async def test_query_of_an_address_is_preserved(bench: Bench, endpoint: ScriptedEndpoint) -> None:
    text = await failure_of(bench.model(f"{endpoint.origin}/none?api-version=7"), "script: fail 404 x")
    assert "HTTP 404" in text
    assert endpoint.requests[0].path == "/none/chat/completions?api-version=7"


async def test_keep_alives_alone_time_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.llm.streaming.KEEP_ALIVES_S_MAX", -1.0)
    model = await bench.raw(chunked([b": processing\n\n"], end=False), then="hang")
    assert "only keep-alives" in await failure_of(model)
