"""Request bodies for Anthropic messages.

That format is strict, and a session may hold what another provider's model did in it. So whatever comes in, this goes
out: user and assistant by turns with a user first and last, each call answered in the next message, results in
front, ids and names of the letters that are allowed, and no text without content. Thoughts go back only to the
provider that signed them, which wants them unchanged and in their places.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict, deque
from typing import Final

import msgspec

from kedge.core.reversal import Reversal, reversal_prompt
from kedge.core.transcript import Binary, ImageUrl, Message, Reasoning, ShellCommand, Text, ToolCall, ToolResult
from kedge.core.untrusted_text import without_surrogates
from kedge.llm.base import REDACTED, ModelRequest, ToolSpec
from kedge.llm.content import (
    IMAGE_TYPES,
    NO_IMAGES,
    NO_OUTPUT,
    Json,
    Refusing,
    command_text,
    file_text,
    image_path,
    refusing,
    tool_input,
    tool_name,
)

#: The format requires a limit. Every model since Claude 3.7 supports this one; a source file of 1500 lines fits, and a
#: model that repeats itself stops within minutes.
OUTPUT_TOKENS_DEFAULT: Final = 16_384
#: The smallest budget for thinking, and the tokens that it must leave for the answer.
THINKING_TOKENS_MIN: Final = 1024
#: The part of the output limit that is the budget for thinking, if that is more than the minimum.
EFFORT_SHARE: Final = {"low": 0.0, "medium": 0.25, "high": 0.5}
#: Cache marks in one request; a fifth is refused.
CACHE_MARKS_MAX: Final = 4
#: Id of a call. Cloud platforms with this format refuse longer ones. Characters.
ID_CHARS_MAX: Final = 64

#: Accepted files, for messages.
TAKEN: Final = "a PDF nor a PNG, JPEG, GIF or WebP image"
#: The user message that the format requires after an interrupted reply.
GO_ON: Final = "Continue."
#: The first message of a shortened transcript.
LEFT_OUT: Final = "[The beginning of this conversation was left out.]"

_ID: Final = re.compile(rf"[a-zA-Z0-9_-]{{1,{ID_CHARS_MAX}}}")
#: Models with a budget for thinking: all before 4.6. Later ones decide how much to think, and refuse a budget.
_THINKS_BY_BUDGET: Final = re.compile(r"claude-(3|(opus|sonnet|haiku)-4([-.][0-5](?!\d)|-20\d{6}|@|$))|^(?!.*claude)")
_EPHEMERAL: Final = {"type": "ephemeral"}


def request_body(request: ModelRequest, provider: str) -> Json:
    """Return the request body. Raise ModelFailed if the newest prompt has a file that the format does not support."""
    messages = _Messages(provider)
    system = [request.system]
    for message, refuse in refusing(request, f"{provider}/{request.model}"):
        match message.role:
            case "user":
                messages.add("user", _user(message, refuse))
            case "assistant":
                messages.add_assistant(message)
            case "tool":
                messages.add("user", messages.results(message.all(ToolResult), request.accepts_images))
            case "system":
                system.append(message.text)
    body: Json = {
        "model": request.model,
        "max_tokens": request.output_tokens_max or OUTPUT_TOKENS_DEFAULT + (_budget(request) or 0),
        "messages": messages.whole(),
        "stream": True,
        **_thinking(request, messages),
    }
    if texts := [_text(text) for text in system if text.strip()]:
        body["system"] = texts
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    _mark_for_cache(body)
    return body


def _budget(request: ModelRequest) -> int | None:
    if not request.effort:
        return request.thinking_tokens
    limit = request.output_tokens_max or OUTPUT_TOKENS_DEFAULT
    return max(THINKING_TOKENS_MIN, int(limit * EFFORT_SHARE[request.effort]))


def _thinking(request: ModelRequest, messages: _Messages) -> Json:
    if (room := _budget(request)) is None:
        return {}
    if not _THINKS_BY_BUDGET.search(request.model):
        # Later models hide their thoughts unless they are requested.
        thinking: Json = {"thinking": {"type": "adaptive", "display": "summarized"}}
        return {**thinking, "output_config": {"effort": request.effort}} if request.effort else thinking
    # The budget is part of max_tokens and must be smaller; without room for it, do not think.
    if request.output_tokens_max is not None:
        room = min(room, request.output_tokens_max - THINKING_TOKENS_MIN)
    if room < THINKING_TOKENS_MIN or messages.is_amid_tools_without_thought:
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": room}}


def _mark_for_cache(body: Json) -> None:
    """Mark what the provider should cache: the tools, the system prompt, and the last two user messages. The next
    Step then finds the last one of this Step."""
    users = [message["content"][-1] for message in body["messages"] if message["role"] == "user"]
    blocks = [*body.get("tools", [])[-1:], *body.get("system", [])[-1:], *users[-2:]]
    for block in blocks[:CACHE_MARKS_MAX]:
        block["cache_control"] = _EPHEMERAL


class _Messages:
    """Builds the messages in the order that the format requires."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._messages: list[Json] = []
        self._ids = _CallIds()

    def add(self, role: str, blocks: list[Json]) -> None:
        """Add blocks; merge them into the previous message of the same role. Replies are not merged, since each begins
        with its own thoughts."""
        if not blocks:
            return
        last = self._messages[-1]["role"] if self._messages else None
        if last == role == "user":
            self._messages[-1]["content"] += blocks
            return
        if last is None and role == "assistant":
            self._messages.append({"role": "user", "content": [_text(LEFT_OUT)]})
        elif last == role:
            self._messages.append({"role": "user", "content": [_text(GO_ON)]})
        self._messages.append({"role": role, "content": blocks})

    def add_assistant(self, message: Message) -> None:
        sent_ids = iter(self._ids.of_step(message.all(ToolCall)))
        blocks: list[Json] = []
        for part in message.parts:
            match part:
                case Reasoning(signature=signature) if signature and message.provider == self._provider:
                    blocks.append(_thought(part))
                case Text(text=text) if text.strip():
                    # Trailing white space is refused in the last message.
                    blocks.append(_text(text.rstrip()))
                case ToolCall():
                    blocks.append(_call(part, next(sent_ids)))
        # Thoughts alone are not a valid message.
        self.add("assistant", [] if all(_is_thought(block) for block in blocks) else blocks)

    def results(self, results: list[ToolResult], accepts_images: bool) -> list[Json]:
        return [_result(result, self._ids.answered(result), accepts_images) for result in results]

    @property
    def is_amid_tools_without_thought(self) -> bool:
        """Return True if a budget for thinking would be refused: the reply with the tool calls has no thought."""
        if len(self._messages) < 2 or self._messages[-1]["content"][0]["type"] != "tool_result":
            return False
        return not _is_thought(self._messages[-2]["content"][0])

    def whole(self) -> list[Json]:
        if not self._messages or self._messages[-1]["role"] == "assistant":
            self.add("user", [_text(GO_ON)])
        return self._messages


