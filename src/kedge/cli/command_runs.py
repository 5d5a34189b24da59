"""`kedge runs` and `kedge cancel`: list live runs, and cancel exactly those that are named."""

from __future__ import annotations

import asyncio

import click

from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import ago, print_json, print_table
from kedge.cli.workspace_lookup import connected, session_by_prefix
from kedge.client.client import NOT_RECORDED, Client
from kedge.client.http_transport import NotConnected
from kedge.client.safe_text import one_line
from kedge.client.view.author_text import author_name
from kedge.client.view.job_text import jobs_remain
from kedge.errors import Invalid, NotFound, ShuttingDown
from kedge.wire.models import CancelReply, RunBody, SessionBody


@click.command(epilog=examples("kedge runs", "kedge runs --json | jq -r '.[].run_id'"))
@json_option
@host_option
def runs(as_json: bool, host: str | None) -> int:
    """List active and queued runs of all workspaces."""

    async def live() -> list[RunBody] | str:
        try:
            async with connected(host) as client:
                return await client.runs()
        except (NotConnected, ShuttingDown) as error:
            if host is not None:
                raise
            return "no server is running" if isinstance(error, NotConnected) else "the server is shutting down"

    live_runs = asyncio.run(live())
    if as_json:
        print_json([] if isinstance(live_runs, str) else live_runs)
    elif isinstance(live_runs, str):
        click.echo(live_runs)
    elif not live_runs:
        click.echo("no active or queued runs")
    else:
        # As each Lane will start them: not in the order of their seqs, if Runs were moved or users take turns.
        live_runs.sort(key=lambda run: (run.workspace_id, run.session_id, run.state == "queued", run.queue_order))
        has_users = any(run.author for run in live_runs)
        head = ("RUN", "SESSION", "STATE", "AGE", *(("USER",) if has_users else ()), "PROMPT")
        print_table(head, [_row(run, has_users=has_users) for run in live_runs])
    return 0


def _row(run: RunBody, *, has_users: bool) -> tuple[str, ...]:
    """Return the cells of a Run. `has_users`: whether there is a column for the user."""
    user = (author_name(run.author) or "-",) if has_users else ()
    return (run.run_id, run.session_id, _state(run), ago(run.accepted_at), *user, first_line(run))


def _state(run: RunBody) -> str:
    state = "stopping" if run.stopping else run.state
    return f"{state}: no live node serves its directory" if run.waits_for_node is True else state


def first_line(run: RunBody) -> str:
    return one_line(next((line for line in run.prompt.splitlines() if line.strip()), ""), 80)


@click.command(
    epilog=examples(
        "kedge cancel 4f0c2a             # a unique prefix of the id of a run or session; see: kedge runs",
        "kedge cancel SESSION --json",
    )
)
@click.argument("target", metavar="SESSION|RUN")
@json_option
@cwd_option
@host_option
def cancel(target: str, as_json: bool, cwd: str, host: str | None) -> int:
    """Cancel a run, or all runs of a session accepted so far.

    Live runs are found in all workspaces of the server, idle sessions in this directory and in open workspaces."""

    async def act() -> tuple[str, CancelReply]:
        async with connected(host) as client:
            return await _cancel(client, target, cwd)

    subject, reply = asyncio.run(act())
    if as_json:
        print_json(reply)
    elif not reply.covered:
        click.echo(f"{subject}: nothing to cancel")
    else:
        verb = "cancelled" if reply.recorded else "stopping"
        for covered in reply.covered:
            click.echo(f"{verb} run {covered.run_id} (was {covered.was})")
    if not reply.recorded and not as_json:
        click.echo(NOT_RECORDED)
    if reply.jobs and not as_json:
        click.echo(jobs_remain(reply.jobs))
    return 0


async def _cancel(client: Client, target: str, cwd: str) -> tuple[str, CancelReply]:
    """Return a description of the target, and the reply of the cancel."""
    live = await client.runs()
    matching = {run.run_id: run for run in live if target and run.run_id.startswith(target)}
    sessions = {run.session_id: run for run in live if target and run.session_id.startswith(target)}
    if target in matching:
        matching, sessions = {target: matching[target]}, {}
    elif target in sessions:
        matching, sessions = {}, {target: sessions[target]}
    if len(matching) + len(sessions) > 1:
        ids = ", ".join([*matching, *sessions][:5])
        raise NotFound(f"{target!r} is ambiguous ({ids}). Give more of the id.")
    for run in (*matching.values(), *sessions.values()):
        if run.waits_for_node is True:
            await _open(client, run.workspace_id)
    for run_id, run in matching.items():
        return f"run {run_id}", await client.cancel_run(run.workspace_id, run_id)
    for session_id, run in sessions.items():
        return f"session {session_id}", await client.cancel_session(run.workspace_id, session_id)
    return await _not_live(client, target, cwd)


async def _open(client: Client, workspace_id: str) -> None:
    """Open a workspace with a waiting Run: the node that accepted it may be lost."""
    for known in await client.known_workspaces():
        if known.id == workspace_id:
            await client.create_workspace(known.path)


async def _not_live(client: Client, target: str, cwd: str) -> tuple[str, CancelReply]:
    """Cancel a target that is not live. That it has just ended is not an error."""
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
            # Still sent: a prompt may have been accepted in the meantime.
            return f"session {session.id} is idle", await client.cancel_session(workspace.id, session.id)
    raise NotFound(f"No live run or session {target!r} on {client.host}. List live runs with: kedge runs")


def _session(target: str, sessions: list[SessionBody], path: str) -> SessionBody | None:
    try:
        return session_by_prefix(target, sessions, path)
    except NotFound:
        return None
