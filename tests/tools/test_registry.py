"""The tools as a model is offered them."""

from __future__ import annotations

import json

import pytest

from kedge.tools.base import Tool, ToolFailed, description
from kedge.tools.registry import Toolset, all_tools

TOOLSET = Toolset(all_tools())


@pytest.mark.parametrize("tool", all_tools(), ids=lambda tool: tool.name)
def test_every_tool_has_a_schema_without_references_and_a_short_description(tool: Tool) -> None:
    schema = TOOLSET.schema(tool)
    assert json.loads(schema)["type"] == "object"
    assert "$ref" not in schema
    assert 40 < len(description(tool.name)) < 3000


def test_names_are_the_ones_people_write_in_rules() -> None:
    assert [tool.name for tool in TOOLSET.offered(only_look=False)] == [
        *("bash", "jobs", "view", "ls", "glob", "grep", "edit", "multiedit", "write"),
        *("fetch", "todos", "question", "agent"),
    ]


def test_a_child_agent_may_only_look_and_has_no_children() -> None:
    assert {tool.name for tool in TOOLSET.offered(only_look=True)} == {"view", "ls", "glob", "grep", "fetch"}


def test_a_number_written_as_text_is_understood_and_what_is_no_json_is_told() -> None:
    view = next(tool for tool in all_tools() if tool.name == "view")
    assert TOOLSET.decoded(view, '{"path": "a", "offset": "3"}').offset == 3
    for given, said in (('{"path": ', "not valid JSON"), ("{}", "does not fit"), ("[1]", "does not fit")):
        with pytest.raises(ToolFailed, match=said):
            TOOLSET.decoded(view, given)
