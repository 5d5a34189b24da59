"""`kedge users` and `kedge audit`: the users of a server, and their actions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, get_args

import click

from kedge.cli.options import examples, host_option, json_option
from kedge.cli.printing import ago, print_json, print_table
from kedge.cli.workspace_lookup import connected_or_started
from kedge.client.client import Client
from kedge.client.retry import retry_if_refused
from kedge.client.safe_text import one_line
from kedge.core.audit import AUDIT_MAX
from kedge.core.users import Role
from kedge.wire.limits import PAGE_ITEMS_MAX
from kedge.wire.user_models import AuditEntryBody

T = TypeVar("T")

_EXAMPLES = examples(
    "kedge users add eve --role collaborator",
    "kedge users add wall-screen --role spectator",
    "kedge users list",
    "kedge users revoke eve",
)


@click.group(epilog=_EXAMPLES)
def users() -> None:
    """Users of this server, with a token each. Without users, only its owner has access."""


@users.command(epilog=examples("kedge users add eve --role collaborator"))
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(get_args(Role)),
    required=True,
    help="spectator: may only read. collaborator: may also let the agent act. owner: may also manage users.",
)
@json_option
@host_option
def add(name: str, role: Role, as_json: bool, host: str | None) -> int:
    """Add a user, and print its token. It cannot be shown again."""
    added = _call(host, lambda client: client.users.add(name, role))
    if as_json:
        print_json(added)
        return 0
    click.echo(f"{added.user.name}: added ({added.user.role}). The token, which cannot be shown again:\n")
    click.echo(f"  {added.token}\n")
    click.echo("Send it to the user over a secure channel. With it, on any machine that can reach this server:\n")
    click.echo(f"  export KEDGE_TOKEN={added.token}")
    if host is not None and not host.startswith("unix:"):
        click.echo(f"  kedge runs --host {host}")
    else:  # the local socket is the owner's, whatever the token
        click.echo("  kedge runs --host tcp://ADDRESS:PORT\n")
        click.echo("The server needs such an address: kedge serve --host tcp://ADDRESS:PORT --allow-remote")
    return 0


@users.command("list", epilog=examples("kedge users list", "kedge users list --json"))
@json_option
@host_option
def list_(as_json: bool, host: str | None) -> int:
    """List the users."""
    listed = _call(host, lambda client: client.users.all())
    if as_json:
        print_json(listed)
    elif not listed:
        click.echo("no users: only the owner has access; add one with: kedge users add NAME --role collaborator")
    else:
        print_table(("USER", "ROLE", "ADDED"), [(one.name, one.role, ago(one.created_at)) for one in listed])
    return 0


@users.command(epilog=examples("kedge users revoke eve"))
@click.argument("name")
@host_option
def revoke(name: str, host: str | None) -> int:
    """End the access of a user. Its open connections end at once; its Runs continue."""
    _call(host, lambda client: client.users.revoke(name))
    click.echo(f"{name}: revoked")
    return 0


@click.command(epilog=examples("kedge audit", "kedge audit --user eve --limit 200 --json"))
@click.option("--user", metavar="NAME", help='Only actions of this user; "" for the owner.')
@click.option("--limit", type=click.IntRange(1, AUDIT_MAX), default=50, show_default=True, help="Number of actions.")
@json_option
@host_option
def audit(user: str | None, limit: int, as_json: bool, host: str | None) -> int:
    """List the actions of users, the latest first."""
    entries = _call(host, lambda client: _entries(client, user, limit))
    if as_json:
        print_json(entries)
    elif not entries:
        click.echo("no actions; they are recorded once the server has users: kedge users add NAME --role collaborator")
    else:
        header = ("TIME", "USER", "ACTION", "WORKSPACE", "SESSION", "RUN", "DETAIL")
        print_table(header, [_row(entry) for entry in entries])
    return 0


async def _entries(client: Client, user: str | None, limit: int) -> list[AuditEntryBody]:
    entries: list[AuditEntryBody] = []
    before = 0
    while len(entries) < limit:
        page = await client.users.audit(user=user, limit=min(limit - len(entries), PAGE_ITEMS_MAX), before=before)
        entries += page.entries
        before = page.before
        if not before:
            break
    return entries


def _row(entry: AuditEntryBody) -> tuple[str, ...]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at / 1000))
    ids = (entry.workspace_id, entry.session_id, entry.run_id)
    return (when, entry.author or "(owner)", entry.action, *(one or "-" for one in ids), one_line(entry.detail, 200))


def _call(host: str | None, call: Callable[[Client], Awaitable[T]]) -> T:
    async def connect_and_call() -> T:
        async with connected_or_started(host) as client:
            return await retry_if_refused(lambda: call(client), client.restart)

    return asyncio.run(connect_and_call())
