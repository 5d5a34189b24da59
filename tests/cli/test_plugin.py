"""`kedge plugin`: what is shown is what is copied and pinned, and it is removed whole."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from kedge.config.plugins import PluginStore
from tests.client.process import Home


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "review-kit"
    for path, text in {
        ".claude-plugin/plugin.json": '{"name": "review-kit", "version": "1.2", "description": "Reviews\\u001b[31m"}',
        "skills/review/SKILL.md": "---\ndescription: Review a change\n---\nRead the diff.",
        "skills/review/check.sh": "#!/bin/sh\ntrue\n",
        "commands/pr/open.md": "Open a pull request for $ARGUMENTS",
        "agents/critic.md": "---\ndescription: Finds faults\n---\nYou review.",
        ".mcp.json": '{"mcpServers": {"clock": {"command": "mcp-server-time", "args": ["--utc"]}}}',
        "hooks/hooks.json": json.dumps(
            {"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "./gate.sh"}]}]}}
        ),
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "skills/review/check.sh").chmod(0o755)
    return root


def test_added_plugin_is_shown_pinned_and_removed_whole(home: Home, source: Path) -> None:
    asked = home.kedge("plugin", "add", str(source))
    assert asked.code == 2
    assert "There is no terminal to confirm on" in asked.err
    assert not (home.config.parent / "plugins").exists()
    added = home.kedge("plugin", "add", str(source), "--yes")
    assert added.code == 0
    lines = {line.strip() for line in added.out.splitlines()}
    assert {
        "skill    review",
        "command  pr:open",
        "agent    critic",
        "mcp      clock  $ mcp-server-time --utc",
        "hook     PreToolUse Bash  $ ./gate.sh",
        "added: review-kit",
    } <= lines
    assert "\x1b" not in added.out
    (source / "skills/review/SKILL.md").write_text("changed later")
    [installed] = PluginStore(home.config.parent, home.data).installed()
    assert (installed.plugin.name, installed.plugin.version, installed.problem) == ("review-kit", "1.2", "")
    copy = installed.path / "skills/review"
    assert "Read the diff." in (copy / "SKILL.md").read_text()
    assert os.access(copy / "check.sh", os.X_OK)
    assert home.kedge("plugin", "remove", "review-kit").out == "removed: review-kit\n"
    assert not installed.path.exists()
    assert home.kedge("plugin", "list").out == "no plugins\n"
    assert home.kedge("plugin", "remove", "review-kit").code == 1


def test_rights_of_a_plugin_are_shown_before_it_is_added(home: Home, source: Path) -> None:
    for path, text in {
        "commands/pr/open.md": "---\nallowed-tools: Bash(touch:*), WebSearch\nmodel: a/b\n---\nOpen it.",
        "agents/deep/fixer.md": "---\nname: fixer\ndescription: F\ntools: Bash\nmode: yolo\nmodel: c/d\n---\nFix.",
        "skills/review/SKILL.md": '---\ndescription: R\nallowed-tools: ["Bash(rm \u202e:*)"]\n---\nRead.',
        "agents/critic.md": "---\ndescription: F\nmode: never\n---\nYou review.",
    }.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    asked = home.kedge("plugin", "add", str(source))
    assert asked.code == 2
    assert "command  pr:open\n           allowed-tools: bash(touch *)\n           model: a/b\n" in asked.out
    assert "warning: allowed-tools: no equivalent of WebSearch" in asked.out
    assert "agent    fixer\n           model: c/d\n           tools: bash\n           mode: yolo\n" in asked.out
    assert "allowed-tools: bash(rm \\u{202e} *)\n           files: check.sh" in asked.out
    assert "agent    critic  (not used: agents/critic.md: line 3: mode is not one of" in asked.out
    assert "\x1b" not in asked.out
    shown = asked.out.partition("\n\n")[2].partition("\n\n")[0]
    assert home.kedge("plugin", "add", str(source), "--yes").code == 0
    assert shown in home.kedge("plugin", "list").out
    assert "bash(touch *)" in str(json.loads(home.kedge("plugin", "list", "--json").out)[0]["items"])


def test_changed_copy_is_not_used(home: Home, source: Path) -> None:
    assert home.kedge("plugin", "add", str(source), "--yes").code == 0
    store = PluginStore(home.config.parent, home.data)
    [installed] = store.installed()
    (installed.path / "hooks/hooks.json").write_text("{}")
    [changed] = store.installed()
    assert "have changed since it was added" in changed.problem
    listed = home.kedge("plugin", "list", "--json")
    assert (listed.code, "have changed" in json.loads(listed.out)[0]["problem"]) == (1, True)
    assert home.kedge("plugin", "add", str(source), "--yes").code == 0
    assert [one.problem for one in store.installed()] == [""]


@pytest.mark.parametrize("what", ["link", "foreign", "json", "empty"])
def test_what_is_not_a_plugin_is_refused_with_one_line(home: Home, source: Path, what: str) -> None:
    match what:
        case "link":
            (source / "skills/passwords").symlink_to("/etc/passwd")
        case "foreign":
            (source / "kedge.toml").write_text('[permissions]\nallow = ["bash"]\n')
        case "json":
            (source / ".mcp.json").write_text("{")
        case "empty":
            source = source / ".claude-plugin"
    refused = home.kedge("plugin", "add", str(source), "--yes")
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert PluginStore(home.config.parent, home.data).installed() == []


def test_plugin_comes_from_a_git_repository(home: Home, source: Path) -> None:
    git = ["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *arguments], check=True)
    added = home.kedge("plugin", "add", f"file://{source}", "--yes")
    assert (added.code, added.out.splitlines()[-1]) == (0, "added: review-kit")
    assert not (home.config.parent / "plugins/review-kit/.git").exists()
    missing = home.kedge("plugin", "add", f"file://{source}-no", "--yes")
    assert (missing.code, "git cannot clone" in missing.err) == (1, True)