class _CallIds:
    """Valid and unique ids of calls. Other providers use other characters, and some restart their numbers in each Step.
    Equal transcripts get equal ids, which the cache of the provider requires."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        #: Stored and sent ids of the calls of the last Step.
        self._open: dict[str, deque[str]] = {}

    def of_step(self, calls: list[ToolCall]) -> list[str]:
        self._open = defaultdict(deque)
        sent = [self._new(call.id) for call in calls]
        for call, sent_id in zip(calls, sent, strict=True):
            self._open[call.id].append(sent_id)
        return sent

    def answered(self, result: ToolResult) -> str:
        # Results of two calls with one id are matched in order. `for_model` returns no result without its call.
        return self._open[result.tool_call_id].popleft()

    def _new(self, stored: str) -> str:
        sent = stored if _ID.fullmatch(stored) else f"call_{_digest(stored)}"
        again = 1
        while sent in self._used:
            again += 1
            sent = f"call_{_digest(f'{again} {stored}')}"
        self._used.add(sent)
        return sent


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _user(message: Message, refuse: Refusing) -> list[Json]:
    """Convert a user message: images and documents first, as the provider advises, then the text in one block."""
    shown: list[Json] = []
    texts: list[str] = []
    for part in message.parts:
        match part:
            case Text(text=text):
                texts.append(text)
            case Binary():
                block = _file(part, refuse)
                shown += [block] if isinstance(block, dict) else []
                texts += [block] if isinstance(block, str) else []
            case ImageUrl(url=url):
                block = refuse.image(image_path(part)) or _image(url) or refuse.other(_of_data(url), TAKEN)
                shown += [block] if isinstance(block, dict) else []
                texts += [block] if isinstance(block, str) else []
            case ShellCommand():
                texts.append(command_text(part))
            case Reversal():
                texts.append(reversal_prompt(part))
    text = "\n\n".join(text for text in texts if text.strip())
    return [*shown, _text(text)] if text else shown


def _file(file: Binary, refuse: Refusing) -> Json | str:
    if file.mime_type == "application/pdf":
        source = {"type": "base64", "media_type": file.mime_type, "data": file.data}
        return {
            "type": "document",
            "source": source,
            **({"title": without_surrogates(file.path)[:200]} if file.path else {}),
        }
    if file.mime_type in IMAGE_TYPES:
        return refuse.image(file.path) or _image_of_data(file)
    # An SVG has an image type, and is text.
    return file_text(file) or refuse.other(file, TAKEN)


def _image(url: str) -> Json | None:
    """Convert a data URL, or an address that the provider fetches; None for an unsupported type."""
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    file = _of_data(url)
    return _image_of_data(file) if file.mime_type in IMAGE_TYPES else None


def _of_data(url: str) -> Binary:
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return Binary("", kind[:50], data)


def _image_of_data(file: Binary) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": file.mime_type, "data": file.data}}


def _call(call: ToolCall, sent_id: str) -> Json:
    arguments = msgspec.Raw(tool_input(call.input).encode())
    return {"type": "tool_use", "id": sent_id, "name": tool_name(call.name), "input": arguments}


def _is_thought(block: Json) -> bool:
    return block["type"] in ("thinking", "redacted_thinking")


def _thought(part: Reasoning) -> Json:
    if part.signature.startswith(REDACTED):
        return {"type": "redacted_thinking", "data": part.signature.removeprefix(REDACTED)}
    return {"type": "thinking", "thinking": without_surrogates(part.thinking), "signature": part.signature}


def _result(result: ToolResult, sent_id: str, accepts_images: bool) -> Json:
    texts = [without_surrogates(result.content)] if result.content.strip() else []
    images = [image for image in map(_image, result.images) if image] if accepts_images else []
    if len(images) < len(result.images):
        texts.append(NO_IMAGES)
    text = "\n".join(texts) or ("" if images else NO_OUTPUT)
    content: str | list[Json] = [*([_text(text)] if text else []), *images] if images else text
    block: Json = {"type": "tool_result", "tool_use_id": sent_id, "content": content}
    return {**block, "is_error": True} if result.is_error else block


def _tool(tool: ToolSpec) -> Json:
    return {"name": tool.name, "description": tool.description, "input_schema": msgspec.Raw(tool.schema.encode())}


def _text(text: str) -> Json:
    return {"type": "text", "text": without_surrogates(text)}
