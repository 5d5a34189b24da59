"""Values of extensions."""

from __future__ import annotations

from kedge.core.extensions import AgentDefinition
from kedge.core.records import Prompt


def test_agent_has_its_tools_and_all_tools_of_a_listed_server() -> None:
    agent = AgentDefinition("a", "", ("view", "mcp__x"))
    assert [
        name for name in ("view", "views", "bash", "mcp__x", "mcp__x__y", "mcp__xy__z") if agent.has_tool(name)
    ] == [
        "view",
        "mcp__x",
        "mcp__x__y",
    ]
    assert not AgentDefinition("a", "").has_tool("view")


def test_prompt_command_counts_with_its_text() -> None:
    prompt = Prompt("expanded", command="/é")
    assert (prompt.typed, prompt.size) == ("/é", 8 + 3)
    assert Prompt("plain").typed == "plain"


def test_agent_names_the_servers_of_its_tools() -> None:
    agent = AgentDefinition("a", "", ("mcp__x", "mcp__y__z", "mcp__w__v"), without=("mcp__w",))
    assert [server for server in ("x", "y", "w", "z") if agent.names_server(server)] == ["x", "y"]
    assert not AgentDefinition("a", "").names_server("x")
