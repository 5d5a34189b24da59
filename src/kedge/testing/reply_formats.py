"""The wire formats of the scripted endpoint: one `ReplyFormat` per reply, which returns the bytes of its events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kedge.llm.anthropic_request import GO_ON, LEFT_OUT
from kedge.testing.provider_rules import anthropic_refusal, blocks_of, openai_refusal, signature_of

Json = dict[str, Any]

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ReplyUsage:
    """The reported usage of a reply. `tokens_in` includes those `read` from and `written` to a cache."""

    tokens_in: int
    tokens_out: int
    read: int = 0
    written: int = 0


class ReplyFormat(ABC):
    """One reply in one format."""

    def __init__(self, number: int, body: Json) -> None:
        self._number = number
        self._body = body

    @staticmethod
    @abstractmethod
    def refusal(body: Json, headers: dict[str, str]) -> str | None:
        """Return why the provider would refuse this request, or None."""

    @staticmethod
    @abstractmethod
    def messages(body: Json) -> list[Json]:
        """Return the messages of the request in the shape of chat completions, for `script.plan`."""

    @staticmethod
    @abstractmethod
    def error(status: int, message: str, code: str = "") -> Json:
        """Return the body of an HTTP error; `code` is its type."""

    @abstractmethod
    def start(self, usage: ReplyUsage) -> bytes:
        """Return the events before the first word."""

    @abstractmethod
    def say(self, word: str) -> bytes: ...

    @abstractmethod
    def think(self, word: str) -> bytes: ...

    @abstractmethod
    def redact(self, data: str) -> bytes: ...

    @abstractmethod
    def call(self, index: int, name: str, arguments: str) -> bytes:
        """Return the events of a tool call. The input comes in two pieces, as from real providers."""

    @abstractmethod
    def break_off(self, status: int, message: str, code: str = "") -> bytes:
        """Return the event of an error inside the stream."""

    @abstractmethod
    def end(self, finish: str, has_calls: bool, usage: ReplyUsage) -> bytes: ...


class OpenAIFormat(ReplyFormat):
    _WORD: Final = b'data: {"id":"scripted","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"'
    _WORD_END: Final = b'},"finish_reason":null}]}\n\n'

    @staticmethod
    def refusal(body: Json, headers: dict[str, str]) -> str | None:
        return openai_refusal(body)

    @staticmethod
    def messages(body: Json) -> list[Json]:
        messages: list[Json] = body["messages"]
        return messages

    @staticmethod
    def error(status: int, message: str, code: str = "") -> Json:
        names = {"type": code, "code": code} if code else {"code": status}
        return {"error": {"message": message, **names}}

    def start(self, usage: ReplyUsage) -> bytes:
        return b""

    def say(self, word: str) -> bytes:
        return self._WORD + b'content":' + _encode(word) + self._WORD_END

    def think(self, word: str) -> bytes:
        return self._WORD + b'reasoning_content":' + _encode(word) + self._WORD_END

    def redact(self, data: str) -> bytes:
        return b""

    def call(self, index: int, name: str, arguments: str) -> bytes:
        half = len(arguments) // 2
        first = {"name": name, "arguments": arguments[:half]}
        head = {"index": index, "id": f"call_{self._number}_{index}", "type": "function", "function": first}
        return b"".join(
            _frame({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]})
            for call in (head, {"index": index, "function": {"arguments": arguments[half:]}})
        )

    def break_off(self, status: int, message: str, code: str = "") -> bytes:
        return _frame(self.error(status, message, code))

    def end(self, finish: str, has_calls: bool, usage: ReplyUsage) -> bytes:
        reason = finish or ("tool_calls" if has_calls else "stop")
        frames = _frame({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if (self._body.get("stream_options") or {}).get("include_usage"):
            frames += _frame({"choices": [], "usage": self._usage(usage)})
        return frames + b"data: [DONE]\n\n"

    def _usage(self, usage: ReplyUsage) -> Json:
        counts: Json = {
            "prompt_tokens": usage.tokens_in,
            "completion_tokens": usage.tokens_out,
            "total_tokens": usage.tokens_in + usage.tokens_out,
        }
        return {**counts, "prompt_tokens_details": {"cached_tokens": usage.read}} if usage.read else counts


class AnthropicFormat(ReplyFormat):
    #: The finish reasons of scripts, in this format.
    _FINISH: Final = {
        "stop": "end_turn",
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "content_filter": "refusal",
    }
    _ERRORS: Final = {
        400: "invalid_request_error",
        401: "authentication_error",
        402: "billing_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        504: "timeout_error",
        529: "overloaded_error",
    }

    def __init__(self, number: int, body: Json) -> None:
        super().__init__(number, body)
        self._blocks = 0
        #: The type of the open block, and its reasoning.
        self._open = ""
        self._reasoning: list[str] = []

    @staticmethod
    def refusal(body: Json, headers: dict[str, str]) -> str | None:
        return anthropic_refusal(body, headers)

    @staticmethod
    def messages(body: Json) -> list[Json]:
        """Return each user text as a separate message: this format joins those without a reply in between."""
        system = body.get("system") or ""
        text = system if isinstance(system, str) else "\n\n".join(block["text"] for block in system)
        messages: list[Json] = [{"role": "system", "content": text}] if text else []
        for message in body["messages"]:
            blocks = blocks_of(message)
            if message["role"] == "assistant":
                calls = [{"id": block["id"]} for block in blocks if block["type"] == "tool_use"]
                messages.append({"role": "assistant", "content": blocks, "tool_calls": calls})
                continue
            for block in blocks:
                if block["type"] == "tool_result":
                    messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"]})
                elif block["type"] == "text" and block["text"] not in (GO_ON, LEFT_OUT):
                    messages.append({"role": "user", "content": block["text"]})
        return messages

    @staticmethod
    def error(status: int, message: str, code: str = "") -> Json:
        kind = code or AnthropicFormat._ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"}

    def start(self, usage: ReplyUsage) -> bytes:
        counts = {
            "input_tokens": max(0, usage.tokens_in - usage.read - usage.written),
            "cache_creation_input_tokens": usage.written,
            "cache_read_input_tokens": usage.read,
            "output_tokens": 1,
        }
        message: Json = {
            "id": f"msg_{self._number}",
            "type": "message",
            "role": "assistant",
            "model": self._body.get("model"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": counts,
        }
        return _event("message_start", message=message) + _event("ping")

    def say(self, word: str) -> bytes:
        return self._open_block("text", text="") + self._delta(type="text_delta", text=word)

    def think(self, word: str) -> bytes:
        opened = self._open_block("thinking", thinking="", signature="")
        self._reasoning.append(word)
        return opened + self._delta(type="thinking_delta", thinking=word)

    def redact(self, data: str) -> bytes:
        return self._close() + self._open_block("redacted_thinking", data=data) + self._close()

    def call(self, index: int, name: str, arguments: str) -> bytes:
        opened = self._close() + self._open_block("tool_use", id=f"toolu_{self._number}_{index}", name=name, input={})
        half = len(arguments) // 2
        pieces = ("", arguments[:half], arguments[half:])
        deltas = [self._delta(type="input_json_delta", partial_json=piece) for piece in pieces]
        return opened + b"".join(deltas) + self._close()

    def break_off(self, status: int, message: str, code: str = "") -> bytes:
        return _event("error", error=self.error(status, message, code)["error"])

    def end(self, finish: str, has_calls: bool, usage: ReplyUsage) -> bytes:
        reason = self._FINISH.get(finish, finish) or ("tool_use" if has_calls else "end_turn")
        delta = {"stop_reason": reason, "stop_sequence": None}
        counts = {"output_tokens": usage.tokens_out}
        return self._close() + _event("message_delta", delta=delta, usage=counts) + _event("message_stop")

    def _open_block(self, kind: str, **block: Any) -> bytes:
        """Open a block of this type, unless it is open."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._open = kind
        return closed + _event("content_block_start", index=self._blocks, content_block={"type": kind, **block})

    def _close(self) -> bytes:
        if not self._open:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._delta(type="signature_delta", signature=signature_of("".join(self._reasoning)))
            self._reasoning.clear()
        self._open = ""
        self._blocks += 1
        return signed + _event("content_block_stop", index=self._blocks - 1)

    def _delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=self._blocks, delta=delta)


def _frame(frame: object) -> bytes:
    return b"data: " + _encode(frame) + b"\n\n"


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\n" + _frame({"type": kind, **fields})
