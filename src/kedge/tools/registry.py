"""The tools there are, and how a model's call becomes a typed input."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kedge.tools.agent import AgentTool
from kedge.tools.base import Tool, ToolFailed, description
from kedge.tools.edit import EditTool, MultiEditTool
from kedge.tools.fetch import FetchTool
from kedge.tools.ls import LsTool
from kedge.tools.question import QuestionTool
from kedge.tools.search import GlobTool, GrepTool
from kedge.tools.shell import BashTool, JobsTool
from kedge.tools.todos import TodosTool
from kedge.tools.view import ViewTool
from kedge.tools.write import WriteTool

#: A sub-agent has no sub-agents, asks nobody and keeps no list.
NOT_FOR_CHILDREN = frozenset({"agent", "question", "todos"})


def all_tools(guarded: tuple[Path, ...] = ()) -> tuple[Tool, ...]:
    """`guarded`: what no rule with a wildcard opens, such as our own configuration."""
    files = [kind(guarded) for kind in (ViewTool, LsTool, GlobTool, GrepTool, EditTool, MultiEditTool, WriteTool)]
    return (
        *(BashTool(), JobsTool(), *files),
        *(FetchTool(), TodosTool(), QuestionTool(), AgentTool()),
    )


#: As models call them and rules speak of them.
TOOL_NAMES = tuple(tool.name for tool in all_tools())


class Toolset:
    def __init__(self, tools: tuple[Tool, ...] = ()) -> None:
        self._tools = tools

    def offered(self, *, only_look: bool) -> list[Tool]:
        if not only_look:
            return list(self._tools)
        return [tool for tool in self._tools if tool.kind == "look" and tool.name not in NOT_FOR_CHILDREN]

    def description(self, tool: Tool) -> str:
        return description(tool.name)

    def schema(self, tool: Tool) -> str:
        return _schema(tool.input)

    def decoded(self, tool: Tool, given: str) -> Any:
        """The call's input as the tool's type. Models write numbers as text at times; that is understood."""
        try:
            return msgspec.json.decode(given or "{}", type=tool.input, strict=False)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"The input of {tool.name} does not fit: {error}.") from None
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ToolFailed(f"The input of {tool.name} is not valid JSON ({error}); write the call again.") from None


@cache
def _schema(kind: type[msgspec.Struct]) -> str:
    """JSON Schema of a tool's input, as JSON text: one plain object, since not every provider follows `$ref`."""
    _, parts = msgspec.json.schema_components([kind], ref_template="{name}")
    return msgspec.json.encode(_inlined(parts[kind.__name__], parts)).decode()


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, parts) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"]], parts)
    # What a class is called in our code is nothing a model needs to know. (A field may be named "title": no string.)
    return {
        key: _inlined(value, parts) for key, value in schema.items() if not (key == "title" and isinstance(value, str))
    }
