"""MCP servers of a workspace, with a real bridge: two servers of others, and one that misbehaves in every way."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kedge.core.approvals import Permit, parse_rules
from kedge.core.extensions import AgentDefinition
from kedge.core.modes import MODES, permit_in_mode
from kedge.errors import Invalid, TooLarge
from kedge.extensions import mcp_servers
from kedge.extensions.mcp_cache import McpCache
from kedge.extensions.mcp_tool import LoadToolsInput, McpTool
from kedge.tools.base import OUTPUT_CHARS_MAX, Prepared, Tool, ToolFailed
from kedge.tools.registry import Toolset
from tests.extensions.mcp_rig import Rig
from tests.polling import until

REMOTE = Path(__file__).with_name("remote_mcp_server.py")
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.asyncio(loop_scope="module")


def permission(
    prepared: Prepared, *, mode: str = "ask", allow: tuple[str, ...] = (), deny: tuple[str, ...] = ()
) -> Permit:
    return permit_in_mode(mode, prepared.intent, parse_rules(allow, deny), (), can_confine=True)  # type: ignore[arg-type]


async def test_servers_of_others_are_loaded_called_and_cached(own_rig: Rig) -> None:
    servers = {"time": {"command": str(BIN / "mcp-server-time")}, "git": {"command": str(BIN / "mcp-server-git")}}
    await own_rig.configure(**servers)
    assert own_rig.names() == ["mcp_tools"]
    assert "git, time" in own_rig.tool("mcp_tools").description
    assert not own_rig.part.has_processes
    assert "mcp__time__get_current_time" in await own_rig.load("time")
    output = await own_rig.call("mcp__time__get_current_time", timezone="UTC")
    assert '"timezone": "UTC"' in output.content
    assert (await own_rig.call("mcp__time__get_current_time", timezone="Nowhere")).is_error
    await own_rig.load("git")
    assert (await own_rig.call("mcp__git__git_status", repo_path=str(own_rig.root))).is_error
    assert [state.condition for state in own_rig.part.states()] == ["ready", "ready"]
    await own_rig.part.close()
    assert not own_rig.part.has_processes

    own_rig.part = own_rig.new_part()
    await own_rig.configure(**servers)
    assert [state.condition for state in own_rig.part.states()] == ["idle", "idle"]
    assert {"mcp__time__convert_time", "mcp__git__git_log"} < set(own_rig.names())
    assert "mcp_tools" not in own_rig.names()
    assert not own_rig.part.has_processes
    assert not (await own_rig.call("mcp__time__get_current_time", timezone="UTC")).is_error


async def test_permissions_of_calls(rig: Rig) -> None:
    await rig.configure(h=rig.hostile())
    await rig.load("h")
    prepared = await rig.prepare("mcp__h__echo", text="a\x1b[2Jb")
    assert (prepared.intent.subject, prepared.intent.grant) == ("h/echo", "mcp(h/echo)")
    assert "a\\u001b[2Jb" in msgspec.json.decode(prepared.intent.params)["arguments"]
    decisions = [permission(prepared, mode=mode).decision for mode in MODES]
    assert decisions == ["refuse", "ask", "ask", "ask", "allow"]
    for rule in ("mcp(h/echo)", "mcp(h/*)", "mcp"):
        assert permission(prepared, allow=(rule,)).decision == "allow"
        assert permission(prepared, mode="yolo", deny=(rule,)).decision == "deny"
    for rule in ("mcp(h/other)", "mcp(other/*)", "bash", "edit(**)"):
        assert permission(prepared, allow=(rule,)).decision == "ask"
    assert permission(prepared, mode="yolo", deny=("mcp(h)",)).decision == "deny"
    assert not any(isinstance(tool, McpTool) and (tool.read_only or tool.for_children) for tool in rig.part.tools())


async def test_changed_tool_asks_again_until_it_is_approved(rig: Rig) -> None:
    await rig.configure(h=rig.hostile())
    await rig.load("h")
    assert (await rig.call("mcp__h__echo", text="x")).content == "x"
    prepared_before = await rig.prepare("mcp__h__echo", text="x")
    await rig.call("mcp__h__change")
    await until(lambda: "something else" in rig.tool("mcp__h__echo").description)
    with pytest.raises(ToolFailed, match="changed or removed this tool"):
        await prepared_before.run()
    prepared = await rig.prepare("mcp__h__echo", text="x")
    assert prepared.intent.subject.startswith("h/echo@")
    assert prepared.intent.grant == ""
    assert "something else" in msgspec.json.decode(prepared.intent.params)["changed"]
    for rule in ("mcp(h/echo)", "mcp(h/*)", "mcp"):
        assert permission(prepared, allow=(rule,)).decision == "ask"
        assert permission(prepared, mode="yolo", deny=(rule,)).decision == "deny"
    await prepared.run()  # as in yolo: the user has not seen it
    assert (await rig.prepare("mcp__h__echo", text="x")).intent.subject.startswith("h/echo@")
    rig.host.was_asked = True
    await (await rig.prepare("mcp__h__echo", text="x")).run()
    assert permission(await rig.prepare("mcp__h__echo", text="x"), allow=("mcp(h/*)",)).decision == "allow"
    server = rig.part._servers["h"]
    await until(lambda: McpCache(rig.data).read(server.key).approved == server.cached.approved)


async def test_agent_loads_the_servers_that_it_names(own_rig: Rig) -> None:
    await own_rig.configure(h=own_rig.hostile(), other=own_rig.hostile(env={"X": "1"}))
    toolset = Toolset()

    def offered(agent: AgentDefinition) -> dict[str, Tool]:
        return {tool.name: tool for tool in toolset.offered_to_child(agent, own_rig.part.tools())}

    echo = AgentDefinition("a", "", ("mcp__h__echo",))
    load = offered(echo)["mcp_tools"]
    assert "loaded yet: h." in load.description
    with pytest.raises(ToolFailed, match="no tools of it"):
        await (await load.prepare(LoadToolsInput("other"), own_rig.context)).run()
    output = await (await load.prepare(LoadToolsInput("h"), own_rig.context)).run()
    assert output.content == "Available from your next step on:\nmcp__h__echo"
    assert list(offered(echo)) == ["mcp__h__echo"]
    every = offered(AgentDefinition("b", "", ("mcp__h",), without=("mcp__h__echo",)))
    assert "mcp__h__never" in every
    assert "mcp__h__echo" not in every
    assert offered(AgentDefinition("c", "", ("view",))) == {}
    assert offered(AgentDefinition("d", "", ("mcp__other",), without=("mcp__other",))) == {}


async def test_results_are_bounded_and_harmless(rig: Rig) -> None:
    await rig.configure(h=rig.hostile(env={"TOKEN": "${HOSTILE_TOKEN:-none}"}))
    await rig.load("h")
    output = await rig.call("mcp__h__escapes")
    assert (output.content, output.is_error) == ("red  bell plain", True)
    with pytest.raises(ToolFailed, match="larger than 32 MB"):
        await rig.call("mcp__h__huge", text="100")
    output = await rig.call("mcp__h__huge", text="20")
    assert OUTPUT_CHARS_MAX <= len(output.content) <= OUTPUT_CHARS_MAX + 100
    output = await rig.call("mcp__h__picture")
    assert output.images[0].startswith("data:image/png;base64,iVBOR")
    assert (await rig.call("mcp__h__flood")).content == "after the flood"
    await rig.call("mcp__h__progress")
    assert "1/3" in rig.host.lines
    environment = (await rig.call("mcp__h__environment")).content
    assert "token=none" in environment
    assert f"cwd={rig.root}" in environment
    assert {name for name in environment.split() if name.isupper()} <= {
        "PATH", "HOME", "LOGNAME", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TOKEN",
    }  # fmt: skip
    assert rig.received.count("started") == 1


async def test_cancelled_and_late_calls_are_cancelled_at_the_server(rig: Rig) -> None:
    await rig.configure(h=rig.hostile(timeout_s=0.3))
    await rig.load("h")
    with pytest.raises(ToolFailed, match=r"no answer within 0\.3 s"):
        await rig.call("mcp__h__never")
    await until(lambda: "cancelled" in rig.received)
    await rig.configure(h=rig.hostile())
    call = asyncio.create_task(rig.call("mcp__h__never"))
    await until(lambda: rig.received.count("call never") == 2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: rig.received.count("cancelled") == 2)
    assert (await rig.call("mcp__h__echo", text="still there")).content == "still there"
    assert rig.received.count("started") == 1


async def test_server_that_dies_is_restarted_a_few_times(rig: Rig) -> None:
    await rig.configure(h=rig.hostile())
    await rig.load("h")
    for _ in range(3):
        with pytest.raises(ToolFailed, match=r"the server ended \(exit code 7\): about to die"):
            await rig.call("mcp__h__die")
    with pytest.raises(ToolFailed, match="ended 3 times within a minute"):
        await rig.call("mcp__h__echo", text="x")
    (state,) = rig.part.states()
    assert (state.condition, "exit code 7" in state.error) == ("failed", True)
    assert (await rig.part.start("h")).condition == "ready"
    assert (await rig.call("mcp__h__echo", text="x")).content == "x"


async def test_start_that_fails_or_hangs(rig: Rig) -> None:
    await rig.configure(fails=rig.hostile("fails"), hangs=rig.hostile("hangs"), none={"command": "/nonexistent/x"})
    with pytest.raises(ToolFailed, match=r"the server ended \(exit code 3\): Traceback; in main; no database"):
        await rig.load("fails")
    with pytest.raises(ToolFailed, match="/nonexistent/x cannot be started: No such file"):
        await rig.load("none")
    started = len(rig.received)
    loading = asyncio.create_task(rig.load("hangs"))
    await until(lambda: len(rig.received) > started)
    assert rig.part.states()[1].condition == "starting"
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    await until(lambda: rig.part.states()[1].condition == "idle")


async def test_server_asks_the_user(rig: Rig) -> None:
    await rig.configure(h=rig.hostile())
    await rig.load("h")
    rig.host.answers = ["large", "Yes", ""]
    output = await rig.call("mcp__h__ask")
    assert msgspec.json.decode(output.content) == {"action": "accept", "content": {"size": "large", "sure": True}}
    (questions,) = rig.host.asked
    assert questions[0].question.startswith("The MCP server h asks: Which size?")
    assert [[option.label for option in question.options] for question in questions] == [
        ["small", "large"],
        ["Yes", "No"],
        [],
    ]
    rig.host.answers = None
    assert msgspec.json.decode((await rig.call("mcp__h__ask")).content) == {"action": "decline"}


async def test_prompts_and_resources(rig: Rig) -> None:
    await rig.configure(h=rig.hostile())
    assert await rig.part.expand("mcp:h:explain", "x") is None
    await rig.load("h")
    (command,) = rig.part.commands()
    assert (command.name, command.argument_hint) == ("mcp:h:explain", "<topic> <style>")
    assert (
        await rig.part.expand("mcp:h:explain", "tides in detail") == 'Explain {"topic": "tides", "style": "in detail"}'
    )
    references = ("h:memo://one", "other:memo://one", "h:memo://escapes).")
    one, escapes = await rig.part.read_resources(references)
    assert OUTPUT_CHARS_MAX <= len(one.text) <= OUTPUT_CHARS_MAX + 100
    assert (escapes.reference, escapes.uri, escapes.text) == (references[2], "memo://escapes", "red plain")
    offers = rig.part.states()[0].offers
    assert [offer for offer in offers if offer.startswith("@")] == [
        f"@h:memo://{name}" for name in ("one", "escapes", "huge", "never")
    ]
    await rig.part.close()
    rig.part = rig.new_part()
    await rig.configure(h=rig.hostile())
    assert (rig.part.states()[0].offers, rig.part.has_processes) == (offers, False)  # completion starts no server


async def test_resource_that_cannot_be_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = {"h": rig.hostile(), "fails": rig.hostile("fails"), "off": rig.hostile(disabled=True)}
    await rig.configure(**servers)
    expected = {
        "h:memo://huge": "larger than 32 MB",
        "h:file:///etc/passwd": "lists no such resource",
        "fails:memo://one": "no database",
        "off:memo://one": "the MCP server is disabled",
    }
    for reference, message in expected.items():
        with pytest.raises(Invalid, match=f"@{reference} cannot be read: .*{message}"):
            await rig.part.read_resources((reference,))
    with pytest.raises(TooLarge, match="11 resources"):
        await rig.part.read_resources(tuple(f"h:memo://{number}" for number in range(11)))
    monkeypatch.setattr(mcp_servers, "RESOURCES_S_MAX", 0.3)
    with pytest.raises(Invalid, match=r"@h:memo://never cannot be read: no answer within 0\.3 s.*kedge mcp test h"):
        await rig.part.read_resources(("h:memo://never",))
    await until(lambda: "cancelled" in rig.received)
    assert "read file:///etc/passwd" not in rig.received


async def test_repository_servers_need_trust(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTILE_TOKEN", "t0")
    server = rig.hostile(env={"TOKEN": "${HOSTILE_TOKEN}"}, type="stdio")
    content = msgspec.json.encode({"mcpServers": {"r": server, "bad": {"command": "x", "url": "http://y"}}})
    file = rig.root / ".mcp.json"
    file.write_bytes(content)
    await rig.configure()
    assert [(state.name, state.condition) for state in rig.part.states()] == [("r", "untrusted"), ("bad", "failed")]
    assert rig.part.tools() == ()
    assert (await rig.part.start("r")).condition == "untrusted"
    rig.trust.add(file, content)
    await rig.configure()
    await rig.load("r")
    assert "token=t0" in (await rig.call("mcp__r__environment")).content
    file.write_bytes(content + b" ")
    await rig.configure()
    assert (rig.part.states()[0].condition, rig.part.tools()) == ("untrusted", ())
    assert rig.received == ["started", "call environment"]


@asynccontextmanager
async def served(kind: str) -> AsyncIterator[dict[str, Any]]:
    """Run the server of the SDK, and yield its entry in a configuration."""
    if kind == "stdio":
        yield {"command": sys.executable, "args": [str(REMOTE), kind]}
        return
    remote = await asyncio.create_subprocess_exec(sys.executable, str(REMOTE), kind, stdout=asyncio.subprocess.PIPE)
    assert remote.stdout is not None
    port = int(await remote.stdout.readline())
    try:
        yield {"url": f"http://127.0.0.1:{port}/{'sse' if kind == 'sse' else 'mcp'}", "type": kind}
    finally:
        remote.kill()
        await remote.wait()


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_remote_server(rig: Rig, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOTE_TOKEN", "t1")
    async with served(kind) as entry:
        await rig.configure(r={**entry, "headers": {"X-Token": "$REMOTE_TOKEN"}})
        assert "mcp__r__add" in await rig.load("r")
        assert (await rig.call("mcp__r__add", a=1, b=2)).content == "3"
        assert (await rig.call("mcp__r__header")).content == "t1"
    with pytest.raises(ToolFailed, match="The MCP server r failed: the connection was lost"):
        await rig.call("mcp__r__add", a=1, b=2)


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_change_on_a_stream_of_changes_asks_again(rig: Rig, kind: str) -> None:
    """From version 2026-07-28 of the protocol on, a client must request the notifications."""
    async with served(kind) as entry:
        await rig.configure(r=entry)
        await rig.load("r")
        assert (await rig.call("mcp__r__add", a=1, b=2)).content == "3"
        assert permission(await rig.prepare("mcp__r__add", a=1, b=2), allow=("mcp(r/add)",)).decision == "allow"
        assert (await rig.call("mcp__r__change")).content == "2026-07-28"
        await until(lambda: "something else" in rig.tool("mcp__r__add").description)
        assert permission(await rig.prepare("mcp__r__add", a=1, b=2), allow=("mcp(r/add)",)).decision == "ask"


async def test_lost_stream_of_changes_is_requested_again(own_rig: Rig) -> None:
    async with served("stdio") as entry:
        await own_rig.configure(r=entry)
        await own_rig.load("r")
        await own_rig.call("mcp__r__overflow")
        await own_rig.call("mcp__r__reopened")
        await own_rig.call("mcp__r__change")
        await until(lambda: "something else" in own_rig.tool("mcp__r__add").description)


async def test_remote_server_that_refuses_or_sends_too_much(rig: Rig) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        with suppress(OSError):
            if b"/login" in head:
                writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
                for _ in range(100):
                    writer.write(b" " * 1_000_000)
                    await writer.drain()
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await rig.configure(login={"url": f"{url}/login"}, big={"url": f"{url}/big"})
        state = await rig.part.start("login")
        assert (state.condition, "run: kedge mcp login login" in state.error) == ("needs_login", True)
        state = await rig.part.start("big")
        assert (state.condition, state.error) == ("failed", "the reply is larger than 32 MB")


async def test_damaged_cache_counts_as_missing(own_rig: Rig) -> None:
    await own_rig.configure(h=own_rig.hostile())
    await own_rig.load("h")
    await until(lambda: list((own_rig.data / "mcp").glob("*.json")))
    (file,) = (own_rig.data / "mcp").glob("*.json")
    file.write_text("{")
    await own_rig.part.close()
    own_rig.part = own_rig.new_part()
    await own_rig.configure(h=own_rig.hostile(), unset={"command": "x", "args": ["${NOT_SET_ANYWHERE}"]})
    assert own_rig.names() == ["mcp_tools"]
    with pytest.raises(ToolFailed, match="variable NOT_SET_ANYWHERE is not set"):
        await own_rig.load("unset")
