"""The HTTP client of all providers, its timeouts, and the error messages.

An error becomes a `ModelFailed` that states what happened, what to do, and whether to retry. No message contains the
API key, even if the provider repeats it or the address holds it.
"""

from __future__ import annotations

import asyncio
import base64
import math
import socket
import ssl
import time
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final

import anyio
import httpx2
import msgspec

from kedge.errors import ContextFull, ModelFailed
from kedge.slices import Slices

#: A connect takes one round trip; 10 s allow for a slow network and TLS.
CONNECT_S_MAX: Final = 10.0
#: Between two reads. Reasoning models think for minutes before the first output, some without keep-alives.
READ_S_MAX: Final = 300.0
#: Between two writes of the request; enough for a slow link.
WRITE_S_MAX: Final = 60.0
#: Bytes read of the body of an error: enough for any message.
ERROR_BYTES_MAX: Final = 64 * 1024
#: Seconds to wait for that body: the status is known, and the user waits.
ERROR_S_MAX: Final = 5.0
#: Characters of the provider's message in ours, which is shown on one line or two.
DETAIL_CHARS_MAX: Final = 300
#: Idle connections kept for the next Step, and for how long: most servers close them after 60 s or later.
_IDLE_CONNECTIONS_MAX: Final = 50
_IDLE_S_MAX: Final = 30.0

#: Longest Retry-After that is respected. Seconds.
WAIT_S_MAX: Final = 3600.0
#: Statuses below 500 to retry: timeout, conflict, too early, too many requests.
_RETRYABLE: Final = frozenset({408, 409, 425, 429})
#: Parts of the type of an error inside a stream that blames the request, so that a retry is useless. Any other error is
#: one of the server, which had accepted the request and begun to reply.
_PERMANENT: Final = (
    "invalid",
    "authentication",
    "permission",
    "not_found",
    "too_large",
    "billing",
    "quota",
    "policy",
    "unsupported",
    "content_filter",
    "context_length",
)
#: Codes and phrases of providers for a request that exceeds the model's context.
_CONTEXT_FULL: Final = (
    "context_length_exceeded",
    "exceed_context_size",
    "maximum context length",
    "context window",
    "context length",
    "prompt is too long",
    "exceed context limit",
    "available context size",
    "maximum number of tokens allowed",
)
#: The message for a status; `{setting}` is the section of the provider in the configuration.
_STATUS_MESSAGES: Final = {
    401: "Provider {name} rejected the API key {answer}; check api_key under {setting}",
    402: "Provider {name} requires payment {answer}; check the account",
    403: "Provider {name} denied access {answer}; check the permissions of its API key",
    404: "Provider {name} has no model {model} at {url} {answer}; check the name of the model and base_url",
    429: "Provider {name} limits the request rate {answer}; try again {when}",
    529: "Provider {name} is overloaded {answer}; try again {when}",
}
_KEY_MISSING: Final = "Provider {name} requires an API key {answer}; set api_key under {setting}"
_QUOTA_EXHAUSTED: Final = "Provider {name}: quota exhausted {answer}; check the account"
_REDIRECTED: Final = "Provider {name} redirected the request {answer}; check base_url under {setting}"
_SERVER_ERROR: Final = "Provider {name} returned a server error {answer}; try again {when}"
_REFUSED: Final = "Provider {name} refused the request {answer}; check that model {model} supports it"

#: A shorter key is a placeholder for a server that needs none.
_KEY_CHARS_MIN: Final = 8

#: Errors of decoding untrusted JSON: RecursionError for deeply nested brackets.
NOT_JSON: Final = (msgspec.DecodeError, UnicodeError, RecursionError)

#: Passed with every request, so that it applies to any client.
TIMEOUT: Final = httpx2.Timeout(connect=CONNECT_S_MAX, read=READ_S_MAX, write=WRITE_S_MAX, pool=CONNECT_S_MAX)

