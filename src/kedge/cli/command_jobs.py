"""`kedge jobs`: the kept commands of a workspace's sessions, which continue after their runs."""

from __future__ import annotations

import asyncio
import os
import time

import click
from msgspec import Struct

from kedge.cli.command_approvals import Listing
from kedge.cli.options import cwd_option, examples, host_option, json_option
from kedge.cli.printing import print_json, print_table
from kedge.cli.workspace_lookup import OpenWorkspace, by_prefix, opened
from kedge.client.safe_text import harmless, one_line
from kedge.client.view.job_text import job_state, runtime
from kedge.wire.job_models import JobBody, JobOutput


class SessionJob(Struct):
    id: str
    session_id: str
    job: JobBody


@click.group(cls=Listing, epilog=examples("kedge jobs", "kedge jobs show k3f7k", "kedge jobs end k3f7k"))
def jobs() -> None:
    """List, show and end commands that the agent keeps running after its runs.

    They end with their session and with the server at the latest. ID is an id or a unique prefix of one."""


@jobs.command("list", epilog=examples("kedge jobs", "kedge jobs --json | jq -r '.[].job.id'"))
@json_option
@cwd_option
@host_option
def list_(as_json: bool, cwd: str, host: str | None) -> int:
    """List the kept commands of all sessions of this directory."""

    async def read() -> list[SessionJob]:
        async with opened(host, cwd) as workspace:
            return await _all(workspace)

    listed = asyncio.run(read())
    if as_json:
        print_json(listed)
    elif not listed:
        click.echo("no kept commands")
    else:
        now_ms = time.time_ns() // 1_000_000
        rows = [
            (one.id, one.session_id, job_state(one.job), runtime(one.job, now_ms), one_line(one.job.command, 200))
            for one in listed
        ]
        print_table(("JOB", "SESSION", "STATE", "TIME", "COMMAND"), rows)
    return 0


@jobs.command(epilog=examples("kedge jobs show k3f7k", "kedge jobs show k3f7k --json | jq -r .output"))
@click.argument("job", metavar="ID")
@json_option
@cwd_option
@host_option
def show(job: str, as_json: bool, cwd: str, host: str | None) -> int:
    """Print the recent output of a kept command."""

    async def read() -> JobOutput:
        async with opened(host, cwd) as workspace:
            one = await _find(workspace, job)
            return await workspace.client.job_output(workspace.id, one.session_id, one.id)

    shown = asyncio.run(read())
    if as_json:
        print_json(shown)
        return 0
    click.echo(f"{shown.job.id}: {job_state(shown.job)}  $ {one_line(shown.job.command, 200)}", err=True)
    if shown.is_cut:
        click.echo("(earlier output is no longer available)", err=True)
    click.echo(harmless(shown.output) if os.isatty(1) else shown.output, nl=False)
    return 0


@jobs.command(epilog=examples("kedge jobs end k3f7k"))
@click.argument("job", metavar="ID")
@json_option
@cwd_option
@host_option
def end(job: str, as_json: bool, cwd: str, host: str | None) -> int:
    """End a kept command with all its processes."""

    async def act() -> JobBody:
        async with opened(host, cwd) as workspace:
            one = await _find(workspace, job)
            return await workspace.client.end_job(workspace.id, one.session_id, one.id)

    ended = asyncio.run(act())
    if as_json:
        print_json(ended)
    else:
        click.echo(f"{ended.id}: {job_state(ended)}")
    return 0


async def _all(workspace: OpenWorkspace) -> list[SessionJob]:
    """Return the running ones first, then the last started."""
    sessions = await workspace.client.sessions(workspace.id)
    listed = [SessionJob(job.id, session.id, job) for session in sessions for job in session.jobs]
    return sorted(listed, key=lambda one: (one.job.state != "running", -one.job.started_at))


async def _find(workspace: OpenWorkspace, prefix: str) -> SessionJob:
    missing = f"No kept command {prefix!r} in {workspace.workspace.path}. List them with: kedge jobs"
    return by_prefix(prefix, await _all(workspace), missing)
