"""`kedge mcp`: the MCP servers of a workspace, and kedge as an MCP server."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from pathlib import Path
from typing import Any

import click

from kedge import paths
from kedge.cli.command_approvals import Listing
from kedge.cli.exit_codes import EXIT_FAILED
from kedge.cli.mcp_tables import with_server, without_server
from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import print_json, print_table
from kedge.cli.workspace_lookup import opened, print_config_problem
from kedge.client.safe_text import one_line
from kedge.client.view.extension_text import offer_counts
from kedge.errors import Invalid
from kedge.wire.extension_models import ExtensionBody

#: Tools in a table row. Characters.
TOOLS_CHARS_MAX = 100

_EXAMPLES = examples(
    "kedge mcp",
    "kedge mcp add time uvx mcp-server-time",
    "kedge mcp add docs --url https://example.com/mcp --header 'Authorization: $DOCS_TOKEN'",
    "kedge mcp test time",
    "kedge mcp login docs",
    "kedge mcp remove time",
    "kedge mcp serve --help",
)


@click.group(cls=Listing, epilog=_EXAMPLES)
def mcp() -> None:
    """List, add, test and remove MCP servers, and log in to them; serve kedge to other agents.

    A server is started when its tools are first used. Every call of a tool asks for approval, unless a rule such as
    mcp(time/*) allows it."""


@mcp.command("list", epilog=examples("kedge mcp", "kedge mcp list --json | jq -r '.[].name'"))
@json_option
@cwd_option
@host_option
def list_(as_json: bool, cwd: str, host: str | None) -> int:
    """List the MCP servers of this directory with their states."""

    async def read() -> list[ExtensionBody]:
        async with opened(host, cwd) as workspace:
            return [one for one in await workspace.client.extensions(workspace.id) if one.kind == "mcp"]

    servers = asyncio.run(read())
    if as_json:
        print_json(servers)
    elif not servers:
        click.echo("no MCP servers; add one with: kedge mcp add NAME COMMAND")
    else:
        rows = [
            (
                one_line(one.name, 100),
                one.condition,
                one.origin,
                one_line(one.error or ", ".join(one.offers), TOOLS_CHARS_MAX),
            )
            for one in servers
        ]
        print_table(("SERVER", "STATE", "FROM", "TOOLS"), rows)
    return 0


@mcp.command(
    epilog=examples(
        "kedge mcp add time uvx mcp-server-time",
        "kedge mcp add files --env 'ROOT=/srv' -- npx -y some-server --read-only",
        "kedge mcp add docs --url https://example.com/mcp --header 'Authorization: $DOCS_TOKEN'",
    )
)
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--url", metavar="URL", help="URL of a remote server, instead of a command.")
@click.option("--sse", is_flag=True, help="The remote server uses the older transport SSE.")
@click.option("--env", "env", metavar="NAME=VALUE", multiple=True, help="Variable of the command. Repeatable.")
@click.option("--header", "headers", metavar="NAME: VALUE", multiple=True, help="HTTP header. Repeatable.")
@cwd_option
@host_option
def add(
    name: str,
    command: tuple[str, ...],
    url: str | None,
    sse: bool,
    env: tuple[str, ...],
    headers: tuple[str, ...],
    cwd: str,
    host: str | None,
) -> int:
    """Add an MCP server to your configuration file, then test it.

    Write -- before a command that has options. A value of --env or --header can be "$VARIABLE" or
    "keyring:SERVICE/USER"."""
    if bool(command) == bool(url):
        raise click.UsageError("Give either a command or --url")
    settings: dict[str, Any] = {}
    if command:
        settings["command"] = command[0]
        if command[1:]:
            settings["args"] = list(command[1:])
    else:
        settings["url"] = url
        if sse:
            settings["type"] = "sse"
    if env:
        settings["env"] = dict(_pair(one, "=", "--env") for one in env)
    if headers:
        settings["headers"] = dict(_pair(one, ":", "--header") for one in headers)
    file = paths.config_file()
    _write(file, with_server(_read(file), file, name, settings))
    click.echo(f"added {one_line(name, 100)} to {file}")
    return _test(name, cwd, host, as_json=False)


@mcp.command(epilog=examples("kedge mcp remove time"))
@click.argument("name")
def remove(name: str) -> int:
    """Remove an MCP server from your configuration file."""
    print_config_problem()
    file = paths.config_file()
    _write(file, without_server(_read(file), file, name))
    click.echo(f"removed {one_line(name, 100)} from {file}")
    return 0


@mcp.command(epilog=examples("kedge mcp test time", "kedge mcp test time --json | jq -r '.offers[]'"))
@click.argument("name")
@json_option
@cwd_option
@host_option
def test(name: str, as_json: bool, cwd: str, host: str | None) -> int:
    """Start an MCP server and list its tools. The exit code is 1 if that fails."""
    return _test(name, cwd, host, as_json=as_json)


@mcp.command(epilog=examples("kedge mcp login docs"))
@click.argument("name")
@cwd_option
@host_option
def login(name: str, cwd: str, host: str | None) -> int:
    """Log in to a remote MCP server with a browser (OAuth), then test it.

    The address to open is printed. The tokens are stored in a file that only you can read, and renewed when they
    expire. They are sent only to the URL that the server has now."""
    from kedge.cli.mcp_browser_login import log_in  # for start-up time

    print_config_problem()
    log_in(name, Path(cwd))
    click.echo(f"logged in to {one_line(name, 100)}")
    return _test(name, cwd, host, as_json=False)


@mcp.command(epilog=examples("kedge mcp logout docs"))
@click.argument("name")
def logout(name: str) -> int:
    """Remove the stored login to an MCP server."""
    from kedge.cli.mcp_browser_login import log_out  # for start-up time

    print_config_problem()
    count = log_out(name)
    click.echo(f"logged out of {one_line(name, 100)}" if count else f"there is no login to {one_line(name, 100)}")
    return 0


def _loopback(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Parse HOST:PORT. Other machines must not reach the server, so the address is a loopback one."""
    if value is None:
        return None
    name, _, port = value.rpartition(":")
    try:
        host = ipaddress.ip_address("127.0.0.1" if name == "localhost" else name.strip("[]"))
        if host.is_loopback and 0 <= int(port) <= 65535:
            return str(host), int(port)
    except ValueError:
        pass
    raise click.BadParameter(f"{value!r} is not a loopback address with a port: 127.0.0.1:8788", context, option)


@mcp.command(
    epilog=examples(
        "kedge mcp serve                              # over standard input and output, for an agent that starts it",
        "kedge mcp serve --cwd ~/projects             # for all directories below this one",
        "kedge mcp serve --http 127.0.0.1:8788        # over HTTP, for several clients",
        "kedge mcp serve --approve                    # the other agent may answer approvals",
        "",
        "In the configuration of the other agent:",
        '  {"mcpServers": {"kedge": {"command": "kedge", "args": ["mcp", "serve"]}}}',
    )
)
@click.option(
    "--http",
    "address",
    metavar="HOST:PORT",
    callback=_loopback,
    help="Serve over HTTP on this loopback address, with a token.",
)
@click.option("--approve", is_flag=True, help="Let clients allow single tool calls, and deny them.")
@cwd_option
@host_option
def serve(address: tuple[str, int] | None, approve: bool, cwd: str, host: str | None) -> int:
    """Serve kedge to other agents, as tools of an MCP server.

    The tools submit prompts, wait for runs, cancel them, read sessions and list pending approvals, in the workspace
    directory and the directories below it. Runs continue when a client disconnects. Only you can answer approvals,
    unless --approve is given; no client can store rules or widen a mode."""
    from kedge.cli.mcp_transport import serve_http, serve_stdio  # the library takes a second to import

    if address is None:
        return serve_stdio(cwd, host, approve=approve)
    return serve_http(address, cwd, host, approve=approve)


def _test(name: str, cwd: str, host: str | None, *, as_json: bool) -> int:
    async def start() -> ExtensionBody:
        async with opened(host, cwd) as workspace:
            return await workspace.client.start_mcp_server(workspace.id, name, again=True)

    state = asyncio.run(start())
    if as_json:
        print_json(state)
    elif state.condition == "ready":
        click.echo(f"{one_line(name, 100)} is ready: {offer_counts(state)}")
        for offer in state.offers:
            click.echo(f"  {one_line(offer, 200)}")
    else:
        click.echo(f"kedge: {one_line(f'{name} is {state.condition}: {state.error}', 1000)}", err=True)
    return 0 if state.condition == "ready" else EXIT_FAILED


def _pair(text: str, separator: str, option: str) -> tuple[str, str]:
    name, written, value = text.partition(separator)
    if not written or not name.strip():
        raise click.UsageError(f"{option} {text[:50]!r} is not NAME{separator}VALUE")
    return name.strip(), value.strip()


def _read(file: Path) -> str:
    try:
        return file.read_text() if file.exists() else ""
    except UnicodeDecodeError:
        raise Invalid(f"{file} is not UTF-8.") from None


def _write(file: Path, text: str) -> None:
    """Replace the file at once, with its permissions. A link is followed."""
    real = Path(os.path.realpath(file))
    real.parent.mkdir(parents=True, exist_ok=True)
    new = real.with_name(f"{real.name}.{os.getpid()}")
    mode = real.stat().st_mode & 0o777 if real.exists() else 0o600
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as opened_file:
        opened_file.write(text)
    os.replace(new, real)