_LOCAL: Final = ("all://localhost", "all://127.0.0.1", "all://[::1]")


def new_client(*, tls: bool = True) -> httpx2.AsyncClient:
    """Return the HTTP client for all models of a server; the caller closes it. Without `tls` it loads no certificates,
    and is for http:// addresses only.

    The connections are unlimited, since a Run that waits for the connection of another Run would appear to hang.
    Proxies from the environment are used, except for this machine.
    """
    # anyio imports these on first use, which would block the event loop.
    _ = anyio.connect_tcp, anyio.create_memory_object_stream
    return httpx2.AsyncClient(
        verify=tls,
        timeout=TIMEOUT,
        limits=httpx2.Limits(
            max_connections=None, max_keepalive_connections=_IDLE_CONNECTIONS_MAX, keepalive_expiry=_IDLE_S_MAX
        ),
        mounts=dict.fromkeys(_LOCAL),
    )


@dataclass(frozen=True, slots=True)
class ProviderEndpoint:
    """A configured provider, and the messages for its errors."""

    name: str
    base_url: str
    api_key: str | None = field(repr=False)
    timeout: httpx2.Timeout

    def checked_url(self, path: str) -> httpx2.URL:
        """Return the address of a call. Raise ModelFailed for an invalid one: httpx2 may raise an ExceptionGroup."""
        try:
            url = httpx2.URL(self.base_url)
        except httpx2.InvalidURL:
            raise self._bad_url() from None
        if url.scheme not in ("http", "https") or not url.host or not 0 <= (url.port or 0) <= 65535:
            raise self._bad_url()
        # Extend the path only, since an address may end with a query (?api-version=...).
        return url.copy_with(path=url.path.rstrip("/") + path)

    def checked_key(self) -> str:
        """Return the key, or "". Raise ModelFailed for an invalid one: the error of the HTTP library contains it."""
        key = self.api_key or ""
        if not (key.isascii() and key.isprintable()):
            raise ModelFailed(
                f"The api_key of provider {self.name} contains a line break or another invalid character; "
                f"check {self._setting('api_key')}."
            )
        return key

    @property
    def shown_url(self) -> str:
        """The address without user name, password and query, which may be secret."""
        try:
            url = httpx2.URL(self.base_url)
        except httpx2.InvalidURL:
            return "base_url"
        shown = str(url.copy_with(username=None, password=None, query=None, fragment=None))
        # Some gateways expect the key in the path. A placeholder such as "none" or "ollama" is not hidden.
        return shown.replace(self.api_key, "***") if self.api_key and len(self.api_key) >= _KEY_CHARS_MIN else shown

    def sanitized(self, text: str) -> str:
        """Return the provider's message on one line, without secrets and control characters, cut."""
        for secret in self._secrets():
            text = text.replace(secret, "***")  # before the cut, which could leave half of a key
        text = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * DETAIL_CHARS_MAX])
        text = " ".join(text.split())
        return text if len(text) <= DETAIL_CHARS_MAX else text[: DETAIL_CHARS_MAX - 1] + "…"

    def _secrets(self) -> list[str]:
        """Return the key, and the password and query values of the address as they are sent."""
        secrets = [self.api_key] if self.api_key else []
        with suppress(httpx2.InvalidURL):
            url = httpx2.URL(self.base_url)
            login = base64.b64encode(f"{url.username}:{url.password}".encode()).decode()
            sent = [pair.partition("=")[2] for pair in url.query.decode("latin-1").split("&")]
            carried = [*sent, *(value for _, value in url.params.multi_items()), url.password, login]
            secrets += [value for value in carried if len(value) >= _KEY_CHARS_MIN]
        return secrets

    def transport_failed(self, error: httpx2.HTTPError) -> ModelFailed:
        """Convert an error below HTTP: no connection, no response in time, or an interrupted response."""
        where = f"Provider {self.name} at {self.shown_url}"
        causes = _causes(error)
        unknown_host = next((cause for cause in causes if isinstance(cause, socket.gaierror)), None)
        retryable = True
        match error:
            case httpx2.ConnectTimeout() | httpx2.PoolTimeout():
                what = f"{where}: connection timed out after {self.timeout.connect:g} s; check the network and base_url"
            case httpx2.ReadTimeout():
                what = f"{where} sent nothing for {self.timeout.read:g} s; try again, or choose another model"
            case httpx2.WriteTimeout():
                what = f"{where} did not accept data for {self.timeout.write:g} s; check the network and try again"
            case httpx2.ConnectError() if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
                what = f"{where} refused the connection; check that the server is running"
            case httpx2.ConnectError() if unknown_host:
                what = f"{where}: unknown host name; check {self._setting('base_url')} and the network"
                # A temporary failure of the name server, not an unknown name.
                retryable = unknown_host.errno == socket.EAI_AGAIN
            case httpx2.ConnectError() if any(isinstance(cause, ssl.SSLError) for cause in causes):
                what = f"{where}: TLS handshake failed ({self.sanitized(str(error))}); check https and the certificate"
                retryable = False
            case httpx2.ConnectError():
                what = f"{where} is unreachable ({self.sanitized(str(error))}); check the network and base_url"
            case httpx2.ProxyError():
                what = f"The proxy for {self.shown_url} refused the connection; check HTTPS_PROXY and NO_PROXY"
                retryable = False
            case _:
                what = f"{where} closed the connection; try again"
        return ModelFailed(f"{what}.", retryable=retryable)

    def status_failed(self, status: int, headers: httpx2.Headers, body: bytes, model: str) -> ModelFailed:
        """Convert a response with an HTTP error."""
        error = _decoded(body)
        detail = self.sanitized(detail_of(body))
        answer = f"(HTTP {status}: {detail})" if detail else f"(HTTP {status})"
        # A request with too many bytes, mostly of images, is also fixed by a summary.
        if status == 413 or (status in (400, 422) and _is_context_full(error)):
            return self._context_full(model, answer)
        wait_s = retry_after_s(headers)
        is_exhausted = status == 429 and "insufficient_quota" in _names(error)
        retryable = (status in _RETRYABLE or status >= 500) and not is_exhausted
        if status in (401, 403) and not self.api_key:
            template = _KEY_MISSING
        elif is_exhausted:
            template = _QUOTA_EXHAUSTED
        elif 300 <= status < 400:
            template = _REDIRECTED
        else:
            template = _STATUS_MESSAGES.get(status, _SERVER_ERROR if retryable else _REFUSED)
        message = template.format(
            name=self.name,
            answer=answer,
            model=model,
            url=self.shown_url,
            setting=f"[providers.{self.name}]",
            when="later" if wait_s is None else f"in {math.ceil(wait_s)} s",
        )
        if not retryable or wait_s is None:
            return ModelFailed(f"{message}.", retryable=retryable)
        return ModelFailed(f"{message}.", retryable=True, wait_s=min(wait_s, WAIT_S_MAX))

    def stream_failed(self, error: object, model: str) -> ModelFailed:
        """Convert an error that arrived instead of the rest of a reply."""
        detail = self.sanitized(error_text(error))
        if _is_context_full(error):
            return self._context_full(model, f"({detail})")
        names = _names(error)
        status = next((int(name) for name in names if name.isdigit()), None)
        is_permanent = any(word in name for name in names for word in _PERMANENT)
        message = f"Provider {self.name} sent an error in the reply ({detail})"
        if is_permanent or (status is not None and status < 500 and status not in _RETRYABLE):
            return ModelFailed(f"{message}; change the prompt or the model.")
        return ModelFailed(f"{message}; try again.", retryable=True)

    def _context_full(self, model: str, answer: str) -> ContextFull:
        return ContextFull(
            f"The session exceeds the context of model {model} of provider {self.name} {answer}; "
            "start a new session or send less."
        )

    def _setting(self, key: str) -> str:
        return f"{key} under [providers.{self.name}]"

    def _bad_url(self) -> ModelFailed:
        return ModelFailed(
            f"The base_url of provider {self.name} is not a valid http or https address; "
            f"check {self._setting('base_url')}."
        )


