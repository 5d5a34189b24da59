"""Providers without a native format, through the package pydantic-ai.

It is an extra, large and slow to import, so it is loaded beside the event loop when a model of such a provider is first
asked. Its words for messages are made in `pydantic_ai_request`.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import httpx2
import msgspec

from kedge.core.records import Usage
from kedge.core.transcript import FinishReason, ToolCall
from kedge.errors import ContextFull, ModelFailed
from kedge.llm.base import ModelEnd, ModelPart, ModelRequest, ReasoningDelta, TextDelta
from kedge.llm.pydantic_ai_request import Signed, request_messages, request_parameters, request_settings
from kedge.llm.streaming import TOOL_CALLS_MAX, TOOL_INPUT_CHARS_MAX, TOOL_INPUTS_CHARS_MAX
from kedge.llm.transport import TIMEOUT, ProviderEndpoint
from kedge.slices import Slices

#: Types whose library accepts our HTTP client; the others open their own, and close it after the Step.
_SHARE_CLIENT: Final = frozenset({"google", "mistral", "openai-responses"})
#: Links followed from an error to its causes; the libraries nest three or four.
_CAUSES_MAX: Final = 16

_FINISH: Final[dict[str, FinishReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_call": "tool_use",
    "content_filter": "content_filter",
}


class PydanticAIModel:
    """A model of a provider. It may be reused: it loads its library once."""

    def __init__(
        self,
        provider: str,
        name: str,
        base_url: str,
        api_key: str | None,
        client: httpx2.AsyncClient,
        kind: str,
    ) -> None:
        self.provider = provider
        self.name = name
        self.kind = kind
        self._endpoint = ProviderEndpoint(provider, base_url, api_key, TIMEOUT)
        self._client = _Client(client)
        self._model: Any = None
        self._loading = asyncio.Lock()

    async def load(self) -> None:
        """Load the package and create the model, which takes a second the first time. `stream` calls it."""
        async with self._loading:
            if self._model is None:
                self._endpoint.checked_key()
                if self._endpoint.base_url:
                    self._endpoint.checked_url("")
                self._model = await asyncio.to_thread(self._new_model)

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPart]]:
        await self.load()
        async with aclosing(self._parts(request)) as parts:
            yield parts

    def _new_model(self) -> Any:
        try:
            library = _library()
            return library.models.infer_model(f"{self.kind}:{self.name}", provider_factory=self._new_provider)
        except ImportError:
            raise ModelFailed(missing_extra(self.provider, self.kind)) from None
        except ModelFailed:
            raise
        except Exception as error:  # a library may raise anything about a missing key, region or name
            raise self._unusable(error) from None

    def _new_provider(self, kind: str) -> Any:
        provider_class = _library().providers.infer_provider_class(kind)
        taken = inspect.signature(provider_class.__init__).parameters
        options: dict[str, Any] = {}
        if self._endpoint.api_key:
            options["api_key"] = self._endpoint.api_key
        if self._endpoint.base_url:
            if "base_url" not in taken:
                raise ModelFailed(f"Provider {self.provider} of type {kind} does not support base_url; remove it.")
            options["base_url"] = self._endpoint.base_url
        if kind in _SHARE_CLIENT:
            options["http_client"] = self._client
        provider = provider_class(**options)
        if kind == "bedrock":
            # The engine decides on retries; this library has no option to disable its own.
            service = provider.client.meta.service_model
            provider.client.meta.events.unregister(
                f"needs-retry.{service.service_id.hyphenize()}",
                unique_id=f"retry-config-{service.service_name}",
            )
        return provider

    async def _parts(self, request: ModelRequest) -> AsyncGenerator[ModelPart, None]:
        library = _library()
        model = self._model
        shown_name = f"{self.provider}/{self.name}"
        messages = request_messages(library, request, self.kind, model.system, shown_name)
        reply = _Reply(library)
        try:
            async with _closing(), model:
                opened = library.direct.model_request_stream(
                    model,
                    messages,
                    model_settings=request_settings(library, request, self.kind),
                    model_request_parameters=request_parameters(library, request),
                    instrument=False,
                )
                slices = Slices()
                async with opened as stream:
                    async for event in stream:
                        await slices.count()
                        for part in reply.take(event):
                            yield part
                    end = reply.end(stream.get())
        except ModelFailed:
            raise
        except Exception as error:  # each library has its own errors, and some are not wrapped
            raise self._failed(error) from None
        if end is None:
            raise ModelFailed(
                f"Provider {self.provider} ended its reply before it was complete; try again.", retryable=True
            )
        yield end

    def _failed(self, error: Exception) -> ModelFailed:
        errors = _library().exceptions
        if isinstance(error, errors.ModelHTTPError):
            failed = (
                self._endpoint.stream_failed(error.body or error.provider_error_code, self.name)
                if error.in_stream
                else self._endpoint.status_failed(
                    error.status_code, httpx2.Headers(error.headers or {}), _body_of(error.body), self.name
                )
            )
        elif transport := _transport_error(error):
            failed = self._endpoint.transport_failed(transport)
        elif isinstance(error, errors.ModelConnectionError):
            failed = self._endpoint.transport_failed(httpx2.ReadError(str(error)))
        elif isinstance(error, errors.UserError | ImportError):
            failed = self._unusable(error)
        elif isinstance(error, errors.ModelAPIError) and error.body:
            failed = self._endpoint.stream_failed(error.body, self.name)
        else:
            detail = self._endpoint.sanitized(str(error) or type(error).__name__)
            failed = ModelFailed(
                f"Provider {self.provider} sent an invalid reply ({detail}); try again.", retryable=True
            )
        if isinstance(error, errors.ModelContextWindowExceededError) and not isinstance(failed, ContextFull):
            return ContextFull(
                f"The session exceeds the context of model {self.name} of provider {self.provider}; "
                "start a new session or send less."
            )
        return failed

    def _unusable(self, error: Exception) -> ModelFailed:
        detail = self._endpoint.sanitized(str(error) or type(error).__name__).rstrip(".")
        return ModelFailed(
            f"Provider {self.provider} of type {self.kind} has an invalid configuration ({detail}); "
            f"check [providers.{self.provider}]."
        )


def missing_extra(provider: str, kind: str) -> str:
    return (
        f"Provider {provider} of type {kind} needs the extra: pip install 'kedge[providers]' "
        "(in a clone: .venv/bin/python -m pip install -r requirements-providers.lock)."
    )


class _Reply:
    """A reply, assembled from the events of pydantic-ai."""

    def __init__(self, library: Any) -> None:
        self._messages = library.messages
        self._input_chars: dict[int, int] = {}
        self._inputs_chars = 0

    def take(self, event: Any) -> list[ModelPart]:
        words = self._messages
        match event:
            case words.PartStartEvent(part=words.TextPart(content=text)) if text:
                return [TextDelta(text)]
            case words.PartStartEvent(part=words.ThinkingPart(content=text)) if text:
                return [ReasoningDelta(text)]
            case words.PartStartEvent(index=index, part=words.ToolCallPart() as call):
                self._count(index, call.args)
            case words.PartDeltaEvent(delta=words.TextPartDelta(content_delta=text)) if text:
                return [TextDelta(text)]
            case words.PartDeltaEvent(delta=words.ThinkingPartDelta(content_delta=text)) if text:
                return [ReasoningDelta(text)]
            case words.PartDeltaEvent(index=index, delta=words.ToolCallPartDelta(args_delta=piece)):
                self._count(index, piece)
            case words.PartEndEvent(part=words.ThinkingPart() as thought) if thought.signature or thought.id:
                return [ReasoningDelta("", Signed.of(thought).text())]
            case _:
                pass
        return []

    def _count(self, index: int, piece: Any) -> None:
        chars = len(piece if isinstance(piece, str) else str(piece or ""))  # some providers send a parsed input
        self._input_chars[index] = self._input_chars.get(index, 0) + chars
        self._inputs_chars += chars
        if len(self._input_chars) > TOOL_CALLS_MAX:
            raise ModelFailed(f"The model called more than {TOOL_CALLS_MAX} tools at once; ask for less in one prompt.")
        if self._input_chars[index] > TOOL_INPUT_CHARS_MAX:
            raise ModelFailed(
                f"The model sent more than {TOOL_INPUT_CHARS_MAX} characters of tool input; ask for less at once."
            )
        if self._inputs_chars > TOOL_INPUTS_CHARS_MAX:
            raise ModelFailed(
                f"The model sent more than {TOOL_INPUTS_CHARS_MAX} characters of tool input; ask for less at once."
            )

    def end(self, whole: Any) -> ModelEnd | None:
        """Return the last part; None if the reply is incomplete."""
        if whole.state != "complete":
            return None
        usage = Usage(
            whole.usage.input_tokens,
            whole.usage.output_tokens,
            cache_read_tokens=whole.usage.cache_read_tokens,
            cache_write_tokens=whole.usage.cache_write_tokens,
        )
        calls = tuple(
            ToolCall(part.tool_call_id, part.tool_name, part.args_as_json_str())
            for part in whole.parts
            if isinstance(part, self._messages.ToolCallPart)
        )
        reason = _FINISH.get(whole.finish_reason or "", "unknown")
        # A call that the limit or the filter cut off is dropped: half an input may be valid JSON, and wrong.
        if calls and reason not in ("max_tokens", "content_filter"):
            return ModelEnd("tool_use", calls, usage)
        return ModelEnd("unknown" if reason == "tool_use" else reason, (), usage)


class _Client(httpx2.AsyncClient):
    """The shared HTTP client; it records the responses that are opened through it.

    Leaving a stream must close its connection at once, and not every provider's library does so: some leave it to the
    garbage collector.
    """

    def __init__(self, shared: httpx2.AsyncClient) -> None:
        super().__init__(transport=httpx2.AsyncBaseTransport(), timeout=TIMEOUT, trust_env=False)
        self._shared = shared

    async def send(self, request: httpx2.Request, **more: Any) -> httpx2.Response:
        response = await self._shared.send(request, **more)
        _opened.get([]).append(response)
        return response


#: Responses opened by the stream of this task.
_opened: ContextVar[list[httpx2.Response]] = ContextVar("_opened")


@asynccontextmanager
async def _closing() -> AsyncIterator[None]:
    """Close all responses that were opened inside."""
    opened: list[httpx2.Response] = []
    _opened.set(opened)
    try:
        yield
    finally:
        for response in opened:
            await response.aclose()


def _transport_error(error: BaseException) -> httpx2.HTTPError | None:
    """Return the transport error in an error or its causes. Some libraries use httpx, with the same class names."""
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if isinstance(cause, httpx2.HTTPError):
            return cause
        if cause is None:
            return None
        same = getattr(httpx2, type(cause).__name__, None) if type(cause).__module__.startswith("httpx") else None
        if same is not None and issubclass(same, httpx2.HTTPError):
            converted: httpx2.HTTPError = same(str(cause))
            converted.__cause__ = cause
            return converted
        cause = cause.__cause__ or cause.__context__
    return None


def _body_of(body: object) -> bytes:
    """Return the body of an error, which the libraries provide as text or decoded."""
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body, enc_hook=str) if body else b""


@cache
def _library() -> Any:
    """Return the used modules of pydantic-ai. Raise ImportError without the extra."""
    names = ("direct", "exceptions", "messages", "models", "providers", "settings", "tools")
    importlib.invalidate_caches()  # it may have been installed since this server started
    return SimpleNamespace(**{name: importlib.import_module(f"pydantic_ai.{name}") for name in names})
