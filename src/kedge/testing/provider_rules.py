"""The rules by which providers refuse requests. The scripted endpoint applies them, so that every test that uses it
also proves that its transcript is valid: no call without a result, no result without a call, nothing out of order.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

Json = dict[str, Any]

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
#: Cache marks in one request to Anthropic. Items.
_CACHE_MARKS_MAX: Final = 4
#: The smallest thinking budget of Anthropic. Tokens.
_THINKING_TOKENS_MIN: Final = 1024


def openai_refusal(body: Json) -> str | None:
    """Return why OpenAI would refuse this request, or None."""
    return next(_openai_faults(body), None)


def anthropic_refusal(body: Json, headers: dict[str, str]) -> str | None:
    """Return why Anthropic would refuse this request, or None."""
    return next(_anthropic_faults(body, headers), None)


def signature_of(thought: str) -> str:
    """Return the endpoint's signature of a reasoning text, which reveals any change of it."""
    return "sig_" + hashlib.sha256(thought.encode()).hexdigest()[:24]


def _openai_faults(body: Json) -> Iterator[str]:
    messages: list[Json] = body["messages"]
    if not messages:
        yield "messages: must not be empty"
    #: The calls of the last assistant message that have no result yet: the results must come next.
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        where, role = f"messages[{index}]", message["role"]
        if role == "tool":
            if message["tool_call_id"] not in open_calls:
                yield f"{where}: tool result {message['tool_call_id']!r} has no call in the message before it"
            else:
                open_calls.remove(message["tool_call_id"])
            if not isinstance(message["content"], str):
                yield f"{where}: the content of a tool message must be text"
            continue
        if open_calls:
            yield f"{where}: these tool calls have no result: {', '.join(open_calls)}"
        if role == "assistant":
            calls = message.get("tool_calls") or []
            open_calls = [call["id"] for call in calls]
            if not calls and not message.get("content"):
                yield f"{where}: an assistant message needs content or tool calls"
            if len(set(open_calls)) < len(open_calls):
                yield f"{where}: two tool calls have the same id"
            for call in calls:
                yield from _openai_call_faults(where, call)
        elif role not in ("user", "system"):
            yield f"{where}: unknown role {role!r}"
        elif not isinstance(message["content"], str | list) or message["content"] == []:
            yield f"{where}: content is needed"
    if open_calls:
        yield f"these tool calls have no result: {', '.join(open_calls)}"
    yield from _tool_faults([tool["function"] for tool in body.get("tools") or []])


def _openai_call_faults(where: str, call: Json) -> Iterator[str]:
    if not call["id"]:
        yield f"{where}: a tool call needs an id"
    if not _NAME.fullmatch(call["function"]["name"]):
        yield f"{where}: {call['function']['name']!r} is not a valid tool name"
    try:
        if not isinstance(msgspec.json.decode(call["function"]["arguments"]), dict):
            yield f"{where}: the arguments of a tool call must be an object"
    except msgspec.DecodeError:
        yield f"{where}: the arguments of a tool call are not valid JSON"


def _tool_faults(tools: list[Json]) -> Iterator[str]:
    names = [tool["name"] for tool in tools]
    if len(set(names)) < len(names):
        yield "tools: names must be unique"
    for name in names:
        if not _NAME.fullmatch(name):
            yield f"tools: {name!r} is not a valid tool name"


def _anthropic_faults(body: Json, headers: dict[str, str]) -> Iterator[str]:
    if "anthropic-version" not in headers:
        yield "anthropic-version: header is required"
    limit = body.get("max_tokens")
    if not isinstance(limit, int) or limit < 1:
        yield "max_tokens: a number is required"
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled":
        budget = thinking["budget_tokens"]
        if budget < _THINKING_TOKENS_MIN:
            yield f"thinking.budget_tokens: must be at least {_THINKING_TOKENS_MIN}"
        if budget >= (limit or 0):
            yield "max_tokens: must be greater than thinking.budget_tokens"
    marks = msgspec.json.encode(body).count(b'"cache_control":')
    if marks > _CACHE_MARKS_MAX:
        yield f"at most {_CACHE_MARKS_MAX} blocks may have cache_control, {marks} have"
    system = body.get("system") or ""
    for block in system if isinstance(system, list) else []:
        yield from _block_faults("system", block)
    yield from _tool_faults(body.get("tools") or [])
    yield from _order_faults(body["messages"], thinking.get("type") == "enabled")