async def error_body(response: httpx2.Response, wait_s: float = ERROR_S_MAX) -> bytes:
    """Read the beginning of the body of an error, as far as it arrives."""
    body, slices = b"", Slices()
    # The status alone is enough for a message.
    with suppress(httpx2.HTTPError, TimeoutError):
        async with asyncio.timeout(wait_s), aclosing(response.aiter_bytes()) as reads:
            async for received in reads:
                body += received
                await slices.count(len(received))
                if len(body) >= ERROR_BYTES_MAX:
                    break
    return body[:ERROR_BYTES_MAX]


def detail_of(body: bytes) -> str:
    """Return the message of an error: {"error": {"message"}}, {"error"}, {"detail"}, a list of one of them, or text."""
    error = _decoded(body)
    # HTML is not readable in a terminal.
    return "" if isinstance(error, str) and error.startswith("<") else error_text(error)


def _decoded(body: bytes) -> object:
    """Decode a body as JSON, or as text."""
    try:
        value: object = msgspec.json.decode(body)
    except NOT_JSON:
        return body.decode("utf-8", "replace").strip()
    return value


def error_in(event: msgspec.Raw) -> object:
    """Return the error in an event, or None; of a long error only the beginning, as text."""
    raw = bytes(event)
    if raw in (b"", b"null"):
        return None
    return _decoded(raw) if len(raw) <= ERROR_BYTES_MAX else raw[:ERROR_BYTES_MAX].decode("utf-8", "replace")


