"""The examples in docs/extending.md work as they are written there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kedge.core.hooks import parse_answer
from tests.client.fixtures import endpoint, home, own_server
from tests.client.process import Home, Server

__all__ = ["endpoint", "home", "own_server"]

TEXT = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()
#: An MCP server for the example that names a resource of `docs`.
DOCS_SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("docs")
@server.resource("guide://install")
def install() -> str:
    return "Install it with care."
server.run()
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def block(language: str, part: str) -> str:
    (text,) = [text for text in blocks(language) if part in text]
    return text


def files() -> dict[str, str]:
    """The Markdown files of the document, by the path that the sentence before each of them names."""
    return dict(re.findall(r"`(\.claude/[^`]+\.md)`:\n\n```markdown\n(.*?)```", TEXT, re.DOTALL))


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.fixture
def programs(home: Home) -> None:
    """The programs that the examples use and that are not installed here. `uvx` would download its package."""
    write(home.root / "bin" / "uvx", '#!/bin/sh\nexec "$@"\n', 0o755)
    write(home.root / "bin" / "npx", "#!/bin/sh\nexit 1\n", 0o755)
    write(home.root / "bin" / "notify-send", '#!/bin/sh\necho "$@"\n', 0o755)
    home.env["PATH"] = f"{home.root}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"


def add_settings(home: Home, *texts: str) -> None:
    home.config.write_text("\n".join([home.config.read_text(), *texts]))


def outputs(server: Server, prompt: str) -> list[str]:
    """Run a prompt that may do everything; return the results of its tool calls, and the prompt as the model got it."""
    run = server.home.kedge("run", "--host", server.host, "--mode", "yolo", prompt)
    assert run.code == 0, run
    last = server.home.endpoint.requests[-1].body["messages"]
    return [message["content"] for message in last if message["role"] in ("user", "tool")]


def test_settings_are_valid(home: Home) -> None:
    own = home.config.read_text()
    for text in blocks("toml"):
        home.config.write_text(f"{own}\n{text}")
        checked = home.kedge("config", "check")
        assert checked.code == 0, f"{text}\n{checked}"


@pytest.mark.skipif(shutil.which("jq") is None, reason="the examples use jq")
def test_hooks(programs: None, own_server: Server) -> None:
    home = own_server.home
    (guard,) = tomllib.loads(block("toml", "no-push.sh"))["hooks"]["PreToolUse"]
    write(Path(guard["command"].replace("~", str(home.root))), block("sh", "no-push.sh"), 0o755)
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=home.workspace, check=True)
    add_settings(home, block("toml", "no-push.sh"), block("toml", "ruff format"), block("toml", "notify-send"))
    write_file = json.dumps({"path": "a.py", "content": "x=1\n"})
    push = json.dumps({"command": "git push origin"})
    script = f"script: tool write {write_file} | step | tool bash {push} | step | say done"
    prompt, _, pushed = outputs(own_server, script)
    assert "The current branch is main." in prompt
    assert "Do not push to main; create a branch." in pushed
    assert (home.workspace / "a.py").read_text() == "x = 1\n"
    subprocess.run(["git", "switch", "-q", "-c", "other"], cwd=home.workspace, check=True)
    assert "Do not push" not in outputs(own_server, f"script: tool bash {push} | step | say done")[-1]

    (notification,) = tomllib.loads(block("toml", "notify-send"))["hooks"]["Notification"]
    shown = subprocess.run(
        ["sh", "-c", notification["command"]],
        input='{"message": "bash needs approval"}',
        env=home.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "kedge bash needs approval\n"
    answer = parse_answer("PreToolUse", 0, block("json", "hookSpecificOutput").encode(), b"")
    assert (answer.decision, answer.updated_input) == ("allow", {"command": "npm test"})


def test_commands_skills_agents_and_plugins(programs: None, own_server: Server) -> None:
    home, host = own_server.home, own_server.host
    assert len(files()) == len(blocks("markdown")) == 3
    for path, text in files().items():
        write(home.workspace / path, text)
    assert home.kedge("config", "trust", "--yes").code == 0
    listed = json.loads(home.kedge("extensions", "--json", "--host", host).out)
    states = {
        (one["kind"], one["name"], one["condition"], one.get("error", "")) for one in listed if one["kind"] != "lsp"
    }
    assert states == {
        ("command", "review", "ready", ""),
        ("skill", "release", "ready", ""),
        ("agent", "fixer", "ready", ""),
    }
    assert outputs(own_server, "/review 12")[-1].startswith("Review pull request 12.")
    assert "Follow `checklist.md`" in outputs(own_server, "/release 1.2")[-1]
    (loaded,) = outputs(own_server, 'script: tool skill {"name": "release"} | step | say done')[-1:]
    assert "scripts/check.sh" in loaded

    (home.workspace / ".claude").rename(home.workspace / "review-kit")
    commands = [line.removeprefix("$ kedge ") for line in block("console", "plugin add").splitlines()]
    for command in commands:
        if "https://" not in command:
            done = home.kedge(*shlex.split(command), *(["--yes"] if "add" in command else []))
            assert done.code == 0, done
            assert "review-kit" in done.out


def test_mcp_servers(programs: None, own_server: Server) -> None:
    home, host = own_server.home, own_server.host
    own = home.config.read_text()
    time, *others = block("sh", "mcp add").replace("https://example.com", "http://127.0.0.1:9").splitlines()
    added = home.kedge("mcp", "add", "--host", host, *shlex.split(time)[3:])
    assert (added.code, "get_current_time" in added.out) == (0, True), added
    for command in others:  # without their programs and addresses they are added, and do not start
        added = home.kedge("mcp", "add", "--host", host, *shlex.split(command)[3:])
        assert added.code == 1, added
    assert tomllib.loads(home.config.read_text())["mcp"].keys() == {"time", "files", "docs"}
    assert home.kedge("config", "check").code == 0
    home.config.write_text(own)
    write(home.workspace / ".mcp.json", block("json", "mcpServers"))
    assert home.kedge("config", "trust", "--yes").code == 0
    tested = home.kedge("mcp", "test", "time", "--host", host)
    assert (tested.code, "get_current_time" in tested.out) == (0, True), tested

    program = home.root / "docs_server.py"
    write(program, DOCS_SERVER)
    add_settings(home, f"[mcp.docs]\ncommand = {json.dumps(sys.executable)}\nargs = [{json.dumps(str(program))}]\n")
    (_, _, prompt) = shlex.split(block("sh", "@docs:"))
    assert "Install it with care." in outputs(own_server, prompt)[-1]
