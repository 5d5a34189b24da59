"""`kedge workspaces`: all directories that were ever used. They are in the server's store, so a server is started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import click

from kedge.cli.options import examples, host_option, json_option
from kedge.cli.printing import ago, print_json, print_table
from kedge.cli.workspace_lookup import connected_or_started
from kedge.client.safe_text import one_line
from kedge.errors import WorkspaceNotFound
from kedge.wire.models import KnownWorkspaceBody


@click.group()
def workspaces() -> None:
    """List and remove workspaces: the directories that kedge was used in."""


@workspaces.command("list", epilog=examples("kedge workspaces list", "kedge workspaces list --json | jq length"))
@json_option
@host_option
def list_(as_json: bool, host: str | None) -> int:
    """List the workspaces, most recently used first."""

    async def read() -> list[KnownWorkspaceBody]:
        async with connected_or_started(host) as client:
            return await client.known_workspaces()

    listed = sorted(asyncio.run(read()), key=lambda known: known.used_at or known.created_at, reverse=True)
    if as_json:
        print_json(listed)
    elif not listed:
        click.echo("no workspaces yet; start a session with: kedge run")
    else:
        rows = [
            (
                known.id,
                ago(known.used_at or known.created_at),
                str(known.sessions),
                str(known.live_runs),
                _state(known),
                one_line(known.path, 200),
            )
            for known in listed
        ]
        print_table(("WORKSPACE", "AGE", "SESSIONS", "LIVE RUNS", "STATE", "PATH"), rows)
    return 0


@workspaces.command(
    epilog=examples("kedge workspaces remove ~/old-project", "kedge workspaces remove --yes /tmp/build")
)
@click.argument("target", metavar="PATH|ID")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@host_option
def remove(target: str, yes: bool, as_json: bool, host: str | None) -> int:
    """Remove a workspace from kedge: its sessions, transcripts and approvals. The directory is not touched."""

    async def find() -> KnownWorkspaceBody:
        async with connected_or_started(host) as client:
            return _find(target, await client.known_workspaces())

    async def act(workspace_id: str) -> None:
        async with connected_or_started(host) as client:
            await client.remove_workspace(workspace_id)

    known = asyncio.run(find())
    if known.sessions and not yes:
        if not os.isatty(0):
            raise click.UsageError(f"{one_line(known.path)} has {known.sessions} sessions. Use --yes")
        question = f"Remove {one_line(known.path)} with {known.sessions} sessions? Its files are kept."
        click.confirm(question, abort=True, err=True)
    asyncio.run(act(known.id))
    if as_json:
        print_json({"removed": known.id, "path": known.path})
    else:
        click.echo(f"removed {one_line(known.path)} from kedge; the directory is unchanged")
    return 0


def _find(target: str, listed: Sequence[KnownWorkspaceBody]) -> KnownWorkspaceBody:
    # The real path last: it cannot be found out in a directory that does not answer.
    for resolve in (str, os.path.abspath, os.path.realpath):
        name = resolve(target)
        for known in listed:
            if name in (known.id, known.path):
                return known
    raise WorkspaceNotFound(f"No workspace {target!r}. List them with: kedge workspaces list")


def _state(known: KnownWorkspaceBody) -> str:
    if known.directory == "gone":
        return "directory is gone"
    if known.directory == "unknown":
        return "does not answer"
    return "open" if known.is_open else ""