def error_text(error: object) -> str:
    """Return the message in a decoded error, or the error as JSON."""
    while isinstance(error, list) and error:
        error = error[0]
    while isinstance(error, dict):
        inner = next((error[key] for key in ("error", "message", "detail") if error.get(key)), None)
        if inner is None:
            return msgspec.json.encode(error).decode() if error else ""
        error = inner
    return "" if error is None else str(error)


def _names(error: object) -> set[str]:
    """Return the values of `type`, `code` and `status` on every level of an error, in lower case."""
    names: set[str] = set()
    pending: list[Any] = [error]
    # The size of the error is bounded (ERROR_BYTES_MAX).
    while pending:
        match pending.pop():
            case list() as items:
                pending += items
            case dict() as fields:
                names |= {str(fields[key]).lower() for key in ("type", "code", "status") if fields.get(key) is not None}
                pending += [inner for inner in fields.values() if isinstance(inner, dict | list)]
            case _:
                pass
    return names


def _is_context_full(error: object) -> bool:
    text = " ".join([error_text(error), *_names(error)]).lower()
    return any(phrase in text for phrase in _CONTEXT_FULL)


def retry_after_s(headers: httpx2.Headers) -> float | None:
    """Return Retry-After, a number or a date, in seconds; None if it is missing, invalid or zero."""
    value = headers.get("retry-after", "").strip()
    # Up to a hundred days: a longer number is not a valid delay.
    if value.isascii() and value.replace(".", "", 1).isdigit() and len(value) < 8:
        return float(value) or None
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time()) or None
    except (ValueError, TypeError, OverflowError):
        return None


def _causes(error: BaseException) -> list[BaseException]:
    """Return the error, its causes, and the members of groups: a host with two addresses fails with a group."""
    causes: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop()
        if cause is None or cause in causes:
            continue
        causes.append(cause)
        pending += [cause.__cause__, cause.__context__]
        if isinstance(cause, BaseExceptionGroup):
            pending += cause.exceptions
    return causes