def _order_faults(messages: list[Json], thinks: bool) -> Iterator[str]:
    if not messages or messages[0]["role"] != "user":
        yield "messages: the first must have the role user"
    used: set[str] = set()
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        where, role = f"messages.{index}", message["role"]
        if role not in ("user", "assistant"):
            yield f"{where}.role: must be user or assistant, not {role!r}"
        if index and messages[index - 1]["role"] == role:
            yield f"{where}: roles must alternate, this is the second {role!r} in a row"
        blocks = blocks_of(message)
        if not blocks:
            yield f"{where}: content must not be empty"
        for block in blocks:
            yield from _block_faults(where, block)
        yield from _result_faults(where, blocks, open_calls)
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len(set(calls)) < len(calls) or used & set(calls):
            yield f"{where}: tool_use ids must be unique"
        if calls and role != "assistant":
            yield f"{where}: only an assistant message may use tools"
        used |= set(calls)
        open_calls = set(calls)
    if open_calls:
        yield f"tool_use ids without tool_result after them: {', '.join(sorted(open_calls))}"
    last = blocks_of(messages[-1])
    if messages[-1]["role"] == "assistant" and last[-1].get("text", "") != last[-1].get("text", "").rstrip():
        yield "messages: the final assistant content must not end with white space"
    if thinks and last[0]["type"] == "tool_result" and "thinking" not in blocks_of(messages[-2])[0]["type"]:
        yield "messages: with thinking, the assistant message that used tools must begin with a thinking block"


def _result_faults(where: str, blocks: list[Json], open_calls: set[str]) -> Iterator[str]:
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    if missing := open_calls - set(results):
        yield f"{where}: tool_use ids without tool_result right after them: {', '.join(sorted(missing))}"
    if unexpected := set(results) - open_calls:
        yield f"{where}: tool_result without tool_use in the message before: {', '.join(sorted(unexpected))}"
    if len(set(results)) < len(results):
        yield f"{where}: each tool_use must have one tool_result"
    if any(block["type"] != "tool_result" for block in blocks[: len(results)]):
        yield f"{where}: tool_result blocks must come first"


def _block_faults(where: str, block: Json) -> Iterator[str]:
    match block["type"]:
        case "text":
            if not block["text"].strip():
                yield f"{where}: text content blocks must be non-empty"
        case "image" | "document":
            yield from _source_faults(where, block["type"], block["source"])
        case "tool_use":
            if not _ID.fullmatch(block["id"]):
                yield f"{where}: tool_use.id {block['id']!r} must match {_ID.pattern}"
            if not _NAME.fullmatch(block["name"]):
                yield f"{where}: tool_use.name {block['name']!r} must match {_NAME.pattern}"
            if not isinstance(block["input"], dict):
                yield f"{where}: tool_use.input must be an object"
        case "tool_result":
            content = block.get("content") or ""
            for inner in content if isinstance(content, list) else []:
                yield from _block_faults(where, inner)
            if block.get("is_error") and not content:
                yield f"{where}: the content of a tool_result with is_error must not be empty"
        case "thinking":
            # Encrypted blocks of models that hide their reasoning have no text; the endpoint sends none of those.
            if block["signature"] != signature_of(block["thinking"]):
                yield f"{where}: invalid signature in thinking block"
        case "redacted_thinking":
            if not block["data"]:
                yield f"{where}: redacted_thinking needs its data"
        case other:
            yield f"{where}: unknown block type {other!r}"


def _source_faults(where: str, kind: str, source: Json) -> Iterator[str]:
    if source["type"] != "base64":
        return
    if source["media_type"] not in (_IMAGE_TYPES if kind == "image" else ("application/pdf",)):
        yield f"{where}: {source['media_type']!r} is not an accepted {kind} type"
    try:
        base64.b64decode(source["data"], validate=True)
    except (binascii.Error, ValueError):
        yield f"{where}: the data of the {kind} is not valid base64"


def blocks_of(message: Json) -> list[Json]:
    """Return the content of an Anthropic message as blocks."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
