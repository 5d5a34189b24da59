"""A broken configuration file is reported by every command, also while a server uses the last valid one."""

from __future__ import annotations

import pytest

from tests.client.process import WAIT_S, Home

COMMANDS = (
    ("run", "hello"),
    ("runs",),
    ("sessions", "list"),
    ("approvals",),
    ("workspaces", "list"),
    ("models",),
    ("config", "path"),
    ("config", "show"),
    ("cancel", "nothing"),
    ("attach", "nothing"),
    ("doctor",),
    ("stop",),
)


@pytest.mark.found(
    "issue 20",
    "a configuration file that became invalid was reported in the server's log only; every command prints it, with "
    "line and suggestion, and kedge doctor fails",
)
@pytest.mark.parametrize("whose", ["user", "repository"])
def test_every_command_reports_an_invalid_file(in_home: Home, whose: str) -> None:
    file = in_home.config if whose == "user" else in_home.workspace / "kedge.toml"
    valid = file.read_text() if file.exists() else ""
    # A live Run keeps the workspace open, so that its last valid configuration stays in effect.
    held = in_home.start_kedge("run", "--output", "stream-json", f"script: hold problem-{whose}")
    assert held.stdout
    held.stdout.readline()
    file.write_text(f"{valid}\n[runs]\nmax_stps = 3\n")
    line = file.read_text().split("\n").index("max_stps = 3") + 1
    mistake = f"line {line}: runs: unknown field `max_stps`; did you mean max_steps?"
    for command in COMMANDS:
        done = in_home.kedge(*command)
        printed = done.out if command == ("doctor",) else done.err
        assert str(file) in printed, (command, done)
        assert mistake in printed, (command, done)
        assert done.code == 1 or command != ("doctor",)
    assert (
        in_home.kedge("run", "hello").err == f"kedge: {file}, {mistake} The last valid configuration stays in effect.\n"
    )
    file.write_text(valid)
    assert in_home.kedge("run", "hello").err == ""
    in_home.endpoint.release(f"problem-{whose}")
    held.communicate(timeout=WAIT_S)
