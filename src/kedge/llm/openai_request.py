"""A ModelRequest in the words of OpenAI's chat completions."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from kedge.core.transcript import Binary, ImageUrl, Message, ShellCommand, Text, ToolCall, ToolResult
from kedge.errors import ModelFailed
from kedge.llm.base import ModelRequest, ToolSpec
from kedge.llm.transport import NOT_JSON

Json = dict[str, Any]


def request_body(request: ModelRequest, shown_name: str) -> bytes:
    """The body to post. ModelFailed when the newest prompt holds a file that the format cannot carry."""
    newest = next((message for message in reversed(request.messages) if message.role == "user"), None)
    messages: list[Json] = []
    if request.system:
        messages.append({"role": "system", "content": _clean(request.system)})
    for message in request.messages:
        match message.role:
            case "user":
                messages.append(_user(message, shown_name if message is newest else None))
            case "assistant":
                messages.append(_assistant(message))
            case "tool":
                messages += map(_result, message.all(ToolResult))
            case "system":
                messages.append({"role": "system", "content": _clean(message.text)})
    body: Json = {
        "model": request.model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    return msgspec.json.encode(body)


def _user(message: Message, refuse_for: str | None) -> Json:
    """`refuse_for` names the model when a file it cannot be sent is an error. In an older message it is only noted,
    since otherwise one wrong file would make every later prompt of the session fail."""
    content: list[Json] = []
    for part in message.parts:
        match part:
            case Text(text=text):
                content.append(_text(text))
            case Binary():
                content.append(_file(part, refuse_for))
            case ImageUrl(url=url, detail=detail):
                content.append(
                    {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}
                )
            case ShellCommand(command=command, output=output, exit_code=code):
                content.append(_text(f"I ran this command:\n$ {command}\n{output}\n(exit code {code})"))
    if all(part["type"] == "text" for part in content):
        # Plain text where it will do: the older and smaller servers take nothing else.
        return {"role": "user", "content": "\n\n".join(part["text"] for part in content)}
    return {"role": "user", "content": content}


def _file(file: Binary, refuse_for: str | None) -> Json:
    if file.mime_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": f"data:{file.mime_type};base64,{file.data}"}}
    try:
        text = base64.b64decode(file.data, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        what = f"{file.path or 'The attached file'} ({file.mime_type or 'unknown type'}) is neither text nor an image"
        if refuse_for:
            raise ModelFailed(f"{what}, and nothing else can be sent to {refuse_for}; leave it out.") from None
        return _text(f"[{what}; its content was not sent]")
    return _text(f"File {file.path}:\n\n{text}")


def _assistant(message: Message) -> Json:
    """Without the reasoning: these endpoints refuse or ignore it when it comes back."""
    said: Json = {"role": "assistant", "content": _clean(message.text) or None}
    calls = message.all(ToolCall)
    if calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call.input)}}
            for call in calls
        ]
    return said


def _arguments(given: str) -> str:
    """Always a JSON object: many servers parse the arguments of earlier calls and fail on what a model got wrong."""
    try:
        if isinstance(msgspec.json.decode(given or "{}"), dict):
            return _clean(given) or "{}"
    except NOT_JSON:
        pass
    return msgspec.json.encode({"malformed": _clean(given)}).decode()


def _result(result: ToolResult) -> Json:
    return {"role": "tool", "tool_call_id": result.tool_call_id, "content": _clean(result.content)}


def _tool(tool: ToolSpec) -> Json:
    function = {"name": tool.name, "description": tool.description, "parameters": msgspec.Raw(tool.schema.encode())}
    return {"type": "function", "function": function}


def _text(text: str) -> Json:
    return {"type": "text", "text": _clean(text)}


def _clean(text: str) -> str:
    """Without lone surrogates, which no JSON in UTF-8 can carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
