"""Classification of failures: retryable or not, the wait before a retry, and context overflow."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import msgspec
import pytest

from kedge.errors import ContextFull, ModelFailed
from kedge.llm.base import Model
from kedge.llm.transport import WAIT_S_MAX, ProviderEndpoint
from kedge.testing import ScriptedEndpoint
from tests.llm.support import START, Bench, asking, chunked, event, failed, frame, http, parts_of, text_block, text_of


@pytest.fixture(params=["openai", "anthropic"])
def model(request: pytest.FixtureRequest, bench: Bench, endpoint: ScriptedEndpoint) -> Model:
    return bench.model(endpoint.url) if request.param == "openai" else bench.claude(endpoint.url)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_transient_status_is_retryable(model: Model, status: int) -> None:
    assert (await failed(model, asking(f"script: fail {status} because"))).retryable


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 422])
async def test_permanent_status_is_not_retryable(model: Model, status: int) -> None:
    error = await failed(model, asking(f"script: fail {status} because"))
    assert (error.retryable, error.wait_s, type(error)) == (False, None, ModelFailed)


async def test_request_that_is_too_large_is_context_full(model: Model) -> None:
    error = await failed(model, asking("script: fail 413 because"))
    assert (error.retryable, type(error)) == (False, ContextFull)


async def test_overloaded_provider_is_reported(bench: Bench, endpoint: ScriptedEndpoint) -> None:
    error = await failed(bench.claude(endpoint.url), asking("script: fail 529 Overloaded"))
    assert str(error) == "Provider claude is overloaded (HTTP 529: Overloaded); try again later."


async def test_transient_failure_succeeds_at_the_third_attempt(model: Model) -> None:
    script = asking("script: fail 429 retry-after=0 times=2 | say there")
    assert [(await failed(model, script)).wait_s for _ in range(2)] == [None, None]
    assert text_of(await parts_of(model, script)) == "there"


def with_retry_after(value: str) -> bytes:
    return http(b"{}", "429 Slow down", "application/json", f"Retry-After: {value}\r\n")


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        ("7", 7.0),
        ("0", None),
        ("1.5", 1.5),
        ("86400", WAIT_S_MAX),
        ("Wed, 21 Oct 2015 07:28:00 GMT", None),
        ("Fri, 31 Dec 2199 23:59:59 GMT", WAIT_S_MAX),
        ("soon", None),
        ("-5", None),
        ("9" * 400, None),
        ("Fri, 99 Dec 2199 23:59:59 GMT", None),
        ("", None),
    ],
)
async def test_retry_after_is_a_number_or_a_date(bench: Bench, value: str, wait_s: float | None) -> None:
    assert (await failed(await bench.raw(with_retry_after(value)), asking("x"))).wait_s == wait_s


async def test_retry_after_date_is_relative_to_now(bench: Bench) -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=1800), usegmt=True)
    error = await failed(await bench.raw(with_retry_after(at)), asking("x"))
    assert error.wait_s is not None
    assert 0 < error.wait_s <= 1800
    assert "try again in " in str(error)


async def test_exhausted_quota_is_not_retryable(model: Model) -> None:
    error = await failed(model, asking("script: fail 429 code=insufficient_quota You exceeded your quota"))
    assert not error.retryable
    assert error.wait_s is None
    assert "quota exhausted (HTTP 429: You exceeded your quota); check the account" in str(error)


TOO_LONG = [
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "Your input exceeds the context window of this model.",
    "prompt is too long: 208310 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 190000 + 16384 > 200000",
    "the request exceeds the available context size, try increasing it",
]


@pytest.mark.parametrize("text", TOO_LONG)
async def test_context_overflow_is_distinguished_from_other_errors(model: Model, text: str) -> None:
    error = await failed(model, asking(f"script: fail 400 {text}"))
    assert type(error) is ContextFull
    assert error.code == "context_full"
    assert not error.retryable
    assert "exceeds the context of model fake-large" in str(error)


async def test_error_code_alone_signals_context_overflow(model: Model) -> None:
    error = await failed(model, asking("script: fail 400 code=context_length_exceeded Too many"))
    assert type(error) is ContextFull


async def test_server_error_that_mentions_context_is_retryable(model: Model) -> None:
    error = await failed(model, asking("script: fail 500 lost the context window"))
    assert type(error) is ModelFailed
    assert error.retryable


class TestInTheStream:
    @pytest.mark.parametrize("script", ["cut", "say hi | cut", "say hi | fail 529 busy", "say hi | fail 500 no"])
    async def test_interrupted_stream_is_retryable(self, model: Model, script: str) -> None:
        assert (await failed(model, asking(f"script: {script}"))).retryable

    @pytest.mark.parametrize("script", ["say hi | fail 400 no", "say hi | fail 401 no", "garbage", "say hi | garbage"])
    async def test_refused_or_invalid_stream_is_not_retryable(self, model: Model, script: str) -> None:
        assert not (await failed(model, asking(f"script: {script}"))).retryable

    async def test_context_overflow_within_the_stream_is_detected(self, model: Model) -> None:
        error = await failed(model, asking("script: say hi | fail 400 prompt is too long"))
        assert type(error) is ContextFull

    @pytest.mark.parametrize(
        ("kind", "retryable"),
        [
            ("overloaded_error", True),
            ("rate_limit_error", True),
            ("api_error", True),
            ("timeout_error", True),
            ("invalid_request_error", False),
            ("authentication_error", False),
            ("permission_error", False),
            ("not_found_error", False),
            ("request_too_large", False),
            ("billing_error", False),
        ],
    )
    async def test_each_error_type_of_anthropic(self, bench: Bench, kind: str, retryable: bool) -> None:
        broken = event("error", error={"type": kind, "message": "Because"})
        error = await failed(await bench.raw_claude(chunked([START, text_block(0, "hi"), broken])), asking("x"))
        assert "sent an error in the reply (Because)" in str(error)
        assert error.retryable is retryable

    @pytest.mark.parametrize(
        ("body", "retryable"),
        [
            ({"message": "x"}, True),
            ("x", True),
            ({"message": "x", "code": 502}, True),
            ({"message": "x", "code": "429"}, True),
            ({"message": "x", "type": "server_error", "code": None}, True),
            ({"message": "x", "code": 403, "metadata": {"reasons": ["y"]}}, False),
            ({"message": "x", "type": "invalid_request_error"}, False),
            ({"message": "x", "code": "insufficient_quota"}, False),
        ],
    )
    async def test_each_error_format_of_openai(self, bench: Bench, body: object, retryable: bool) -> None:
        broken = b"data: " + msgspec.json.encode({"error": body}) + b"\n\n"
        error = await failed(await bench.raw(chunked([frame(content="hi"), broken])), asking("x"))
        assert error.retryable is retryable

    async def test_cut_stream_succeeds_at_the_second_attempt(self, model: Model) -> None:
        script = asking("script: say hi | cut times=1 | say there")
        assert (await failed(model, script)).retryable
        assert text_of(await parts_of(model, script)) == "hi there"


class TestNoConnection:
    async def test_refused_connection_is_retryable(self, bench: Bench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        error = await failed(bench.claude(f"http://127.0.0.1:{port}"), asking("x"))
        assert "refused the connection" in str(error)
        assert error.retryable

    async def test_slow_response_is_retryable(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        slow = bench.model(endpoint.url, timeout=httpx2.Timeout(5, read=0.02))
        assert (await failed(slow, asking("script: wait 60000 | say late"))).retryable

    async def test_reset_is_retryable(self, bench: Bench) -> None:
        assert (await failed(await bench.raw(b"", then="reset"), asking("x"))).retryable

    async def test_failed_tls_handshake_is_not_retryable(self, bench: Bench, endpoint: ScriptedEndpoint) -> None:
        assert not (await failed(bench.model(endpoint.url.replace("http:", "https:")), asking("x"))).retryable

    @pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1"])
    async def test_invalid_address_is_not_retryable(self, bench: Bench, url: str) -> None:
        assert not (await failed(bench.claude(url), asking("x"))).retryable

    @pytest.mark.parametrize(("errno", "retryable"), [(socket.EAI_AGAIN, True), (socket.EAI_NONAME, False)])
    def test_unknown_host_is_retryable_only_if_dns_fails(self, errno: int, retryable: bool) -> None:
        error = httpx2.ConnectError("no")
        error.__cause__ = socket.gaierror(errno, "no")
        failure = ProviderEndpoint("local", "http://nowhere.invalid", None, httpx2.Timeout(1)).transport_failed(error)
        assert "unknown host name" in failure.message
        assert failure.retryable is retryable

    @pytest.mark.parametrize("kind", ["text/html", "application/json"])
    async def test_response_that_is_not_a_stream_is_not_retryable(self, bench: Bench, kind: str) -> None:
        assert not (await failed(await bench.raw_claude(http(b"{}", kind=kind)), asking("x"))).retryable
