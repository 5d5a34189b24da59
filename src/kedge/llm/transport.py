"""What every HTTP provider shares: the client, its time limits, and the sentence each fault becomes.

A fault becomes one `ModelFailed` that says what happened and what to do, and whether the same request may succeed
later. No sentence ever holds the key: not when the provider repeats it, not when the address carries one.
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

#: A server that is there answers a connect within a round trip; 10 s leave room for a slow network and TLS.
CONNECT_S_MAX: Final = 10.0
#: Between two reads. Reasoning models think for minutes before their first word, and some send no keep-alive meanwhile.
READ_S_MAX: Final = 300.0
#: Between two writes of the request; a megabyte of transcript over a slow line still moves within it.
WRITE_S_MAX: Final = 60.0
#: Bytes read of the body of an error: enough for any message, whatever the server pours out.
ERROR_BYTES_MAX: Final = 64 * 1024
#: Seconds given to that body: the error is known already, and a person waits for it.
ERROR_S_MAX: Final = 5.0
#: Characters of the provider's own words in a sentence of ours, which is shown on one line or two.
DETAIL_CHARS_MAX: Final = 300
#: Idle connections kept for the next Step, and for how long: most servers close idle ones after 60 s or later.
_IDLE_CONNECTIONS_MAX: Final = 50
_IDLE_S_MAX: Final = 30.0

#: Longest wait that a provider's Retry-After is taken at its word for. Whoever is told to wait longer gives up anyway.
WAIT_S_MAX: Final = 3600.0
#: Statuses below 500 after which the same request may succeed: too slow, in each other's way, too early, too often.
_RETRYABLE: Final = frozenset({408, 409, 425, 429})
#: What an error inside a stream calls itself when the request is at fault, so that repeating it is of no use. Every
#: other one, also without a name, is a fault of the server: it had accepted the request and begun to answer.
_LASTING: Final = (
    *("invalid", "authentication", "permission", "not_found", "too_large", "billing", "quota", "policy", "unsupported"),
    *("content_filter", "context_length"),
)
#: How providers say that a request is longer than the model's context: in a code, or only in words.
_CONTEXT_FULL: Final = (
    *("context_length_exceeded", "exceed_context_size", "maximum context length", "context window", "context length"),
    *("prompt is too long", "exceed context limit", "available context size", "maximum number of tokens allowed"),
)

#: A shorter key is a placeholder for a server that wants none.
_KEY_CHARS_MIN: Final = 8

#: What decoding raises on bytes from outside: RecursionError for a tower of brackets.
NOT_JSON: Final = (msgspec.DecodeError, UnicodeError, RecursionError)

#: Given with every request, so that it holds whatever client is used.
TIMEOUT: Final = httpx2.Timeout(connect=CONNECT_S_MAX, read=READ_S_MAX, write=WRITE_S_MAX, pool=CONNECT_S_MAX)

_LOCAL: Final = ("all://localhost", "all://127.0.0.1", "all://[::1]")


def new_client(*, tls: bool = True) -> httpx2.AsyncClient:
    """The client to give to the models of a server: one for all of them, closed by whoever opened it. Without `tls` it
    knows no certificates, and is for addresses that begin with http:// alone.

    As many connections as there are Runs, since a Run that waits for another Run's connection would look hung. A proxy
    that the environment names is used, but never to reach this machine itself.
    """
    # anyio loads these when they are first used, which would be on the event loop.
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
class Provider:
    """One provider as the configuration names it, and the sentences for what may go wrong with it."""

    name: str
    base_url: str
    api_key: str | None = field(repr=False)
    timeout: httpx2.Timeout

    def checked_url(self, path: str) -> httpx2.URL:
        """The address of a call, or ModelFailed. httpx2 alone would answer some bad ones with an ExceptionGroup."""
        try:
            url = httpx2.URL(self.base_url)
        except httpx2.InvalidURL:
            raise self._bad_url() from None
        if url.scheme not in ("http", "https") or not url.host or not 0 <= (url.port or 0) <= 65535:
            raise self._bad_url()
        # The path alone is added to, since an address may end with a query (?api-version=...).
        return url.copy_with(path=url.path.rstrip("/") + path)

    def checked_key(self) -> str:
        """The key to send, empty if there is none, or ModelFailed: the HTTP library's own error would repeat it."""
        key = self.api_key or ""
        if not (key.isascii() and key.isprintable()):
            raise ModelFailed(
                f"The api_key of provider {self.name} holds a line break or another character that no key has; "
                f"check {self._setting('api_key')}."
            )
        return key

    @property
    def shown_url(self) -> str:
        """Where it is, without a name, password or query, since those may be secret."""
        try:
            url = httpx2.URL(self.base_url)
        except httpx2.InvalidURL:
            return "its base_url"
        shown = str(url.copy_with(username=None, password=None, query=None, fragment=None))
        # Some gateways have the key in the path; a placeholder such as "none" or "ollama" is not worth hiding.
        return shown.replace(self.api_key, "***") if self.api_key and len(self.api_key) >= _KEY_CHARS_MIN else shown

    def said(self, text: str) -> str:
        """The provider's own words, fit for a terminal: without the key, one line, no control characters, not long."""
        for secret in self._secrets():
            text = text.replace(secret, "***")  # before anything is cut, or half of a key would stay
        text = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * DETAIL_CHARS_MAX])
        text = " ".join(text.split())
        return text if len(text) <= DETAIL_CHARS_MAX else text[: DETAIL_CHARS_MAX - 1] + "…"

    def _secrets(self) -> list[str]:
        """The key, and what the address carries in its place: the password and the values of its query, as sent."""
        found = [self.api_key] if self.api_key else []
        with suppress(httpx2.InvalidURL):
            url = httpx2.URL(self.base_url)
            login = base64.b64encode(f"{url.username}:{url.password}".encode()).decode()
            sent = [pair.partition("=")[2] for pair in url.query.decode("latin-1").split("&")]
            carried = [*sent, *(value for _, value in url.params.multi_items()), url.password, login]
            found += [value for value in carried if len(value) >= _KEY_CHARS_MIN]
        return found

    def transport_failed(self, error: httpx2.HTTPError) -> ModelFailed:
        """A fault below HTTP: no connection, no answer in time, or one that broke off."""
        where = f"Provider {self.name} at {self.shown_url}"
        causes = _causes(error)
        unknown_host = next((cause for cause in causes if isinstance(cause, socket.gaierror)), None)
        retryable = True
        match error:
            case httpx2.ConnectTimeout() | httpx2.PoolTimeout():
                what = f"{where} took no connection within {self.timeout.connect:g} s; check the network and base_url"
            case httpx2.ReadTimeout():
                what = f"{where} sent nothing for {self.timeout.read:g} s; try again, or choose another model"
            case httpx2.WriteTimeout():
                what = f"{where} took nothing in for {self.timeout.write:g} s; check the network and try again"
            case httpx2.ConnectError() if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
                what = f"{where} refused the connection; check that the server there is running"
            case httpx2.ConnectError() if unknown_host:
                what = f"{where} has a host name that is not known; check {self._setting('base_url')} and the network"
                # "Ask again" is what a name server in trouble says, not one that knows no such name.
                retryable = unknown_host.errno == socket.EAI_AGAIN
            case httpx2.ConnectError() if any(isinstance(cause, ssl.SSLError) for cause in causes):
                what = f"{where} could not agree on TLS ({self.said(str(error))}); check https and the certificate"
                retryable = False
            case httpx2.ConnectError():
                what = f"{where} cannot be reached ({self.said(str(error))}); check the network and base_url"
            case httpx2.ProxyError():
                what = f"The proxy on the way to {self.shown_url} refused; check HTTPS_PROXY and NO_PROXY"
                retryable = False
            case _:
                what = f"{where} broke off the connection; try again"
        return ModelFailed(f"{what}.", retryable=retryable)

    def status_failed(self, status: int, headers: httpx2.Headers, body: bytes, model: str) -> ModelFailed:
        """An answer that is an HTTP error."""
        found = _decoded(body)
        detail = self.said(detail_of(body))
        answer = f"(HTTP {status}: {detail})" if detail else f"(HTTP {status})"
        # Too many bytes, of pictures above all, are helped by the same as too many tokens: a summary.
        if status == 413 or (status in (400, 422) and _says_context_full(found)):
            return self._context_full(model, answer)
        wait_s = retry_after_s(headers)
        when = "later" if wait_s is None else f"in {math.ceil(wait_s)} s"
        retryable = status in _RETRYABLE or status >= 500
        match status:
            case 401 | 403 if not self.api_key:
                what = f"Provider {self.name} wants an API key {answer}; set {self._setting('api_key')}"
            case 401:
                what = (
                    f"Provider {self.name} does not accept its key {answer}; check the api_key of provider {self.name}"
                )
            case 403:
                what = f"Provider {self.name} forbids this {answer}; check what its api_key may use"
            case 402:
                what = f"Provider {self.name} wants to be paid first {answer}; check the account"
            case 404:
                what = (
                    f"Provider {self.name} has no model {model} at {self.shown_url} {answer}; "
                    "check the model's name and base_url"
                )
            case 429 if "insufficient_quota" in _names(found):
                what = f"What was paid to provider {self.name} is used up {answer}; check the account"
                retryable = False
            case 429:
                what = f"Provider {self.name} limits the rate {answer}; try again {when}"
            case 529:
                what = f"Provider {self.name} is overloaded {answer}; try again {when}"
            case _ if 300 <= status < 400:
                what = f"Provider {self.name} is somewhere else {answer}; check {self._setting('base_url')}"
            case _ if retryable:
                what = f"Provider {self.name} has a fault of its own {answer}; try again {when}"
            case _:
                what = (
                    f"Provider {self.name} refused the request {answer}; check that model {model} can do what was asked"
                )
        given_s = None if wait_s is None or not retryable else min(wait_s, WAIT_S_MAX)
        return ModelFailed(f"{what}.", retryable=retryable, wait_s=given_s)

    def stream_failed(self, error: object, model: str) -> ModelFailed:
        """An error that came instead of the rest of a reply."""
        said = self.said(error_text(error))
        if _says_context_full(error):
            return self._context_full(model, f"({said})")
        names = _names(error)
        status = next((int(name) for name in names if name.isdigit()), None)
        lasting = any(word in name for name in names for word in _LASTING)
        if lasting or (status is not None and status < 500 and status not in _RETRYABLE):
            return ModelFailed(
                f"Provider {self.name} broke off with an error ({said}); change the prompt or the model."
            )
        return ModelFailed(f"Provider {self.name} broke off with an error ({said}); try again.", retryable=True)

    def _context_full(self, model: str, answer: str) -> ContextFull:
        return ContextFull(
            f"The session is longer than what model {model} of provider {self.name} can read {answer}; "
            "start a new session or send less."
        )

    def _setting(self, key: str) -> str:
        return f"{key} under [providers.{self.name}]"

    def _bad_url(self) -> ModelFailed:
        return ModelFailed(
            f"The base_url of provider {self.name} is no http or https address; check {self._setting('base_url')}."
        )


