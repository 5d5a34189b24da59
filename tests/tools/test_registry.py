"""The set of tools: names, schemas, titles."""

from __future__ import annotations

import json

import pytest

from kedge.core.extensions import AgentDefinition
from kedge.core.transcript import ToolCall
from kedge.core.untrusted_text import is_invisible
from kedge.tools.base import Tool, ToolFailed
from kedge.tools.registry import CALL_TITLE_CHARS_MAX, Toolset, all_tools

TOOLSET = Toolset(all_tools())


@pytest.mark.parametrize("tool", all_tools(), ids=lambda tool: tool.name)
def test_each_schema_is_plain_and_description_short(tool: Tool) -> None:
    schema = TOOLSET.schema(tool)
    assert json.loads(schema)["type"] == "object"
    assert "$ref" not in schema
    assert 40 < len(tool.description) < 3000


def test_tool_names_and_order() -> None:
    assert [tool.name for tool in TOOLSET.offered()] == [
        "bash",
        "jobs",
        "view",
        "ls",
        "glob",
        "grep",
        "edit",
        "multiedit",
        "write",
        "fetch",
        "todos",
        "question",
        "agent",
    ]


def test_tools_of_a_child_agent() -> None:
    assert {tool.name for tool in TOOLSET.offered_to_child(None)} == {"view", "ls", "glob", "grep", "fetch"}
    writer = AgentDefinition("writer", "", ("view", "edit", "agent", "present_plan", "unknown"))
    assert {tool.name for tool in TOOLSET.offered_to_child(writer)} == {"view", "edit"}  # no agents, no plans
    assert TOOLSET.offered_to_child(AgentDefinition("none", "", ())) == []


def test_decoding_of_numbers_and_bad_json() -> None:
    view = next(tool for tool in all_tools() if tool.name == "view")
    assert TOOLSET.decoded(view, '{"path": "a", "offset": "3"}').offset == 3
    for given, said in (('{"path": ', "not valid JSON"), ("{}", "is not valid: "), ("[1]", "is not valid: ")):
        with pytest.raises(ToolFailed, match=said):
            TOOLSET.decoded(view, given)


@pytest.mark.parametrize(
    ("name", "arguments", "title"),
    [
        ("bash", '{"command": "pytest -q", "description": "Test"}', "$ pytest -q"),
        ("bash", '{"command": "\\ncd x\\nmake"}', "$ cd x …"),
        ("view", '{"path": "src/app.py", "offset": "3"}', "view src/app.py"),
        ("edit", '{"path": "a.py", "old_string": "x", "new_string": "y"}', "edit a.py"),
        ("multiedit", '{"path": "a.py", "edits": [{"old_string": "x", "new_string": "y"}]}', "multiedit a.py"),
        ("write", '{"path": "a.py", "content": "x"}', "write a.py"),
        ("grep", '{"pattern": "def ", "path": "src", "include": "*.py"}', "grep def  src *.py"),
        ("glob", '{"pattern": "*.py"}', "glob *.py"),
        ("ls", "{}", "ls ."),
        ("fetch", '{"url": "https://example.org/x"}', "fetch https://example.org/x"),
        ("jobs", '{"action": "kill", "id": "b1"}', "jobs kill b1"),
        ("todos", '{"todos": [{"content": "a", "status": "completed"}, {"content": "b"}]}', "todos 1 of 2 done"),
        ("todos", '{"todos": [{"content": "a", "status": "in_progress"}]}', "todos 0 of 1 done: a"),
        ("question", '{"questions": [{"question": "Which?"}, {"question": "Why?"}]}', "question Which? / Why?"),
        ("agent", '{"prompt": "Look for it", "description": "Look"}', "agent Look"),
        ("no_such", '{"a": 1}', 'no_such {"a": 1}'),
        ("bash", '{"command": ', 'bash {"command":'),
        ("bash", "[1]", "bash [1]"),
        ("view", '{"path": ""}', 'view {"path": ""}'),
        ("", "", ""),
    ],
)
def test_titles_of_calls(name: str, arguments: str, title: str) -> None:
    assert TOOLSET.described(ToolCall("c", name, arguments)).title == title


@pytest.mark.parametrize("tool", all_tools(), ids=lambda tool: tool.name)
@pytest.mark.parametrize(
    "text",
    ["\x1b[31mred\x07", "a\u202eb\u2066", "\ud800", "a\u2028b\r\nc", "x" * 1_000_000, "\n" * 1000, "[" * 100_000],
    ids=["control", "bidi", "surrogate", "separators", "long", "blank", "deep"],
)
def test_titles_are_harmless_and_bounded(tool: Tool, text: str) -> None:
    fields = {"path", "pattern", "url", "command", "prompt", "content", "old_string", "new_string", "id"}
    nested = {"todos": [{"content": text}], "questions": [{"question": text}], "edits": [], "action": "kill"}
    known = json.loads(TOOLSET.schema(tool))["properties"]
    fitting = {name: text if name in fields else nested[name] for name in known if name in fields | nested.keys()}
    for arguments in (json.dumps(fitting), json.dumps(fitting, ensure_ascii=False), text, f'{{"path": {text}'):
        call = TOOLSET.described(ToolCall("c", tool.name, arguments))
        assert len(call.title) <= CALL_TITLE_CHARS_MAX
        assert not any(map(is_invisible, call.title.replace(" ", "")))
        assert call.title.encode()
        assert call.display == tool.display


def test_only_read_only_tools_are_for_children() -> None:
    assert all(tool.read_only for tool in all_tools() if tool.for_children)
