"""How the scripted endpoint says a thing in each provider's format: one `Voice` per reply, bytes of events out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kedge.llm.anthropic_request import GO_ON, LEFT_OUT
from kedge.testing.rules import anthropic_refusal, blocks_of, openai_refusal, signature_of

Json = dict[str, Any]

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Spent:
    """What a reply is said to have cost. `tokens_in` are all, `read` and `written` of them from and to a cache."""

    tokens_in: int
    tokens_out: int
    read: int = 0
    written: int = 0


class Voice(ABC):
    """One reply in one format."""

    def __init__(self, number: int, body: Json) -> None:
        self._number = number
        self._body = body

    @staticmethod
    @abstractmethod
    def refusal(body: Json, headers: dict[str, str]) -> str | None:
        """Why the provider would not answer this request, or None."""

    @staticmethod
    @abstractmethod
    def messages(body: Json) -> list[Json]:
        """The request's messages in the shape of chat completions: what `script.plan` reads."""

    @staticmethod
    @abstractmethod
    def error(status: int, message: str, code: str = "") -> Json:
        """The body of an HTTP error; `code` is what it calls itself."""

    @abstractmethod
    def start(self, spent: Spent) -> bytes:
        """What comes before the first word."""

    @abstractmethod
    def say(self, word: str) -> bytes: ...

    @abstractmethod
    def think(self, word: str) -> bytes: ...

    @abstractmethod
    def redact(self, data: str) -> bytes: ...

    @abstractmethod
    def call(self, index: int, name: str, given: str) -> bytes:
        """The input in two pieces, as real providers cut it."""

    @abstractmethod
    def break_off(self, status: int, message: str, code: str = "") -> bytes:
        """The error inside the stream."""

    @abstractmethod
    def end(self, finish: str, has_calls: bool, spent: Spent) -> bytes: ...


class OpenAIVoice(Voice):
    _WORD: Final = b'data: {"id":"scripted","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"'
    _WORD_END: Final = b'},"finish_reason":null}]}\n\n'

    @staticmethod
    def refusal(body: Json, headers: dict[str, str]) -> str | None:
        return openai_refusal(body)

    @staticmethod
    def messages(body: Json) -> list[Json]:
        found: list[Json] = body["messages"]
        return found

    @staticmethod
    def error(status: int, message: str, code: str = "") -> Json:
        names = {"type": code, "code": code} if code else {"code": status}
        return {"error": {"message": message, **names}}

    def start(self, spent: Spent) -> bytes:
        return b""

    def say(self, word: str) -> bytes:
        return self._WORD + b'content":' + _encode(word) + self._WORD_END

    def think(self, word: str) -> bytes:
        return self._WORD + b'reasoning_content":' + _encode(word) + self._WORD_END

    def redact(self, data: str) -> bytes:
        return b""

    def call(self, index: int, name: str, given: str) -> bytes:
        half = len(given) // 2
        first = {"name": name, "arguments": given[:half]}
        head = {"index": index, "id": f"call_{self._number}_{index}", "type": "function", "function": first}
        return b"".join(
            _frame({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]})
            for call in (head, {"index": index, "function": {"arguments": given[half:]}})
        )

    def break_off(self, status: int, message: str, code: str = "") -> bytes:
        return _frame(self.error(status, message, code))

    def end(self, finish: str, has_calls: bool, spent: Spent) -> bytes:
        reason = finish or ("tool_calls" if has_calls else "stop")
        said = _frame({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if (self._body.get("stream_options") or {}).get("include_usage"):
            said += _frame({"choices": [], "usage": self._usage(spent)})
        return said + b"data: [DONE]\n\n"

    def _usage(self, spent: Spent) -> Json:
        usage: Json = {
            "prompt_tokens": spent.tokens_in,
            "completion_tokens": spent.tokens_out,
            "total_tokens": spent.tokens_in + spent.tokens_out,
        }
        return {**usage, "prompt_tokens_details": {"cached_tokens": spent.read}} if spent.read else usage


class AnthropicVoice(Voice):
    #: The words that scripts use for the end, in this format.
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
        #: The kind of block that is open, and what was thought in it.
        self._open = ""
        self._thought: list[str] = []

    @staticmethod
    def refusal(body: Json, headers: dict[str, str]) -> str | None:
        return anthropic_refusal(body, headers)

    @staticmethod
    def messages(body: Json) -> list[Json]:
        """Each text of a user is a message of its own: the format has them joined where nobody answered in between."""
        system = body.get("system") or ""
        told = system if isinstance(system, str) else "\n\n".join(block["text"] for block in system)
        found: list[Json] = [{"role": "system", "content": told}] if told else []
        for message in body["messages"]:
            blocks = blocks_of(message)
            if message["role"] == "assistant":
                calls = [{"id": block["id"]} for block in blocks if block["type"] == "tool_use"]
                found.append({"role": "assistant", "content": blocks, "tool_calls": calls})
                continue
            for block in blocks:
                if block["type"] == "tool_result":
                    found.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"]})
                elif block["type"] == "text" and block["text"] not in (GO_ON, LEFT_OUT):
                    found.append({"role": "user", "content": block["text"]})
        return found

    @staticmethod
    def error(status: int, message: str, code: str = "") -> Json:
        kind = code or AnthropicVoice._ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"}

    def start(self, spent: Spent) -> bytes:
        usage = {
            "input_tokens": max(0, spent.tokens_in - spent.read - spent.written),
            "cache_creation_input_tokens": spent.written,
            "cache_read_input_tokens": spent.read,
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
            "usage": usage,
        }
        return _event("message_start", message=message) + _event("ping")

    def say(self, word: str) -> bytes:
        return self._into("text", text="") + self._delta(type="text_delta", text=word)

    def think(self, word: str) -> bytes:
        opened = self._into("thinking", thinking="", signature="")
        self._thought.append(word)
        return opened + self._delta(type="thinking_delta", thinking=word)

    def redact(self, data: str) -> bytes:
        return self._close() + self._into("redacted_thinking", data=data) + self._close()

    def call(self, index: int, name: str, given: str) -> bytes:
        opened = self._close() + self._into("tool_use", id=f"toolu_{self._number}_{index}", name=name, input={})
        half = len(given) // 2
        pieces = [
            self._delta(type="input_json_delta", partial_json=piece) for piece in ("", given[:half], given[half:])
        ]
        return opened + b"".join(pieces) + self._close()

    def break_off(self, status: int, message: str, code: str = "") -> bytes:
        return _event("error", error=self.error(status, message, code)["error"])

    def end(self, finish: str, has_calls: bool, spent: Spent) -> bytes:
        reason = self._FINISH.get(finish, finish) or ("tool_use" if has_calls else "end_turn")
        delta = {"stop_reason": reason, "stop_sequence": None}
        usage = {"output_tokens": spent.tokens_out}
        return self._close() + _event("message_delta", delta=delta, usage=usage) + _event("message_stop")

    def _into(self, kind: str, **block: Any) -> bytes:
        """Into a block of this kind: the open one, or a new one."""
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
            signed = self._delta(type="signature_delta", signature=signature_of("".join(self._thought)))
            self._thought.clear()
        self._open = ""
        self._blocks += 1
        return signed + _event("content_block_stop", index=self._blocks - 1)

    def _delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=self._blocks, delta=delta)


def _frame(frame: object) -> bytes:
    return b"data: " + _encode(frame) + b"\n\n"


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\n" + _frame({"type": kind, **fields})
