"""A plugin in use: its skill, command, agent, hooks and servers act in a running server until it is removed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kedge.cli.config_files import load_config
from kedge.client.client import Client
from tests.client.process import Home, Server
from tests.conformance.test_b_tools import processes_with
from tests.polling import block_until

HOSTILE = Path(__file__).parents[1] / "extensions" / "hostile_mcp_server.py"
ECHO = 'tool mcp__echo__echo {"text": "ahoy"}'


def hooks(*hooks: tuple[str, str, str]) -> str:
    """Return a file with hooks: event, matcher and command of each."""
    events: dict[str, list[object]] = {}
    for event, matcher, command in hooks:
        group = {"matcher": matcher, "hooks": [{"type": "command", "command": command}]}
        events.setdefault(event, []).append(group)
    return json.dumps({"hooks": events})


def written(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        (root / path).chmod(0o755 if text.startswith("#!") else 0o644)
    return root


def server_of(state: Path, root: str = "${CLAUDE_PLUGIN_ROOT}") -> dict[str, object]:
    return {"command": sys.executable, "args": [f"{root}/server.py", str(state)], "env": {"TOKEN": root}}


@pytest.fixture
def kit(tmp_path: Path, home: Home) -> Path:
    gate = f"""#!/bin/sh
cat > /dev/null
echo "$CLAUDE_PLUGIN_ROOT $KEDGE_PLUGIN_ROOT" > {home.data}/gate
echo 'the gate is closed' >&2
exit 2
"""
    return written(
        tmp_path / "kit",
        {
            ".claude-plugin/plugin.json": '{"name": "kit", "version": "1.2", "description": "A kit"}',
            "skills/review/SKILL.md": "---\ndescription: Reviews.\n---\nRead the diff.",
            "commands/greet.md": "script: say hello $1",
            "agents/critic.md": "---\ndescription: Finds faults.\n---\nYou review.",
            "gate.sh": gate,
            "hooks/hooks.json": hooks(
                ("PreToolUse", "Bash", '"${CLAUDE_PLUGIN_ROOT}"/gate.sh'),
                ("SessionStart", "", "echo hi"),
                ("PostToolUse", "(Edit)", "fmt"),
            ),
            "server.py": HOSTILE.read_text(),
            ".mcp.json": json.dumps({"mcpServers": {"echo": server_of(home.data)}}),
            "kedge.toml": '[lsp.servers.mine]\ncommand = "${KEDGE_PLUGIN_ROOT}/mine-ls"\nextensions = [".mine"]\n',
            "mine-ls": "#!/bin/sh\n",
        },
    )


def listed(server: Server) -> dict[tuple[str, str], tuple[str, str]]:
    """Return condition and error of each plugin, and of all that plugins bring, by kind and name."""
    every = json.loads(server.home.kedge("extensions", "--host", server.host, "--json").out)
    ours = [one for one in every if one["kind"] == "plugin" or one["origin"].startswith("plugin ")]
    return {(one["kind"], one["name"]): (one["condition"], one.get("error", "")) for one in ours}


def test_plugin_acts_from_the_next_prompt_until_it_is_removed(own_server: Server, kit: Path) -> None:
    home, host = own_server.home, own_server.host
    touch = 'script: tool bash {"command": "touch made"} | say done'
    assert home.kedge("run", "--host", host, "--mode", "yolo", touch).code == 0
    (home.workspace / "made").unlink()
    before = {path for path in home.root.rglob("*") if home.data not in path.parents}

    added = home.kedge("plugin", "add", str(kit), "--yes")
    assert "hook     SessionStart  $ echo hi  (not used: kedge has no hooks for SessionStart)" in added.out
    assert "hook     PostToolUse (Edit)  $ fmt  (not used: the matcher" in added.out
    states = listed(own_server)
    copy = home.root / "plugins" / "kit"
    assert {key: condition for key, (condition, _) in states.items() if key[0] != "hook"} == {
        ("plugin", "kit"): "ready",
        ("skill", "review"): "ready",
        ("command", "greet"): "ready",
        ("agent", "critic"): "ready",
        ("mcp", "echo"): "idle",
        ("lsp", "mine"): "idle",
    }
    assert [(name.partition(":")[0], state[0]) for (kind, name), state in states.items() if kind == "hook"] == [
        ("SessionStart", "disabled"),
        ("PostToolUse (Edit)", "disabled"),
        ("PreToolUse Bash", "ready"),
    ]
    script = (
        f'script: tool bash {{"command": "touch made"}} | tool mcp_tools {{"server": "echo"}} | step | {ECHO} | say x'
    )
    assert home.kedge("run", "--host", host, "--mode", "yolo", script).code == 0
    assert not (home.workspace / "made").exists()
    assert (home.data / "gate").read_text() == f"{copy} {copy}\n"
    assert "call echo" in (home.data / "received").read_text()
    assert home.kedge("run", "--host", host, "/greet Ann").out == "hello Ann\n"

    assert home.kedge("plugin", "remove", "kit").code == 0
    assert {path for path in home.root.rglob("*") if home.data not in path.parents} == before
    assert not (home.data / "plugins.json").exists()
    assert home.kedge("run", "--host", host, "--mode", "yolo", touch).code == 0
    assert (home.workspace / "made").exists()
    assert listed(own_server) == {}
    assert home.kedge("run", "--host", host, "/greet Ann").code == 1
    assert home.kedge("mcp", "test", "echo", "--host", host).code == 1


async def test_servers_of_a_plugin_end_with_its_version(own_server: Server, own_client: Client, kit: Path) -> None:
    home, host, received = own_server.home, own_server.host, own_server.home.data / "received"
    await own_client.create_workspace(str(home.workspace))  # servers run as long as it is open
    script = f'script: tool mcp_tools {{"server": "echo"}} | step | {ECHO} | say x'
    for version in range(2):
        (kit / "server.py").write_text(f"{HOSTILE.read_text()}# version {version}\n")
        assert home.kedge("plugin", "add", str(kit), "--yes").code == 0
        for _ in range(2):
            assert home.kedge("run", "--host", host, "--mode", "yolo", script).code == 0
    assert received.read_text().count("started") == 2
    program = str(home.root / "plugins" / "kit" / "server.py")
    assert processes_with(program)
    assert home.kedge("plugin", "remove", "kit").code == 0
    assert listed(own_server) == {}
    block_until(lambda: not processes_with(program), 20)


def test_changed_copy_gives_nothing(own_server: Server, kit: Path) -> None:
    home, host = own_server.home, own_server.host
    assert home.kedge("plugin", "add", str(kit), "--yes").code == 0
    assert len(listed(own_server)) == 9
    with (home.root / "plugins" / "kit" / "gate.sh").open("a") as gate:
        gate.write("# more\n")
    [(key, (condition, error))] = listed(own_server).items()
    assert (key, condition) == (("plugin", "kit"), "failed")
    assert error == f"its files have changed since it was added; run: kedge plugin add {kit}"
    run = home.kedge("run", "--host", host, "--mode", "yolo", 'script: tool bash {"command": "touch made"} | say done')
    assert (run.code, (home.workspace / "made").exists(), (home.data / "gate").exists()) == (0, True, False)
    assert home.kedge("run", "--host", host, "/greet Ann").code == 1
    assert "its files have changed" in home.kedge("config", "check").out


def test_servers_of_one_name(own_server: Server, kit: Path, tmp_path: Path) -> None:
    """The user's server wins, then that of the first plugin; a repository's .mcp.json replaces neither. A server of a
    trusted kedge.toml is one of the repository."""
    home, host = own_server.home, own_server.host
    other = {".mcp.json": '{"mcpServers": {"echo": {"command": "other"}, "own": {"command": "other"}}}'}
    other["kedge.toml"] = '[lsp.servers.mine]\ncommand = "other"\n[mcp.theirs]\ncommand = "other"\nsource = "/x"\n'
    for source in (kit, written(tmp_path / "other", other)):
        assert home.kedge("plugin", "add", str(source), "--yes").code == 0
    with home.config.open("a") as config:
        config.write('[mcp.own]\ncommand = "mine"\n')
    written(
        home.workspace,
        {
            ".mcp.json": '{"mcpServers": {"echo": {"command": "evil", "source": "plugin kit"}}}',
            "kedge.toml": '[mcp.team]\ncommand = "team"\nsource = "plugin kit"\n',
        },
    )
    assert home.kedge("config", "trust", "--yes").code == 0
    every = json.loads(home.kedge("extensions", "--host", host, "--json").out)
    servers = {
        (one["name"], one["origin"]): (one["condition"], one.get("error", ""))
        for one in every
        if one["kind"] in ("mcp", "lsp")
    }
    used = "that of the {} has the same name and is used instead"
    assert {key: value for key, value in servers.items() if key[0] in ("echo", "own", "theirs", "team", "mine")} == {
        ("echo", "plugin kit"): ("idle", ""),
        ("echo", "plugin other"): ("disabled", used.format("plugin kit")),
        ("mine", "plugin kit"): ("idle", ""),
        ("mine", "plugin other"): ("disabled", used.format("plugin kit")),
        ("own", "user"): ("idle", ""),
        ("own", "plugin other"): ("disabled", used.format("user")),
        ("theirs", "plugin other"): ("idle", ""),
        ("team", "repository"): ("idle", ""),
    }


def test_root_is_in_the_programs_of_servers(in_home: Home, kit: Path) -> None:
    assert in_home.kedge("plugin", "add", str(kit), "--yes").code == 0
    copy = str(in_home.root / "plugins" / "kit")
    loaded = load_config(in_home.workspace)
    server = loaded.config.mcp["echo"]
    assert (server.args, server.env["TOKEN"]) == ([f"{copy}/server.py", str(in_home.data)], copy)
    assert server.env["CLAUDE_PLUGIN_ROOT"] == server.env["KEDGE_PLUGIN_ROOT"] == copy
    assert loaded.config.lsp.servers["mine"].command == f"{copy}/mine-ls"
    assert loaded.sources["mcp.echo.args"] == loaded.sources["hooks.PreToolUse"]
    assert loaded.sources["mcp.echo.args"].startswith("plugin kit ")


def test_hooks_of_plugins_leave_room_for_those_of_the_user(in_home: Home, tmp_path: Path) -> None:
    many = [("Stop", "", f"plugin {number}") for number in range(30)]
    source = written(tmp_path / "many", {"hooks/hooks.json": hooks(*many)})
    assert in_home.kedge("plugin", "add", str(source), "--yes").code == 0
    with in_home.config.open("a") as config:
        config.write('[[hooks.Stop]]\ncommand = "mine"\n')
    loaded = load_config(in_home.workspace)
    assert [hook.command for hook in loaded.config.hooks.stop] == [f"plugin {number}" for number in range(19)] + [
        "mine"
    ]
    assert loaded.ignored == ("hooks.Stop: only the first 19 of 30 hooks of plugins are used.",)


def test_plugin_cannot_lift_the_confinement_of_language_servers(home: Home, tmp_path: Path) -> None:
    source = written(tmp_path / "wide", {"kedge.toml": '[lsp]\nenabled = true\n[lsp.servers.x]\ncommand = "x"\n'})
    refused = home.kedge("plugin", "add", str(source), "--yes")
    assert (refused.code, "kedge.toml sets lsp.enabled" in refused.err) == (1, True)
