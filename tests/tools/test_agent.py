"""The agent tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.core.approvals import Rules, permit
from kedge.tools.agent import AgentTool
from kedge.tools.base import OUTPUT_CHARS_MAX, Tool, ToolFailed
from kedge.tools.fetch import FetchTool
from kedge.tools.jobs import JobsTool
from kedge.tools.question import QuestionTool
from kedge.tools.registry import Toolset
from kedge.tools.shell import BashTool
from kedge.tools.todos import TodosTool
from tests.tools.contexts import RecordingHost, call, make_context, prepare


async def test_report_is_the_result(tmp_path: Path) -> None:
    host = RecordingHost(agent_answer="it is in src/app.py")
    context = make_context(tmp_path, host=host)
    output = await call(AgentTool(), context, prompt="Where is it?\nReport the file.", description="find it")
    assert output.content == "it is in src/app.py"
    await call(AgentTool(), context, prompt="Where is it?\nReport the file.")
    assert host.agents == [
        ("Where is it?\nReport the file.", "find it"),
        ("Where is it?\nReport the file.", "Where is it?"),
    ]


async def test_long_report_is_cut(tmp_path: Path) -> None:
    host = RecordingHost(agent_answer="x" * (OUTPUT_CHARS_MAX + 1))
    output = await call(AgentTool(), make_context(tmp_path, host=host), prompt="look")
    assert output.content == "x" * OUTPUT_CHARS_MAX + "\n... the rest is left out ..."


async def test_agent_needs_a_prompt_but_no_approval(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="the prompt is empty"):
        await prepare(AgentTool(), make_context(tmp_path), prompt=" ")
    prepared = await prepare(AgentTool(), make_context(tmp_path), prompt="look")
    assert permit(prepared.intent, Rules(), ()).decision == "allow"


def test_each_tool_has_a_description_and_a_schema() -> None:
    tools: tuple[Tool, ...] = (AgentTool(), BashTool(), FetchTool(), JobsTool(), QuestionTool(), TodosTool())
    toolset = Toolset(tools)
    for tool in tools:
        assert 3 <= len(tool.description.splitlines()) <= 20
        assert '"description"' in toolset.schema(tool)
    assert [tool.name for tool in toolset.offered_to_child(None)] == ["fetch"]