async def error_body(response: httpx2.Response, wait_s: float = ERROR_S_MAX) -> bytes:
    """The beginning of an error's body; what was received of it, if it breaks off."""
    body = b""
    # Without a body the status alone says enough.
    with suppress(httpx2.HTTPError, TimeoutError):
        async with asyncio.timeout(wait_s), aclosing(response.aiter_bytes()) as reads:
            async for received in reads:
                body += received
                if len(body) >= ERROR_BYTES_MAX:
                    break
    return body[:ERROR_BYTES_MAX]


def detail_of(body: bytes) -> str:
    """What a provider's error says. Seen are {"error": {"message"}}, {"error"}, {"detail"}, a list of one, and text."""
    found = _decoded(body)
    # A page for browsers tells a person at a terminal nothing.
    return "" if isinstance(found, str) and found.startswith("<") else error_text(found)


def _decoded(body: bytes) -> object:
    """The JSON in a body, or its text."""
    try:
        found: object = msgspec.json.decode(body)
    except NOT_JSON:
        return body.decode("utf-8", "replace").strip()
    return found


def error_in(given: msgspec.Raw) -> object:
    """The error that an event carries, or None. Of a long one only the beginning is returned, as text."""
    raw = bytes(given)
    if raw in (b"", b"null"):
        return None
    return _decoded(raw) if len(raw) <= ERROR_BYTES_MAX else raw[:ERROR_BYTES_MAX].decode("utf-8", "replace")


