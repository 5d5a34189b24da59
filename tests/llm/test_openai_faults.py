"""Whatever goes wrong becomes one sentence that says what happened and what to do, and never shows the key."""

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
    sentence = failed.value.message
    assert KEY not in sentence
    assert KEY not in repr(model)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


@pytest.mark.parametrize(
    ("status", "says"),
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
async def test_each_http_error_says_what_to_do(
    bench: Bench, endpoint: ScriptedEndpoint, status: int, says: str
) -> None:
    assert says in await failure_of(bench.model(endpoint.url), f"script: fail {status} because")


async def test_a_missing_key_is_told_from_a_wrong_one(bench: Bench, endpoint: ScriptedEndpoint) -> None:
    says = await failure_of(bench.model(endpoint.url, key=None), "script: fail 401 no")
    assert "requires an API key (HTTP 401: no); set api_key under [providers.local]" in says


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


@pytest.mark.parametrize(("body", "says"), BODIES.values(), ids=BODIES)
async def test_the_providers_own_words_are_shown_in_every_shape(bench: Bench, body: bytes, says: str) -> None:
    model = await bench.raw(http(body, "500 Oops", "application/json"))
    assert says in await failure_of(model)


@pytest.mark.parametrize("before", [0, 100, DETAIL_CHARS_MAX - 10, DETAIL_CHARS_MAX, 4 * DETAIL_CHARS_MAX - 10])
async def test_not_even_half_of_the_key_is_shown_where_the_words_are_cut(bench: Bench, before: int) -> None:
    model = await bench.raw(http(b"a" * before + KEY.encode() + b"b" * 5000, "500 Oops", "text/plain"))
    assert KEY[:6] not in await failure_of(model)


async def test_an_error_without_end_is_read_no_further_than_needed(bench: Bench) -> None:
    model = await bench.raw(http(b"x" * (ERROR_BYTES_MAX + 1), "500 Oops", "text/plain"), then="hang")
    assert len(await failure_of(model)) < DETAIL_CHARS_MAX + 200


async def test_an_error_that_breaks_off_is_still_told(bench: Bench) -> None:
    model = await bench.raw(b"HTTP/1.1 503 Busy\r\nContent-Length: 1000\r\nRetry-After: 7\r\n\r\nso")
    assert "(HTTP 503: so); try again in 7 s" in await failure_of(model)


async def test_the_body_of_an_error_is_not_waited_for_long(bench: Bench) -> None:
    url = await bench.raw_url(b"HTTP/1.1 503 Busy\r\nContent-Length: 1000\r\n\r\n", then="hang")
    async with bench.client.stream("POST", url) as response:
        assert await error_body(response, wait_s=0.01) == b""


async def test_a_redirect_is_not_followed_with_the_key(bench: Bench) -> None:
    model = await bench.raw(http(b"", "307 Elsewhere", more="Location: http://127.0.0.1:1/\r\n"))
    assert "check base_url under [providers.local]" in await failure_of(model)


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        ("text/html; charset=utf-8", b"<html>login", "did not stream a reply (got a web page); check base_url"),
        ("application/json", b'{"error": {"message": "no such model"}}', "got no such model"),
    ],
)
async def test_an_answer_that_is_no_stream_is_told(bench: Bench, kind: str, body: bytes, says: str) -> None:
    assert says in await failure_of(await bench.raw(http(body, kind=kind)))


