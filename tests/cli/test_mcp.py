"""`kedge mcp`, and the tools of MCP servers in real Runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kedge.cli.mcp_tables import with_server, without_server
from kedge.client.client import Client
from kedge.errors import Invalid
from tests.client.process import Server, Terminal
from tests.polling import block_until

HOSTILE = Path(__file__).parents[1] / "extensions" / "hostile_mcp_server.py"
FILE = Path("config.toml")


def test_added_server_is_used_by_runs_until_it_is_removed(own_server: Server) -> None:
    home, host = own_server.home, own_server.host
    before = home.config.read_text()
    added = home.kedge("mcp", "add", "h", "--host", host, "--", sys.executable, str(HOSTILE), str(home.data))
    assert (added.code, "h is ready: 11 tools, 1 prompt, 4 resources\n  echo\n" in added.out) == (0, True), added
    listed = json.loads(home.kedge("mcp", "--json", "--host", host).out)
    assert [(one["name"], one["condition"], one["offers"][0]) for one in listed] == [("h", "idle", "echo")]

    script = 'script: tool mcp__h__echo {"text": "ahoy"} | say done'
    terminal = Terminal(home, "run", "--host", host, script)
    shown = terminal.until("answer> ")
    assert "mcp__h__echo needs your approval: Call h/echo" in shown
    assert 'server: h tool: echo arguments: { "text": "ahoy" }' in " ".join(shown.split())
    assert "[s] this session: mcp(h/echo)" in shown
    terminal.type("y\n")
    code, shown = terminal.end()
    assert (code, "done" in shown) == (0, True)
    allowed = home.kedge("run", "--host", host, "--allow", "mcp(h/*)", script)
    assert allowed.code == 0
    refused = home.kedge("run", "--host", host, script)
    assert (refused.code, "--allow 'mcp(h/echo)'" in refused.err) == (3, True)

    assert home.kedge("mcp", "remove", "h").code == 0
    assert home.config.read_text() == before
    assert home.kedge("mcp", "list", "--host", host).out.startswith("no MCP servers")
    failed = home.kedge("mcp", "test", "h", "--host", host)
    assert (failed.code, failed.errors) == (1, "kedge: MCP server h not found. List them with: kedge mcp list\n")


async def test_cancelled_run_cancels_the_call(own_server: Server, own_client: Client) -> None:
    home, host = own_server.home, own_server.host
    await own_client.create_workspace(str(home.workspace))  # otherwise it is closed with the run, and the server ends
    home.kedge("mcp", "add", "h", "--host", host, "--", sys.executable, str(HOSTILE), str(home.data))
    run = home.start_kedge("run", "--host", host, "--mode", "yolo", "script: tool mcp__h__never {} | say done")
    received = home.data / "received"
    block_until(lambda: "call never" in received.read_text(), 20)
    sessions = json.loads(home.kedge("sessions", "list", "--host", host, "--json").out)
    assert home.kedge("cancel", sessions[0]["id"], "--host", host).code == 0
    run.communicate(timeout=20)
    block_until(lambda: "cancelled" in received.read_text(), 20)


def test_tables_keep_everything_else() -> None:
    start, end = '# mine\nmodel = "a/b"  # first\n\n', "[runs]\nmax_steps = 3\n"
    text = f'{start}[mcp.old]\ncommand = "x"\n# of old\n[mcp.old.env]\nA = "1"\n\n{end}'
    settings = {"command": 'say "hi"\n', "args": ["-a", "ü"], "env": {"a b": "$X"}}
    added = with_server(text, FILE, "new.one", settings)
    assert added.startswith(text)
    assert without_server(added, FILE, "new.one") == text
    assert without_server(text, FILE, "old") == start + end


@pytest.mark.parametrize(
    "text", ['mcp = { old = { command = "x" } }\n', 'mcp.old.command = "x"\n', '[mcp]\nold = { command = "x" }\n']
)
def test_tables_written_otherwise_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"remove the table \[mcp\.old\] yourself"):
        without_server(text, FILE, "old")
    with pytest.raises(Invalid, match="already has an MCP server old"):
        with_server(text, FILE, "old", {"command": "x"})


def test_failed_server_keeps_its_error_in_the_list(own_server: Server) -> None:
    home, host = own_server.home, own_server.host
    added = home.kedge("mcp", "add", "h", "--host", host, "--", sys.executable, str(HOSTILE), str(home.data), "fails")
    assert added.code == 1
    assert "npm" not in added.err
    for line in ("exit code 3", "Traceback", "  in main", "no database"):
        assert line.strip() in added.err
    (listed,) = json.loads(home.kedge("mcp", "--json", "--host", host).out)
    assert listed["condition"] == "failed"
    assert "no database" in listed["error"]
    home.config.write_text(home.config.read_text().replace('"fails"', '"works"'))
    (listed,) = json.loads(home.kedge("mcp", "--json", "--host", host).out)
    assert (listed["condition"], listed["description"]) == ("idle", sys.executable)
