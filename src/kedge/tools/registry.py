"""The tools, and the decoding and description of a model's calls."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from kedge.core.extensions import AgentDefinition
from kedge.core.transcript import ToolCall
from kedge.core.untrusted_text import one_line
from kedge.tools.agent import AgentTool
from kedge.tools.base import Tool, ToolFailed
from kedge.tools.edit import EditTool, MultiEditTool
from kedge.tools.fetch import FetchTool
from kedge.tools.jobs import JobsTool
from kedge.tools.ls import LsTool
from kedge.tools.plan import PlanTool
from kedge.tools.question import QuestionTool
from kedge.tools.search import GlobTool, GrepTool
from kedge.tools.shell import BashTool
from kedge.tools.todos import TodosTool
from kedge.tools.view import ViewTool
from kedge.tools.write import WriteTool

#: Limit of the title of a call: one line on a wide screen. Characters.
CALL_TITLE_CHARS_MAX = 200


def all_tools(guarded: tuple[Path, ...] = ()) -> tuple[Tool, ...]:
    """`guarded`: paths that no rule with a wildcard covers, such as our own configuration."""
    return (
        BashTool(guarded),
        JobsTool(),
        ViewTool(guarded),
        LsTool(guarded),
        GlobTool(guarded),
        GrepTool(guarded),
        EditTool(guarded),
        MultiEditTool(guarded),
        WriteTool(guarded),
        FetchTool(),
        TodosTool(),
        QuestionTool(),
        AgentTool(),
        PlanTool(),
    )


class Toolset:
    def __init__(self, tools: tuple[Tool, ...] = ()) -> None:
        self._tools = {tool.name: tool for tool in tools}

    def offered(self, *, in_plan: bool = False, more: tuple[Tool, ...] = ()) -> list[Tool]:
        """Return the tools for a Step. `more`: tools of extensions; a built-in tool of the same name is kept."""
        every = {**{tool.name: tool for tool in more}, **self._tools}
        return [tool for tool in every.values() if in_plan or not tool.only_in_plan]

    def offered_to_child(self, agent: AgentDefinition | None, more: tuple[Tool, ...] = ()) -> list[Tool]:
        """Return the tools of an agent: those of its definition, else those that change nothing. It starts no agents,
        and plans are for its parent to present."""
        tools = [tool for tool in self.offered(more=more) if tool.name != AgentTool.name]
        if agent is None or agent.tools is None:
            plain = [tool for tool in tools if tool.read_only and tool.for_children]
            return [tool for tool in plain if agent is None or not agent.is_without(tool.name)]
        return [own for tool in tools if (own := tool.for_agent(agent)) is not None]

    def described(self, call: ToolCall, more: tuple[Tool, ...] = ()) -> ToolCall:
        """Return the call with its title and display. Never fails: the model may write any name and any input."""
        tool = self._tools.get(call.name) or next((tool for tool in more if tool.name == call.name), None)
        text = f"{call.name} {call.input[:CALL_TITLE_CHARS_MAX]}"
        if tool is not None:
            with suppress(ToolFailed):  # then the title shows the malformed input
                text = tool.title(self.decoded(tool, call.input))
        line = one_line(text, CALL_TITLE_CHARS_MAX)
        has_more = "\n" in text.strip()
        title = f"{line[: CALL_TITLE_CHARS_MAX - 2]} …" if has_more and not line.endswith("…") else line
        return replace(call, title=title, display="compact" if tool is None else tool.display)

    def schema(self, tool: Tool) -> str:
        return tool.schema or _schema(tool.input)

    def decoded(self, tool: Tool, text: str) -> Any:
        """Return the input of a call as the tool's type. Numbers may be strings: models write them so at times."""
        try:
            return msgspec.json.decode(text or "{}", type=tool.input, strict=False)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"The input of {tool.name} is not valid: {error}.") from None
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ToolFailed(f"The input of {tool.name} is not valid JSON ({error}); write the call again.") from None


@cache
def _schema(kind: type[msgspec.Struct]) -> str:
    """Return the JSON Schema of a tool's input as text: one plain object, since not every provider supports `$ref`."""
    _, parts = msgspec.json.schema_components([kind], ref_template="{name}")
    return msgspec.json.encode(_inlined(parts[kind.__name__], parts)).decode()


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, parts) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"]], parts)
    # Without the names of our classes. (The schema of a field named "title" is not a string.)
    return {
        key: _inlined(value, parts) for key, value in schema.items() if not (key == "title" and isinstance(value, str))
    }