class TestInTheStream:
    async def parts_before(self, model: OpenAIModel, prompt: str = "x") -> tuple[list[ModelPart], str]:
        """What was passed on before the failure, and its sentence."""
        found: list[ModelPart] = []
        try:
            async with model.stream(asking(prompt)) as parts:
                async for part in parts:
                    found.append(part)
        except ModelFailed as failed:
            return found, failed.message
        raise AssertionError("it did not fail")

    async def test_an_error_object_fails_after_the_text_before_it(
        self, bench: Bench, endpoint: ScriptedEndpoint
    ) -> None:
        found, says = await self.parts_before(bench.model(endpoint.url), f"script: say hi | fail 500 no {KEY}")
        assert found == [TextDelta("hi")]
        assert says == "Provider local sent an error in the reply (no ***); try again."

    async def test_a_connection_that_drops_fails_after_the_text_before_it(
        self, bench: Bench, endpoint: ScriptedEndpoint
    ) -> None:
        found, says = await self.parts_before(bench.model(endpoint.url), "script: say hi | cut")
        assert found == [TextDelta("hi")]
        assert "closed the connection; try again" in says

    async def test_a_reset_is_a_failure(self, bench: Bench) -> None:
        assert "closed the connection" in await failure_of(await bench.raw(chunked([], end=False), then="reset"))

    @pytest.mark.parametrize("rest", [b"", frame("stop")[:-20], b"data: [DON", b": bye\n\n"])
    async def test_a_reply_that_just_ends_is_a_failure(self, bench: Bench, rest: bytes) -> None:
        found, says = await self.parts_before(await bench.raw(http(frame(content="hi") + rest)))
        assert found == [TextDelta("hi")]
        assert says == "Provider local ended its reply before it was complete; try again."

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
    async def test_what_is_no_frame_is_a_failure(self, bench: Bench, event: bytes) -> None:
        found, says = await self.parts_before(
            await bench.raw(chunked([frame(content="hi"), b"data: " + event + b"\n\n"]))
        )
        assert found == [TextDelta("hi")]
        assert "sent an invalid event of a chat completions stream" in says

    async def test_one_event_without_end_is_refused(self, bench: Bench) -> None:
        model = await bench.raw(chunked([b"data: ", *([b"x" * 65536] * (EVENT_BYTES_MAX // 65536 + 1))]), then="hang")
        assert f"an event of more than {EVENT_BYTES_MAX} bytes" in await failure_of(model)

    async def test_silence_ends_with_a_failure(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        model = bench.model(endpoint.url, timeout=httpx2.Timeout(5, read=0.02))
        found, says = await self.parts_before(model, "script: say hi | hang")
        assert found == [TextDelta("hi")]
        assert "sent nothing for 0.02 s; try again" in says
        await endpoint.requests[0].closed.wait()


class TestNoConnection:
    async def test_a_server_that_is_not_there_is_asked_about(self, bench: Bench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        says = await failure_of(bench.model(f"http://127.0.0.1:{port}/v1"))
        expected = f"at http://127.0.0.1:{port}/v1 refused the connection; check that the server is running"
        assert expected in says

    async def test_plain_http_behind_https_is_told(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        says = await failure_of(bench.model(endpoint.url.replace("http:", "https:")))
        assert "TLS handshake failed" in says

    async def test_an_answer_that_is_not_http_is_told(self, bench: Bench) -> None:
        assert "closed the connection" in await failure_of(await bench.raw(b"SSH-2.0-OpenSSH_9.2\r\n"))

    @pytest.mark.parametrize(
        "url", ["", "nonsense", "ftp://127.0.0.1", "http://127.0.0.1:99999", "http://[::1", "http://"]
    )
    async def test_a_bad_address_is_told(self, bench: Bench, url: str) -> None:
        says = await failure_of(bench.model(url))
        assert "is not a valid http or https address; check base_url under [providers.local]" in says

    async def test_secrets_in_the_address_are_not_shown(self, bench: Bench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        says = await failure_of(bench.model(f"http://me:hunter2@127.0.0.1:{port}/{KEY}/v1?sig=abc"))
        assert "hunter2" not in says
        assert "sig" not in says
        assert f"http://127.0.0.1:{port}/***/v1" in says

    @pytest.mark.parametrize("key", ["sk-one\nsk-two", "sk-ähem-0123456789"])
    async def test_a_key_that_cannot_be_sent_is_not_repeated(
        self, bench: Bench, endpoint: ScriptedEndpoint, key: str
    ) -> None:
        says = await failure_of(bench.model(endpoint.url, key))
        assert "The api_key of provider local contains a line break" in says
        assert key not in says
        assert endpoint.requests_count == 0


async def test_the_query_of_an_address_is_kept(bench: Bench, endpoint: ScriptedEndpoint) -> None:
    says = await failure_of(bench.model(f"{endpoint.origin}/none?api-version=7"), "script: fail 404 x")
    assert "HTTP 404" in says
    assert endpoint.requests[0].path == "/none/chat/completions?api-version=7"


async def test_signs_of_life_without_a_word_are_no_reply(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.llm.streaming.KEEP_ALIVES_S_MAX", -1.0)
    model = await bench.raw(chunked([b": processing\n\n"], end=False), then="hang")
    assert "only keep-alives" in await failure_of(model)
