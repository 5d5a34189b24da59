"""`kedge extensions`, and prompt commands on the command line."""

from __future__ import annotations

import json

from tests.cli.test_jobs import kedge
from tests.client.process import Server


def test_extensions_are_listed_and_commands_sent(server: Server) -> None:
    commands = server.home.workspace / ".claude" / "commands"
    commands.mkdir(parents=True)
    (commands / "greet.md").write_text("---\ndescription: Greets.\n---\nscript: say hello $1")
    (commands / "bad.md").write_text("---\nx\n---\n")
    listed = json.loads(kedge(server, "extensions", "--kind", "command", "--json").out)
    assert [(one["name"], one["condition"], one["origin"]) for one in listed] == [
        ("bad", "failed", "repository"),
        ("greet", "ready", "repository"),
    ]
    assert "Greets." in kedge(server, "extensions").out
    assert kedge(server, "extensions", "--kind", "skill").out == "no extensions\n"
    assert kedge(server, "run", "/greet Ann").out == "hello Ann\n"
    refused = kedge(server, "run", "/gret Ann")
    assert refused.code == 1
    assert "Did you mean /greet?" in refused.err


def test_failed_hook_is_reported_by_run_and_listed(own_server: Server) -> None:
    home, host = own_server.home, own_server.host
    answer = json.dumps({"systemMessage": "look\x1b[2J here"})
    speaks = json.dumps(f"printf '%s' '{answer}'")
    with home.config.open("a") as file:
        file.write('\n[[hooks.PreToolUse]]\ncommand = "echo broken >&2; exit 3"\n')
        file.write(f"\n[[hooks.PostToolUse]]\ncommand = {speaks}\n")
    done = home.kedge("run", "--host", host, 'script: tool ls {"path": "."} | say done')
    assert (done.code, done.out) == (0, "done\n")
    assert "warning: hook: The hook PreToolUse: echo broken >&2; exit 3 exited with code 3: broken." in done.err
    assert "warning: hook: look\\u{1b}[2J here" in done.err
    (session,) = json.loads(home.kedge("sessions", "list", "--host", host, "--json").out)
    assert "warning: hook: look" in home.kedge("sessions", "show", "--host", host, session["id"]).out
    failed = home.kedge("extensions", "--host", host, "--kind", "hook").out
    assert "failed" in failed, "after the workspace was closed"
    assert "exited with code 3: broken" in failed
