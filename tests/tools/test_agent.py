"""A second agent that looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.core.approvals import Rules, permit
from kedge.tools.agent import AgentTool
from kedge.tools.base import OUTPUT_CHARS_MAX, Tool, ToolFailed, description
from kedge.tools.fetch import FetchTool
from kedge.tools.question import QuestionTool
from kedge.tools.registry import Toolset
from kedge.tools.shell import BashTool, LookTool
from kedge.tools.todos import TodosTool
from tests.tools.place import RecordingDesk, call, make_place, prepare


async def test_its_report_is_the_answer(tmp_path: Path) -> None:
    desk = RecordingDesk(agent_answer="it is in src/app.py")
    place = make_place(tmp_path, desk=desk)
    output = await call(AgentTool(), place, prompt="Where is it?\nReport the file.", description="find it")
    assert output.content == "it is in src/app.py"
    await call(AgentTool(), place, prompt="Where is it?\nReport the file.")
    assert desk.agents == [
        ("Where is it?\nReport the file.", "find it"),
        ("Where is it?\nReport the file.", "Where is it?"),
    ]


async def test_a_long_report_is_cut(tmp_path: Path) -> None:
    desk = RecordingDesk(agent_answer="x" * (OUTPUT_CHARS_MAX + 1))
    output = await call(AgentTool(), make_place(tmp_path, desk=desk), prompt="look")
    assert output.content == "x" * OUTPUT_CHARS_MAX + "\n... the rest is left out ..."


async def test_it_needs_a_prompt_and_nobodys_leave(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="needs a prompt"):
        await prepare(AgentTool(), make_place(tmp_path), prompt=" ")
    prepared = await prepare(AgentTool(), make_place(tmp_path), prompt="look")
    assert permit(prepared.intent, Rules(), ()).decision == "allow"


def test_each_tool_is_described_and_has_a_schema() -> None:
    tools: tuple[Tool, ...] = (AgentTool(), BashTool(), FetchTool(), LookTool(), QuestionTool(), TodosTool())
    toolset = Toolset(tools)
    for tool in tools:
        assert 3 <= len(description(tool.name).splitlines()) <= 20
        assert '"description"' in toolset.schema(tool)
    assert [tool.name for tool in toolset.offered(only_look=True)] == ["fetch"]
