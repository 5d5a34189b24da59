"""A broken configuration file is reported by every command, also while a server uses the last valid one."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from kedge.cli.main import cli
from tests.client.process import WAIT_S, Home

#: Commands that are not tried: they need a terminal, serve until they are ended, start a Run, or change the files.
NOT_TRIED = {("tui",), ("serve",), ("mcp", "serve"), ("init",), ("mcp", "add")}
#: Further arguments of commands that would fail before they read anything.
FURTHER = {("run",): ("hello",), ("web", "revoke"): ("--all",), ("users", "add"): ("--role", "spectator")}


def registered(command: click.Command, *words: str) -> Iterator[tuple[str, ...]]:
    """Yield every command with the arguments that it requires."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            yield from registered(inner, *words, name)
    elif words not in NOT_TRIED:
        required = sum(isinstance(one, click.Argument) and one.required for one in command.params)
        yield (*words, *["nothing"] * required, *FURTHER.get(words, ()))


#: All of them, and the one that ends the server last.
COMMANDS = sorted(registered(cli), key=lambda words: words == ("stop",))


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
    silent = []
    for command in COMMANDS:
        done = in_home.kedge(*command)
        printed = done.out if command in (("doctor",), ("config", "check")) else done.err
        if str(file) not in printed or mistake not in printed:
            silent.append(command)
        assert done.code == 1 or command != ("doctor",)
    assert silent == []
    assert (
        in_home.kedge("run", "hello").err == f"kedge: {file}, {mistake} The last valid configuration stays in effect.\n"
    )
    file.write_text(valid)
    assert in_home.kedge("run", "hello").err == ""
    in_home.endpoint.release(f"problem-{whose}")
    held.communicate(timeout=WAIT_S)
