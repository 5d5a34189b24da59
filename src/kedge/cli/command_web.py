"""`kedge web`: links to the web page, and the browsers that have access."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import webbrowser
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import click

from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import ago, print_json, print_table
from kedge.cli.workspace_lookup import by_prefix, find_session, opened, print_config_problem, print_progress
from kedge.client.client import Client
from kedge.client.local_server import find_or_start
from kedge.client.retry import GIVE_UP_S, retry_while_away
from kedge.client.web_links import PLAIN_HTTP, WebTarget, choose_target, own_address
from kedge.errors import Invalid
from kedge.qr_code import qr_code
from kedge.wire.web_models import BrowserBody, CreateTicket, Rights

T = TypeVar("T")

_EXAMPLES = examples(
    "kedge web                                   # open the page in your browser",
    "kedge web --read-only                       # a link for a spectator",
    "kedge web --phone --address 192.168.1.5 --allow-remote",
    "kedge web --phone --address https://NAME    # a tunnel or proxy that leads to this machine",
    "kedge web --session s3f2a --phone --address 192.168.1.5 --allow-remote",
    "kedge web list",
    "kedge web revoke b3f2a",
)


@click.group(invoke_without_command=True, epilog=_EXAMPLES)
@click.option("--read-only", is_flag=True, help="The browser may watch, and nothing else.")
@click.option("--session", metavar="ID", help="The browser reaches this session of the directory, and nothing else.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on. Default: the last one.")
@click.option("--no-open", is_flag=True, help="Print the link and do not open it.")
@click.option("--phone", is_flag=True, help="Print the link as a QR code.")
@click.option("--address", metavar="ADDRESS", help="IP address or name to listen on, or the URL of a tunnel.")
@click.option("--allow-remote", is_flag=True, help="Allow an address that other machines can reach.")
@click.option("--certificate", metavar="FILE", type=click.Path(exists=True, dir_okay=False, resolve_path=True))
@click.option("--key", metavar="FILE", type=click.Path(exists=True, dir_okay=False, resolve_path=True))
@click.option("--yes", is_flag=True, help="Do not ask before plain HTTP is opened to other machines.")
@cwd_option
@host_option
@click.pass_context
def web(
    context: click.Context,
    read_only: bool,
    session: str | None,
    port: int,
    no_open: bool,
    phone: bool,
    address: str | None,
    allow_remote: bool,
    certificate: str | None,
    key: str | None,
    yes: bool,
    cwd: str,
    host: str | None,
) -> int:
    """Open the web page. The link works once, and for five minutes."""
    if context.invoked_subcommand is not None:
        return 0
    if phone and address is None:
        raise Invalid(
            f"Choose the address that the phone can reach: --address {own_address() or 'ADDRESS'} --allow-remote, "
            "or the URL of a tunnel."
        )
    if key and not certificate:
        raise Invalid("--key needs --certificate.")
    target = choose_target(
        address, port, allow_remote=allow_remote, certificate=certificate or "", certificate_key=key or ""
    )
    if target.is_plain_remote and not yes:
        _confirm_plain_http()
    link = asyncio.run(_link(target, "read_only" if read_only else "full", session, cwd, host))
    if phone:
        click.echo(qr_code(link), nl=False)
    click.echo(link)
    if not phone and not no_open and sys.stdout.isatty() and _has_display():
        webbrowser.open(link)
    return 0


@web.command("list", epilog=examples("kedge web list", "kedge web list --json"))
@json_option
@host_option
def list_(as_json: bool, host: str | None) -> int:
    """List the browsers that have access."""
    browsers = asyncio.run(_with_server(host, lambda client: client.web.browsers()))
    if as_json:
        print_json(browsers)
    elif not browsers:
        click.echo("no browser has access")
    else:
        rows = [
            (one.id, one.label, one.rights, one.session_id or "all", ago(one.last_used_at), _days_left(one))
            for one in browsers
        ]
        print_table(("BROWSER", "LABEL", "RIGHTS", "SESSION", "USED", "EXPIRES"), rows)
    return 0


@web.command(epilog=examples("kedge web revoke b3f2a", "kedge web revoke --all"))
@click.argument("browser", metavar="ID", required=False)
@click.option("--all", "all_", is_flag=True, help="Revoke all browsers.")
@host_option
def revoke(browser: str | None, all_: bool, host: str | None) -> int:
    """End the access of a browser. Its open pages lose their connection at once."""
    if bool(browser) == all_:
        raise click.UsageError("Pass the ID of a browser, or --all")

    async def act(client: Client) -> list[BrowserBody]:
        browsers = await client.web.browsers()
        if browser:
            missing = f"No browser {browser!r}. List them with: kedge web list"
            browsers = [by_prefix(browser, browsers, missing)]
        for one in browsers:
            await client.web.revoke(one.id)
        return browsers

    for one in asyncio.run(_with_server(host, act)):
        click.echo(f"{one.id}: revoked ({one.label})")
    return 0


def _confirm_plain_http() -> None:
    click.echo(PLAIN_HTTP, err=True)
    if not sys.stdin.isatty():
        raise Invalid("Add --yes to open plain HTTP to other machines without a question.")
    click.confirm("Open it?", abort=True, err=True)


async def _link(target: WebTarget, rights: Rights, session: str | None, cwd: str, host: str | None) -> str:
    if session is None:
        return await _with_server(host, lambda client: _make_link(client, target, CreateTicket(rights=rights)))
    async with opened(host, cwd) as workspace:
        session_id = (await find_session(workspace, session)).id
        body = CreateTicket(rights=rights, workspace_id=workspace.id, session_id=session_id)
        return await _make_link(workspace.client, target, body)


async def _make_link(client: Client, target: WebTarget, body: CreateTicket) -> str:
    address = await client.web.listen(target.request)
    ticket = await client.web.create_ticket(body)
    return target.link(address.url, ticket.ticket)


async def _with_server(host: str | None, call: Callable[[Client], Awaitable[T]]) -> T:
    """Call with a client of the server, which has the list of browsers. The user's own server is started if necessary,
    and again if it was about to exit."""
    restart = None if host else partial(find_or_start, print_progress)
    if host is None:
        print_config_problem()
    async with Client(host) as client:
        if restart is not None:
            await restart()
        return await retry_while_away(lambda: call(client), GIVE_UP_S if restart else 0, restart=restart)


def _days_left(browser: BrowserBody) -> str:
    return f"in {max(0, round((browser.expires_at / 1000 - time.time()) / 86400))}d"


def _has_display() -> bool:
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
