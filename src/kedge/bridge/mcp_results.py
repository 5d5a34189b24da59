"""Results of MCP servers as bounded text and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ReadResourceResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from kedge.bridge.mcp_messages import (
    DESCRIPTION_CHARS_MAX,
    IMAGES_CHARS_MAX,
    NAME_CHARS_MAX,
    SCHEMA_BYTES_MAX,
    TEXT_CHARS_MAX,
    ListedPrompt,
    ListedResource,
    ListedTool,
    McpCallResult,
)

#: Pictures that models accept.
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
#: Blocks of one result. Items.
BLOCKS_MAX = 1000
CUT = "\n... the rest is left out ..."


class _Text:
    """Collects text up to the limit."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._left = TEXT_CHARS_MAX
        self._is_cut = False

    def add(self, text: str) -> None:
        if self._left > 0 and text:
            self._parts.append(text[: self._left])
        self._is_cut = self._is_cut or len(text) > self._left
        self._left -= len(text)

    def __str__(self) -> str:
        return "\n".join(self._parts) + (CUT if self._is_cut else "")

    @property
    def is_empty(self) -> bool:
        return not self._parts


def call_result(result: CallToolResult) -> McpCallResult:
    text, images, image_chars = _Text(), [], 0
    for block in result.content[:BLOCKS_MAX]:
        if isinstance(block, ImageContent):
            if block.mime_type not in IMAGE_TYPES:
                text.add(f"[A picture of the type {block.mime_type[:100]}, which cannot be shown]")
            elif image_chars + len(block.data) > IMAGES_CHARS_MAX:
                text.add("[A picture that is too large to show]")
            else:
                image_chars += len(block.data)
                images.append(f"data:{block.mime_type};base64,{block.data}")
        else:
            text.add(_block(block))
    if result.structured_content is not None and text.is_empty:
        text.add(_json(result.structured_content))
    return McpCallResult(str(text), tuple(images), result.is_error)


def prompt_text(result: GetPromptResult) -> str:
    text = _Text()
    for message in result.messages[:BLOCKS_MAX]:
        text.add(_block(message.content))
    return str(text)


def resource_text(result: ReadResourceResult) -> str:
    text = _Text()
    for content in result.contents[:BLOCKS_MAX]:
        text.add(_resource(content))
    return str(text)


def _block(block: Any) -> str:
    match block:
        case TextContent(text=text):
            return text
        case ImageContent() | AudioContent():
            return f"[{block.type} of the type {block.mime_type[:100]}, which cannot be shown]"
        case ResourceLink():
            name = f"{block.name[:NAME_CHARS_MAX]}: " if block.name else ""
            return f"[Resource {name}{block.uri[:NAME_CHARS_MAX]}]"
        case EmbeddedResource(resource=resource):
            return _resource(resource)
    return "[content of an unknown type]"


def _resource(content: TextResourceContents | BlobResourceContents) -> str:
    if isinstance(content, TextResourceContents):
        return content.text
    return f"[Binary content of {str(content.uri)[:NAME_CHARS_MAX]}, which cannot be shown]"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- listings -------------------------------------------------------------------------------------------------------


def listed_tools(tools: Iterable[Any]) -> list[ListedTool]:
    listed = []
    for tool in tools:
        schema = json.dumps(tool.input_schema, ensure_ascii=False, separators=(",", ":"))
        listed.append(
            ListedTool(
                tool.name[:NAME_CHARS_MAX],
                (tool.description or tool.title or "")[:DESCRIPTION_CHARS_MAX],
                schema if len(schema.encode("utf-8", "replace")) <= SCHEMA_BYTES_MAX else "",
            )
        )
    return listed


def listed_prompts(prompts: Iterable[Any]) -> list[ListedPrompt]:
    return [
        ListedPrompt(
            prompt.name[:NAME_CHARS_MAX],
            (prompt.description or prompt.title or "")[:DESCRIPTION_CHARS_MAX],
            tuple(argument.name[:NAME_CHARS_MAX] for argument in (prompt.arguments or [])[:20]),
            tuple(argument.name[:NAME_CHARS_MAX] for argument in (prompt.arguments or [])[:20] if argument.required),
        )
        for prompt in prompts
    ]


def listed_resources(resources: Iterable[Any]) -> list[ListedResource]:
    return [
        ListedResource(
            str(resource.uri),
            (resource.name or "")[:NAME_CHARS_MAX],
            (resource.description or "")[:NAME_CHARS_MAX],
        )
        for resource in resources
        if len(str(resource.uri)) <= NAME_CHARS_MAX  # a part of one names nothing
    ]
