"""Requests in the types of pydantic-ai. `library` is that package, which is loaded late."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

from kedge.core.reversal import Reversal, reversal_prompt
from kedge.core.transcript import Binary, ImageUrl, Message, Reasoning, ShellCommand, Text, ToolCall, ToolResult
from kedge.core.untrusted_text import without_surrogates
from kedge.llm.base import ModelRequest
from kedge.llm.content import (
    NO_IMAGES,
    NO_OUTPUT,
    Refusing,
    command_text,
    file_text,
    image_path,
    refusing,
    tool_input,
    tool_name,
)
from kedge.llm.transport import NOT_JSON

#: Types that accept PDF files.
_READ_PDF: Final = frozenset({"bedrock", "google", "google-cloud", "openai-responses"})
#: Levels of thinking: (up to this many tokens, level).
_LEVELS: Final = ((4_096, "low"), (16_384, "medium"))


class Signed(msgspec.Struct, omit_defaults=True, frozen=True):
    """Data that a provider requires back with a thought, stored as `Reasoning.signature`."""

    provider: str
    id: str = ""
    signature: str = ""

    @classmethod
    def of(cls, thought: Any) -> Signed:
        return cls(thought.provider_name or "", thought.id or "", thought.signature or "")

    @classmethod
    def read(cls, signature: str) -> Signed | None:
        """Return None for a signature of another module, which these providers do not understand."""
        try:
            return msgspec.json.decode(signature, type=cls)
        except NOT_JSON:
            return None

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def request_messages(library: Any, request: ModelRequest, kind: str, system: str, shown_name: str) -> list[Any]:
    """Convert the messages. `system` is the name of the provider in signatures."""
    words = library.messages
    messages: list[Any] = []
    for message, files in refusing(request, shown_name):
        match message.role:
            case "user":
                messages.append(words.ModelRequest([words.UserPromptPart(_user(words, message, files, kind))]))
            case "assistant":
                messages.append(words.ModelResponse(_assistant(words, message, system), provider_name=system))
            case "tool":
                results = [_result(words, result, request.accepts_images) for result in message.all(ToolResult)]
                messages.append(words.ModelRequest(results))
            case "system":
                messages.append(words.ModelRequest([words.SystemPromptPart(without_surrogates(message.text))]))
    return messages


def request_parameters(library: Any, request: ModelRequest) -> Any:
    tools = [
        library.tools.ToolDefinition(
            name=tool.name, description=tool.description, parameters_json_schema=msgspec.json.decode(tool.schema)
        )
        for tool in request.tools
    ]
    system = [library.messages.InstructionPart(content=without_surrogates(request.system))] if request.system else []
    return library.models.ModelRequestParameters(function_tools=tools, instruction_parts=system)


def request_settings(library: Any, request: ModelRequest, kind: str) -> Any:
    settings: dict[str, Any] = {}
    if kind != "bedrock":  # which has no such setting
        settings["max_retries"] = 0
    if request.output_tokens_max is not None:
        settings["max_tokens"] = request.output_tokens_max
    if request.effort:
        settings["thinking"] = request.effort
    elif request.thinking_tokens is not None:
        budget = request.thinking_tokens
        settings["thinking"] = next((level for tokens, level in _LEVELS if budget <= tokens), "high")
    return library.settings.ModelSettings(**settings)


def _user(words: Any, message: Message, files: Refusing, kind: str) -> str | list[Any]:
    content: list[Any] = []
    for part in message.parts:
        match part:
            case Text(text=text):
                content.append(without_surrogates(text))
            case Binary():
                content.append(_file(words, part, files, kind))
            case ImageUrl(url=url):
                content.append(files.image(image_path(part)) or _image(words, url))
            case ShellCommand():
                content.append(without_surrogates(command_text(part)))
            case Reversal():
                content.append(without_surrogates(reversal_prompt(part)))
    return "\n\n".join(content) if all(isinstance(part, str) for part in content) else content


def _file(words: Any, file: Binary, files: Refusing, kind: str) -> Any:
    is_image = file.mime_type.startswith("image/")
    if is_image and (note := files.image(file.path)):
        return note
    if is_image or (file.mime_type == "application/pdf" and kind in _READ_PDF):
        try:
            return words.BinaryContent(base64.b64decode(file.data, validate=True), media_type=file.mime_type)
        except (binascii.Error, ValueError):
            return files.other(file, "a file that can be read")
    text = file_text(file)
    return files.other(file, "an image") if text is None else without_surrogates(text)


def _image(words: Any, url: str) -> Any:
    return words.BinaryContent.from_data_uri(url) if url.startswith("data:") else words.ImageUrl(url)


def _assistant(words: Any, message: Message, system: str) -> list[Any]:
    parts: list[Any] = []
    for part in message.parts:
        match part:
            case Text(text=text) if text:
                parts.append(words.TextPart(without_surrogates(text)))
            case Reasoning(thinking=thinking, signature=signature):
                # Without their own signature, providers ignore a thought or take it for text.
                signed = Signed.read(signature)
                if signed and signed.provider == system:
                    parts.append(
                        words.ThinkingPart(
                            without_surrogates(thinking),
                            id=signed.id or None,
                            signature=signed.signature or None,
                            provider_name=signed.provider,
                        )
                    )
            case ToolCall(id=call_id, name=name, input=source):
                parts.append(words.ToolCallPart(tool_name(name), tool_input(source), call_id))
            case _:
                pass
    return parts


def _result(words: Any, result: ToolResult, accepts_images: bool) -> Any:
    content: Any = without_surrogates(result.content) or NO_OUTPUT
    if result.images:
        shown = [_image(words, url) for url in result.images] if accepts_images else [NO_IMAGES]
        content = [content, *shown]
    return words.ToolReturnPart(
        tool_name(result.name), content, result.tool_call_id, outcome="failed" if result.is_error else "success"
    )
