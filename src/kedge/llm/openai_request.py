"""Request bodies for chat completions."""

from __future__ import annotations

from typing import Final

import msgspec

from kedge.core.reversal import Reversal, reversal_prompt
from kedge.core.transcript import Binary, ImageUrl, Message, Reasoning, ShellCommand, Text, ToolCall, ToolResult
from kedge.core.untrusted_text import without_surrogates
from kedge.llm.base import ModelRequest, ToolSpec
from kedge.llm.content import (
    IMAGE_TYPES,
    NO_IMAGES,
    Json,
    Refusing,
    command_text,
    file_text,
    image_path,
    refusing,
    tool_input,
    tool_name,
)

#: The field of a thought that must be sent back; stored as the signature of the thought.
REASONING_FIELD: Final = "reasoning_content"


def request_body(request: ModelRequest, shown_name: str, limit_name: str = "max_tokens") -> Json:
    """Return the request body. Raise ModelFailed if the newest prompt has a file that the format does not support."""
    messages: list[Json] = []
    if request.system:
        messages.append({"role": "system", "content": without_surrogates(request.system)})
    for message, refuse in refusing(request, shown_name):
        match message.role:
            case "user":
                messages.append(_user(message, refuse))
            case "assistant":
                messages.append(_assistant(message, shown_name.partition("/")[0]))
            case "tool":
                messages += _results(message.all(ToolResult), request.accepts_images)
            case "system":
                messages.append({"role": "system", "content": without_surrogates(message.text)})
    body: Json = {
        "model": request.model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.output_tokens_max is not None:
        body[limit_name] = request.output_tokens_max
    if request.effort:
        body["reasoning_effort"] = request.effort
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    return body


def _user(message: Message, refuse: Refusing) -> Json:
    content: list[Json] = []
    for part in message.parts:
        match part:
            case Text(text=text):
                content.append(_text(text))
            case Binary():
                content.append(_file(part, refuse))
            case ImageUrl(url=url, detail=detail):
                note = refuse.image(image_path(part))
                content.append(_text(note) if note else _image(url, detail))
            case ShellCommand():
                content.append(_text(command_text(part)))
            case Reversal():
                content.append(_text(reversal_prompt(part)))
    if all(part["type"] == "text" for part in content):
        # Plain text if possible: older and smaller servers support nothing else.
        return {"role": "user", "content": "\n\n".join(part["text"] for part in content)}
    return {"role": "user", "content": content}


def _file(file: Binary, refuse: Refusing) -> Json:
    if file.mime_type in IMAGE_TYPES:
        note = refuse.image(file.path)
        return _text(note) if note else _image(f"data:{file.mime_type};base64,{file.data}")
    # An SVG has an image type, and is text.
    return _text(file_text(file) or refuse.other(file, "an image of a supported type"))


def _assistant(message: Message, provider: str) -> Json:
    """Convert a reply without its reasoning, which most endpoints refuse or ignore. Some (DeepSeek, Moonshot) require
    the reasoning that led to tool calls: they receive theirs."""
    result: Json = {"role": "assistant", "content": without_surrogates(message.text) or None}
    calls = message.all(ToolCall)
    if calls:
        thoughts = [part.thinking for part in message.all(Reasoning) if part.signature == REASONING_FIELD]
        if thoughts and message.provider == provider:
            result[REASONING_FIELD] = without_surrogates("".join(thoughts))
        result["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": tool_name(call.name), "arguments": tool_input(call.input)},
            }
            for call in calls
        ]
    return result


def _results(results: list[ToolResult], accepts_images: bool) -> list[Json]:
    """Convert tool results. A tool message holds text only: images follow in a user message after all results of the
    Step, since no other message is allowed between them."""
    messages: list[Json] = []
    shown: list[Json] = []
    for result in results:
        content = without_surrogates(result.content)
        if result.images and not accepts_images:
            content = f"{content}\n{NO_IMAGES}".lstrip()
        elif result.images:
            shown.append(_text(f"Image from tool call {result.tool_call_id}:"))
            shown += [_image(url) for url in result.images]
        messages.append({"role": "tool", "tool_call_id": result.tool_call_id, "content": content})
    if shown:
        messages.append({"role": "user", "content": shown})
    return messages


def _tool(tool: ToolSpec) -> Json:
    function = {"name": tool.name, "description": tool.description, "parameters": msgspec.Raw(tool.schema.encode())}
    return {"type": "function", "function": function}


def _image(url: str, detail: str = "") -> Json:
    return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}


def _text(text: str) -> Json:
    return {"type": "text", "text": without_surrogates(text)}
