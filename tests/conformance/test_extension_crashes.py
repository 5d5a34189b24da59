"""Extensions whose processes crash, hang or are killed: nothing is left, nothing else waits, no key is passed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kedge.config.plugins import PluginFile, PluginStore, plugin_of
from tests.conformance.harness import WAIT_S, Server, results_of, unique
from tests.conformance.test_attacks_permissions import tried
from tests.conformance.test_b_tools import processes_with
from tests.conformance.test_hooks import hook
from tests.conformance.test_i_agent import call
from tests.polling import block_until, until

MCP_SERVER = Path(__file__).parents[1] / "extensions" / "hostile_mcp_server.py"
LANGUAGE_SERVER = Path(__file__).with_name("hostile_language_server.py")
Start = Callable[..., Server]
LOAD = call("mcp_tools", server="h")
NEVER = call("mcp__h__never")
ECHO = call("mcp__h__echo", text="ahoy")


def mcp_server(notes: Path, mode: str = "", name: str = "h") -> str:
    """Return the configuration of an MCP server, whose arguments contain `notes` and `mode`."""
    notes.mkdir(exist_ok=True)
    arguments = json.dumps([str(MCP_SERVER), str(notes), mode])
    return f"[mcp.{name}]\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\n"


def has_received(notes: Path, line: str) -> bool:
    file = notes / "received"
    return file.exists() and line in file.read_text().splitlines()


async def test_killed_server_leaves_no_mcp_server(own_server: Start, workspace: Path, tmp_path: Path) -> None:
    notes = tmp_path / unique("notes")
    server = own_server(mcp_server(notes))
    async with server.peer(workspace) as kedge:
        await kedge.set_mode(session := await kedge.session(), "yolo")
        await kedge.submit(session, f"script: {LOAD} | step | {NEVER} | say over")
        await until(lambda: has_received(notes, "call never"))
    assert processes_with(str(notes))
    server.kill()
    block_until(lambda: not processes_with(str(notes)), WAIT_S)


async def test_killed_bridge_starts_again_with_the_next_call(
    own_server: Start, workspace: Path, tmp_path: Path
) -> None:
    notes = tmp_path / unique("notes")
    server = own_server(mcp_server(notes))
    async with server.peer(workspace) as kedge:
        await kedge.set_mode(session := await kedge.session(), "yolo")
        steps = " | step | ".join((LOAD, NEVER, ECHO))
        run_id = (await kedge.submit(session, f"script: {steps} | say over"))["run_id"]
        await until(lambda: has_received(notes, "call never"))
        before = processes_with(str(notes))
        (bridge,) = {int(parent_of(pid)) for pid in before}
        os.kill(bridge, signal.SIGKILL)
        assert (await kedge.wait(run_id))["outcome"] == "completed"
        _, never, echo = results_of(await kedge.messages(session))
        assert never["is_error"]
        assert (echo["content"], echo["is_error"]) == ("ahoy", False)
        assert not set(before) & set(processes_with(str(notes)))


def parent_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]


async def test_hanging_mcp_server_delays_no_other_run(own_server: Start, workspace: Path, tmp_path: Path) -> None:
    notes = tmp_path / unique("notes")
    async with own_server(mcp_server(notes, "hangs")).peer(workspace) as kedge:
        waiting = await kedge.submit(await kedge.session(), f"script: {LOAD} | say over")
        await until(lambda: has_received(notes, "started"))
        run = await kedge.wait((await kedge.submit(await kedge.session(), "script: say quick"))["run_id"])
        assert (run["outcome"], run["text"]) == ("completed", "quick")
        assert (await kedge.run(waiting["run_id"]))["state"] == "active"


async def test_hook_refuses_a_call_of_an_mcp_tool(own_server: Start, workspace: Path, tmp_path: Path) -> None:
    notes = tmp_path / unique("notes")
    event = tmp_path / "event.json"
    config = hook("PreToolUse", f"cat > {event}; echo 'not this one' >&2; exit 2", "mcp__h__es*")
    async with own_server(config + mcp_server(notes)).peer(workspace) as kedge:
        steps = (LOAD, call("mcp__h__escapes"), ECHO)
        _, refused, allowed = [(await tried(kedge, step, mode="yolo"))[0] for step in steps]
        assert (refused["end"], "not this one" in refused["content"]) == ("not_run", True)
        assert allowed["content"] == "ahoy"
        assert json.loads(event.read_text())["tool_name"] == "mcp__h__escapes"
        assert not has_received(notes, "call escapes")


async def test_killed_server_leaves_no_hook(own_server: Start, workspace: Path) -> None:
    mark = unique("mark")
    endless = f"trap '' TERM; export M={mark}; sleep 600 & sleep 600"
    server = own_server(hook("PreToolUse", endless, "", 600))
    async with server.peer(workspace) as kedge:
        session = await kedge.session()
        run_id = (await kedge.submit(session, f"script: {call('ls')} | say over"))["run_id"]
        await until(lambda: len(processes_with(mark)) >= 2)
    server.kill()
    block_until(lambda: not processes_with(mark), WAIT_S)
    server.start()
    async with server.peer(workspace) as kedge:
        assert (await kedge.run(run_id))["state"] in ("active", "ended")
        await kedge.cancel(session)
        assert (await kedge.wait(run_id))["state"] == "ended"
    assert processes_with(mark) == []


async def test_no_extension_has_a_provider_key(
    own_server: Start, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = unique("sk-planted")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "KEDGE_TOKEN"):
        monkeypatch.setenv(name, secret)
    notes, mark, plugin = tmp_path / unique("notes"), unique("mark"), unique("plugin")
    lsp = json.dumps([str(LANGUAGE_SERVER), "hang", "1", mark])
    config = hook("PreToolUse", f"sleep 600 # {mark}", "ls", 600) + mcp_server(notes)
    config += f'[lsp.servers.x]\ncommand = "{sys.executable}"\nargs = {lsp}\nextensions = [".x"]\n'
    server = own_server(config)
    brings = hook("PreToolUse", f"sleep 600 # {plugin}", "ls", 600)
    brings += mcp_server(notes, plugin, "p")
    tree = {"kedge.toml": PluginFile(brings.encode())}
    PluginStore(server.home, server.data_dir).add(plugin_of(tree, "kit", "kit"), tree)
    calls = (LOAD, call("mcp_tools", server="p"), call("write", path="a.x", content="x"), call("ls"))
    async with server.peer(workspace) as kedge:
        session = await kedge.session()
        await kedge.set_mode(session, "yolo")
        await kedge.submit(session, f"script: {' | step | '.join(calls)} | say over")
        # The MCP servers, the language server, and the hooks of the user and of the plugin.
        running = (str(notes), f"\0{plugin}", f"\0{mark}", f"# {mark}", f"# {plugin}")
        await until(lambda: all(map(processes_with, running)))
        assert not [pid for pid in processes_with(secret) if pid != server.pid]
        await kedge.cancel(session)