def error_text(found: object) -> str:
    """The words in a decoded error, or what it looks like."""
    while isinstance(found, list) and found:
        found = found[0]
    while isinstance(found, dict):
        inner = next((found[key] for key in ("error", "message", "detail") if found.get(key)), None)
        if inner is None:
            return msgspec.json.encode(found).decode() if found else ""
        found = inner
    return "" if found is None else str(found)


def _names(found: object) -> set[str]:
    """What an error calls itself: its `type`, `code` and `status`, on every level, as text in lower case."""
    names: set[str] = set()
    waiting: list[Any] = [found]
    # Each level is smaller than the one around it, and the whole came out of one JSON text of bounded size.
    while waiting:
        match waiting.pop():
            case list() as listed:
                waiting += listed
            case dict() as given:
                names |= {str(given[key]).lower() for key in ("type", "code", "status") if given.get(key) is not None}
                waiting += [inner for inner in given.values() if isinstance(inner, dict | list)]
            case _:
                pass
    return names


def _says_context_full(found: object) -> bool:
    said = " ".join([error_text(found), *_names(found)]).lower()
    return any(phrase in said for phrase in _CONTEXT_FULL)


def retry_after_s(headers: httpx2.Headers) -> float | None:
    """Retry-After in seconds, whether it was given as a number or as a date; None if it is neither, and if it asks for
    no wait: then the pauses are our own."""
    given = headers.get("retry-after", "").strip()
    # Up to a hundred days: a longer number is no time to wait.
    if given.isascii() and given.replace(".", "", 1).isdigit() and len(given) < 8:
        return float(given) or None
    try:
        return max(0.0, parsedate_to_datetime(given).timestamp() - time.time()) or None
    except (ValueError, TypeError, OverflowError):
        return None


def _causes(error: BaseException) -> list[BaseException]:
    """The error, what caused it, and the members of groups: a host with two addresses fails with a group."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop()
        if cause is None or cause in found:
            continue
        found.append(cause)
        waiting += [cause.__cause__, cause.__context__]
        if isinstance(cause, BaseExceptionGroup):
            waiting += cause.exceptions
    return found
