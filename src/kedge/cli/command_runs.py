"""`kedge runs` and `kedge cancel`: what is at work on a server, and stopping exactly that."""

from __future__ import annotations

import asyncio

import click

from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import ago, print_json, print_table
from kedge.cli.workspace_lookup import session_by_prefix
from kedge.client.client import Client
from kedge.client.http_transport import NotConnected
from kedge.client.safe_text import one_line
from kedge.errors import Invalid, NotFound, ShuttingDown
from kedge.wire.models import CancelReply, RunBody, SessionBody


@click.command(epilog=examples("kedge runs", "kedge runs --json | jq -r '.[].run_id'"))
@json_option
@host_option
def runs(as_json: bool, host: str | None) -> int:
    """List what is running or queued on this server, in every workspace."""

    async def live() -> list[RunBody] | None:
        async with Client(host) as client:
            try:
                return await client.runs()
            except (NotConnected, ShuttingDown):
                if host is not None:
                    raise
                return None

    found = asyncio.run(live())
    if as_json:
        print_json(found or [])
    elif found is None:
        click.echo("no server is running")
    elif not found:
        click.echo("nothing is running")
    else:
        rows = [
            (
                run.run_id,
                run.session_id,
                "stopping" if run.stopping else run.state,
                ago(run.accepted_at),
                first_line(run),
            )
            for run in found
        ]
        print_table(("RUN", "SESSION", "STATE", "AGE", "PROMPT"), rows)
    return 0


def first_line(run: RunBody) -> str:
    return one_line(next((line for line in run.prompt.splitlines() if line.strip()), ""), 80)


@click.command(
    epilog=examples(
        "kedge cancel 4f0c2a             # a run or a session by a unique beginning of its id, see `kedge runs`",
        "kedge cancel SESSION --json",
    )
)
@click.argument("target", metavar="SESSION|RUN")
@json_option
@cwd_option
@host_option
def cancel(target: str, as_json: bool, cwd: str, host: str | None) -> int:
    """Stop one run and no other, or every run of a session accepted until now. Says what it covered.

    What is running is found in every workspace of the server; an idle session in this one and those that are open."""

    async def act() -> tuple[str, CancelReply]:
        async with Client(host) as client:
            return await _cancel(client, target, cwd)

    what, reply = asyncio.run(act())
    if as_json:
        print_json(reply)
    elif not reply.covered:
        click.echo(f"{what}: nothing to cancel")
    else:
        for covered in reply.covered:
            click.echo(f"cancelled run {covered.run_id} (it was {covered.was})")
    return 0


async def _cancel(client: Client, target: str, cwd: str) -> tuple[str, CancelReply]:
    """What the target is, in words, and what cancelling it covered."""
    live = await client.runs()
    matching = {run.run_id: run for run in live if target and run.run_id.startswith(target)}
    sessions = {run.session_id: run for run in live if target and run.session_id.startswith(target)}
    if target in matching:
        matching, sessions = {target: matching[target]}, {}
    elif target in sessions:
        matching, sessions = {}, {target: sessions[target]}
    if len(matching) + len(sessions) > 1:
        shown = ", ".join([*matching, *sessions][:5])
        raise NotFound(f"{target!r} is the beginning of several runs or sessions ({shown}): write more of the id")
    for run_id, run in matching.items():
        return f"run {run_id}", await client.cancel_run(run.workspace_id, run_id)
    for session_id, run in sessions.items():
        return f"session {session_id}", await client.cancel_session(run.workspace_id, session_id)
    return await _not_live(client, target, cwd)


async def _not_live(client: Client, target: str, cwd: str) -> tuple[str, CancelReply]:
    """Nothing live has this name. It may have ended a moment ago, which is not an error but nothing to do either."""
    await client.create_workspace(cwd)
    for workspace in await client.workspaces():
        try:
            run = await client.run(workspace.id, target)
        except (NotFound, Invalid):
            pass
        else:
            return f"run {run.run_id} has ended ({run.outcome or run.state})", CancelReply(mark=None, covered=[])
        session = _session(target, await client.sessions(workspace.id), workspace.path)
        if session:
            # Asked for all the same: a prompt may have been accepted since we looked.
            return f"session {session.id} is idle", await client.cancel_session(workspace.id, session.id)
    raise NotFound(f"no live run and no session {target!r} on {client.host}: `kedge runs` shows what is running")


def _session(target: str, sessions: list[SessionBody], where: str) -> SessionBody | None:
    try:
        return session_by_prefix(target, sessions, where)
    except NotFound:
        return None
